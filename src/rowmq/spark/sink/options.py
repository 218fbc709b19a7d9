"""The options of a write, checked."""

import re

import msgspec

from rowmq.codec import Encoding
from rowmq.errors import InvalidOption
from rowmq.naming import check_queue, check_topic
from rowmq.spark.options import PLACE, Given
from rowmq.spark.place import Place
from rowmq.store.staged_jobs import CONFLICTS
from rowmq.store.staging import Version

__all__ = ["ENCODINGS", "SinkOptions", "sink_options"]

TARGETS = ("topic", "queue")
TRANSACTION = ("txnAppId", "txnVersion")
WRITING = (*PLACE, *TARGETS, *TRANSACTION, "encoding", "onConflict")
SPARKS_OWN = ("checkpointLocation", "queryName")
"""What Spark passes on with the options of a stream."""

ENCODINGS = {encoding.name.lower(): int(encoding) for encoding in Encoding}

APP_BYTES_MAX = 200
VERSION_MAX = 2**62


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows go, and how; without topic and queue, a column says to which topic."""

    place: Place
    topic: str | None = None
    queue: str | None = None
    encoding: str | None = None
    conflict: str = "error"
    version: Version | None = None


def sink_options(given: Given, *, stream: bool, overwrite: bool) -> SinkOptions:
    """The options of a write, as a batch or as a stream."""
    if overwrite:
        raise InvalidOption(
            "messages and jobs can be added, but not overwritten: write with "
            + (".outputMode('append')" if stream else ".mode('append')")
        )
    given.refuse_unknown((*WRITING, *(SPARKS_OWN if stream else ())))
    given.refuse_together(TARGETS)
    if stream:
        given.refuse(TRANSACTION, "is for batches: a stream numbers its batches by itself")
    if given.get("queue") is None:
        given.refuse(["onConflict"], "is for jobs: it says what becomes of one whose key is taken")
    topic, queue = given.get("topic"), given.get("queue")
    return SinkOptions(
        place=given.place,
        topic=None if topic is None else check_topic(topic),
        queue=None if queue is None else check_queue(queue),
        encoding=given.parse("encoding", encoding, None),
        conflict=given.parse("onConflict", conflict, "error"),
        version=version_of(given),
    )


def version_of(given: Given) -> Version | None:
    """What makes a batch be published once, if that was asked for. It is once for each target, so
    that one batch may be written to several.
    """
    app, number = given.get("txnAppId"), given.get("txnVersion")
    if app is None and number is None:
        return None
    if app is None or number is None:
        raise InvalidOption(
            "give both of txnAppId, the name of what writes, and txnVersion, the number of the "
            "batch, which rises; a batch that was written is then not written again"
        )
    if not app or "\0" in app or len(app.encode()) > APP_BYTES_MAX:
        raise InvalidOption(f"txnAppId must have 1 to {APP_BYTES_MAX} bytes, without NUL: {app!r}")
    if not re.fullmatch(r"[0-9]{1,19}", number.strip()) or int(number) >= VERSION_MAX:
        raise InvalidOption(f"txnVersion must be a whole number from 0 on, not {number!r}")
    (target,) = [f"{name} {given.get(name)}" for name in given.named(TARGETS)] or ["topics"]
    return Version(f"app:{app}", target, int(number))


def encoding(name: str, text: str) -> str:
    if text.strip().lower() not in ENCODINGS:
        raise InvalidOption(f"{name} must be one of {', '.join(ENCODINGS)}, not {text!r}")
    return text.strip().lower()


def conflict(name: str, text: str) -> str:
    if text.strip().lower() not in CONFLICTS:
        raise InvalidOption(f"{name} must be one of {', '.join(CONFLICTS)}, not {text!r}")
    return text.strip().lower()
