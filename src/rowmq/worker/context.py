"""What a handler and its middleware are told of the message at hand, and what they can tell."""

from collections.abc import Callable
from typing import Any

from rowmq.codec import error_text
from rowmq.errors import InvalidOption
from rowmq.queue.job import AnyJob
from rowmq.quoting import quoted
from rowmq.subscriber.delivery import AnyDelivery

__all__ = ["Context", "Progress"]

NOTE_CHARS_MAX = 200


class Progress:
    """How far a handler is, for others to see in `mq.workers()`. Safe from any thread."""

    __slots__ = ("_changed", "fraction", "note")

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.fraction: float | None = None
        self.note: str | None = None

    def report(self, fraction: float | None = None, note: str | None = None) -> None:
        """Say how much is done, from 0 to 1, and perhaps what is being done. It is seen by others
        within a second or so, and costs the handler nothing.
        """
        if fraction is not None:
            number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
            if not number or not 0 <= fraction <= 1:
                raise InvalidOption(f"progress goes from 0 to 1, not {quoted(fraction)}")
            self.fraction = float(fraction)
        if note is not None:
            self.note = (error_text(note) or "")[:NOTE_CHARS_MAX]
        self._changed()


class Context:
    """The message at hand, to handlers and middleware."""

    __slots__ = ("_lost", "_stopping", "delivery", "handler", "job", "progress", "source", "state")

    def __init__(
        self,
        *,
        handler: str,
        source: str,
        job: Any,
        delivery: Any,
        progress: Progress,
        stopping: Callable[[], bool],
        lost: Callable[[], bool],
    ) -> None:
        self.handler = handler
        """The handler's name."""
        self.source = source
        """The topic, or the queue."""
        self.job: Any = job
        """The job, if it is one: a `Job` in a sync handler, an `AsyncJob` elsewhere."""
        self.delivery: Any = delivery
        """The delivery, if it is one: a `Delivery` in a sync handler, else an `AsyncDelivery`."""
        self.progress = progress
        self.state: dict[str, Any] = {}
        """Whatever middleware and handler have to tell each other."""
        self._stopping = stopping
        self._lost = lost

    @property
    def payload(self) -> Any:
        """What was published, or put."""
        return self.delivery.message.payload if self.job is None else self.job.payload

    @property
    def attempt(self) -> int:
        """Which attempt this is, the first being 1."""
        attempt: int = (self.delivery if self.job is None else self.job).attempt
        return attempt

    @property
    def stopping(self) -> bool:
        """Whether the worker is to stop: a long handler looks here, and comes to an end."""
        return self._stopping()

    @property
    def lost(self) -> bool:
        """Whether others may have the message by now, so that going on would do it twice."""
        return self._lost()

    def seen_as(self, raw: AnyJob[Any] | AnyDelivery[Any]) -> "Context":
        """The same, with another job or delivery in it: as a thread is to see it."""
        other = Context(
            handler=self.handler,
            source=self.source,
            job=raw if isinstance(raw, AnyJob) else None,
            delivery=raw if isinstance(raw, AnyDelivery) else None,
            progress=self.progress,
            stopping=self._stopping,
            lost=self._lost,
        )
        other.state = self.state
        return other

    def __repr__(self) -> str:
        return f"<Context of {self.handler}: {self.job or self.delivery!r}>"
