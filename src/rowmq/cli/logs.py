"""Logs of a worker: lines for people, or one JSON object a line; never with a password."""

import logging
import os
import sys
from datetime import UTC, datetime

import msgspec

from rowmq.cli.failing import redacted
from rowmq.cli.showing import visible
from rowmq.telemetry.handling import MessageFilter

__all__ = ["FORMATS", "LEVELS", "set_up_logs"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def set_up_logs(format: str, level: str) -> None:
    """Write the log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if format == "json" else TextFormatter())
    handler.addFilter(MessageFilter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


class TextFormatter(logging.Formatter):
    """A line for people. What a handler has logged says of which message; what RowMQ itself tells
    of one names it anyhow.
    """

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)-7s [%(process)d] %(message)s", "%Y-%m-%d %H:%M:%S"
        )

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as Python calls it
        story = super().formatMessage(record)
        return story if record.name.split(".")[0] == "rowmq" else story + handled_in(record)

    def format(self, record: logging.LogRecord) -> str:
        # A name with a line break in it must not look like a line of the log.
        story = redacted(super().format(record))
        traced = bool(record.exc_info or record.stack_info)
        return "\n".join(map(visible, story.split("\n"))) if traced else visible(story)


class JSONFormatter(logging.Formatter):
    """A JSON object on one line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process or os.getpid(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = self.formatStack(record.stack_info)
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
        kept = {name: plain(value) for name, value in (extra | told).items()}
        return msgspec.json.encode(kept).decode()


def handled_in(record: logging.LogRecord) -> str:
    """What was being handled when a record was made, for people."""
    told = vars(record)
    if "topic" in told and "offset" in told:
        what = f"message {told.get('message_id') or told['offset']} of {told['topic']}"
    elif "job_id" in told:
        what = f"job {told['job_id']} of {told.get('queue')}"
    else:
        return ""
    return f" [{told.get('handler')}: {what}, attempt {told.get('attempt')}]"


def plain(value: object) -> object:
    """A value as JSON can hold it, without secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(str(value)).encode("utf-8", "backslashreplace").decode()
