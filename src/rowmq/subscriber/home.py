"""What the subscribers of one client share."""

from collections.abc import Callable
from typing import Any

from rowmq.drivers.base import SyncDriver
from rowmq.drivers.watching import Watcher
from rowmq.store.store import Store
from rowmq.subscriber.heart import Heart
from rowmq.tracing import Tracer

__all__ = ["Home"]


class Home:
    """A client, to its subscribers: the database, their heartbeats, and what wakes them."""

    tracer: Tracer | None = None

    def __init__(
        self,
        store: Store,
        run: Callable[..., Any],
        *,
        spare: Callable[[], SyncDriver],
        watcher: Watcher,
    ) -> None:
        self.store = store
        self.run = run
        self.watcher = watcher
        self.heart = Heart(spare)
        self.subscribers: set[Any] = set()

    def entered(self, subscriber: Any) -> None:
        """A subscriber was made."""
        subscriber._combiner.tracer = self.tracer  # noqa: SLF001 - its own package
        self.subscribers.add(subscriber)

    def left(self, subscriber: Any) -> None:
        """A subscriber was closed."""
        self.subscribers.discard(subscriber)
