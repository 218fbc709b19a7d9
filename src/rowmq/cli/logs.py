"""Logs of a worker: lines for people, or one JSON object a line; never with a password."""

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

from rowmq.cli.failing import IN_URL
from rowmq.cli.showing import visible

__all__ = ["FORMATS", "LEVELS", "redacted", "set_up_logs"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def set_up_logs(format: str, level: str) -> None:
    """Write the log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("rowmq").setLevel(level.upper())
    logging.captureWarnings(capture=True)


def redacted(text: str) -> str:
    """Text without the passwords of URLs."""
    return IN_URL.sub(r"\1***@", text)


class TextFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s [%(process)d] %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        # A name with a line break in it must not look like a line of the log.
        story = redacted(super().format(record))
        traced = record.exc_info is not None or record.stack_info is not None
        return "\n".join(map(visible, story.split("\n"))) if traced else visible(story)


class JSONFormatter(logging.Formatter):
    """A JSON object on one line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
            "pid": record.process or os.getpid(),
        }
        if record.exc_info:
            told["exception"] = redacted(self.formatException(record.exc_info))
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
        return msgspec.json.encode(told | extra, enc_hook=str).decode()
