"""What whoever traces messages is told of them. Mostly nobody does, and this costs a look.

A client has a tracer or none (`telemetry.trace`). Whoever publishes or puts asks it for what goes
with the message, and whoever handles a message begins where that says.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

__all__ = ["Received", "Sent", "Tracer"]

I = TypeVar("I")  # noqa: E741 - an item: what is to be written


class Sent(Protocol):
    """Messages that are being sent."""

    def stamped(self, item: I) -> I:
        """What is to be written, with where it comes from in its headers. What its sender has put
        there himself stays.
        """

    def known(self, id: str) -> None:
        """Tell the id of the only message."""


class Received(Protocol):
    """A message that is handed to a handler."""

    traced: Any
    """The tracer's own: which span it is handled in."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent beside its payload."""

    def told(self) -> dict[str, Any]:
        """What it is known by: its topic or queue, its id, its attempt."""


class Tracer(Protocol):
    """Makes spans."""

    def send(self, operation: str, destination: str, count: int) -> AbstractContextManager[Sent]:
        """Messages are sent in this block, to a topic or a queue."""

    def origin(self) -> Any:
        """Where in a trace this is called, for work that others may do; None if in none."""

    def together(self, origins: Sequence[Any]) -> AbstractContextManager[None]:
        """What several callers have asked for is done for all of them in this block."""

    def handle(self, handler: str, messages: Sequence[Received]) -> AbstractContextManager[None]:
        """Messages are handled in this block: mostly one."""

    def failed(self, error: BaseException) -> None:
        """The handler of this block has raised."""

    def settle(self, source: str, messages: Sequence[Received]) -> AbstractContextManager[None]:
        """What was handled is settled in this block."""

    def detach(self) -> None:
        """Trace no more."""
