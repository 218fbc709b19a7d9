"""What is known of a message that was handed out: the same for a handler of a worker, for code that
polls by itself, for traces and for logs.
"""

from collections.abc import Mapping
from typing import Any

from rowmq.queue.job import AnyJob
from rowmq.subscriber.delivery import AnyDelivery

__all__ = ["Handed", "headers_of", "told_of"]

Raw = AnyJob[Any] | AnyDelivery[Any]


class Handed:
    """A delivery or a job that was polled."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self.traced: Any = None

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent beside its payload."""
        return headers_of(self._raw)

    def told(self) -> dict[str, Any]:
        """What it is known by."""
        return told_of(self._raw)


def headers_of(raw: Raw) -> Mapping[str, str]:
    """What was sent beside a payload."""
    if isinstance(raw, AnyJob):
        return raw.headers
    message = getattr(raw, "message", None)  # a worker lets go of it before it is settled
    return {} if message is None else message.headers


def told_of(raw: Raw) -> dict[str, Any]:
    """What a delivery or a job is known by."""
    if isinstance(raw, AnyJob):
        return {"queue": raw.queue, "job_id": raw.id, "key": raw.key, "attempt": raw.attempt}
    message = getattr(raw, "message", None)
    token = raw._token  # noqa: SLF001 - whoever tells of it looks inside
    return {
        "topic": raw._core.options.topic,  # noqa: SLF001
        "group": raw.group,
        "message_id": None if message is None else message.id,
        "key": token.holding.place[0],
        "offset": token.offset,
        "attempt": raw.attempt,
    }
