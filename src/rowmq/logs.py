"""The log of RowMQ, `rowmq`: each of its messages is in one line, whatever is told in it.

A log tells of names and errors, and of payloads that did not parse: anybody may have written what
is in them. Set once, here, none of it can look like a line of its own or act on a terminal. The
template and the number of arguments stay, for those who group messages by them.
"""

import logging
import re
from typing import Any

from rowmq.quoting import visible

__all__ = ["OneLine", "keep_in_line"]

CONVERSION = re.compile(r"%[-#0 +]*[0-9.]*([a-zA-Z%])")


class OneLine(logging.Filter):
    """Lets every record pass, with its arguments plainly visible."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and isinstance(record.msg, str):
            kinds = [kind for kind in CONVERSION.findall(record.msg) if kind != "%"]
            if len(kinds) == len(record.args):
                record.args = tuple(map(shown, kinds, record.args))
        return True


def shown(kind: str, value: Any) -> Any:
    """An argument. What is told by its `repr`, or as a number, is visible as it is."""
    if kind != "s":
        return value
    try:
        return visible(str(value))
    except Exception:  # noqa: BLE001 - what an error says is its own code, which may raise
        return f"<{type(value).__name__}>"


def keep_in_line() -> None:
    """See to it that whatever is logged from now on is in one line."""
    logging.getLogger("rowmq").addFilter(OneLine())
