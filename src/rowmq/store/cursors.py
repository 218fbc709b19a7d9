"""Cursors: where a page ends, as a text that whoever looks gives back for the next one."""

import re
from typing import NamedTuple, Self

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted

__all__ = ["Cursor"]

FAR = 10**18 - 1
"""Beyond every partition, and a number that a cursor can have."""

_NUMBERS = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18}){2}", re.ASCII)


class Cursor(NamedTuple):
    """A place in an order by time: that of a topic's messages, or of its dead letters."""

    time: int
    partition_id: int
    offset: int

    @classmethod
    def read(cls, text: str) -> Self:
        """The place that a page has told of."""
        if not isinstance(text, str) or not _NUMBERS.fullmatch(text):
            raise InvalidOption(f"{quoted(text)} is no cursor: give one that a page has given")
        return cls(*(int(number) for number in text.split(".")))

    @classmethod
    def at(cls, time: int) -> Self:
        """The end of what has this time."""
        return cls(max(0, time), FAR, 0)

    def written(self) -> str:
        return f"{self.time}.{self.partition_id}.{self.offset}"
