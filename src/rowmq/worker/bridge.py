"""From a handler's thread to the worker's event loop: what it asks for is done there."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rowmq.message import Message, PublishResult
from rowmq.queue.queue import AsyncQueue
from rowmq.store.statement import Result
from rowmq.transaction import AsyncTransaction, Guard, Transaction, guard_of
from rowmq.worker.unit import Unit

__all__ = ["Bridge", "BridgedTransaction"]

T = TypeVar("T")


class Bridge:
    """The way to one event loop, for the handlers of a worker that run in threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the loop do something, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def settler(self, unit: Unit) -> Any:
        """What settles a unit for its handler: it returns when that is durable."""

        def settle(wanted: Sequence[Any], connection: Any) -> None:
            inner = (
                inner_of(connection) if isinstance(connection, BridgedTransaction) else connection
            )
            self.do(unit.settle(wanted, inner))

        return settle


class BridgedTransaction(Transaction):
    """The transaction of a handler that runs in a thread."""

    def __init__(self, bridge: Bridge, inner: AsyncTransaction) -> None:
        self._bridge = bridge
        self._inner = inner

    @property
    def _guard(self) -> Guard:  # type: ignore[override]
        return guard_of(self._inner)

    def execute(self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Result:
        return self._bridge.do(self._inner.execute(sql, params))

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> PublishResult:
        return self._bridge.do(self._inner.publish(topic, payload, key=key, id=id, headers=headers))

    def publish_many(self, topic: str, messages: Iterable[Message[Any]]) -> list[PublishResult]:
        return self._bridge.do(self._inner.publish_many(topic, messages))

    def queue(self, name: str, *, type: Any = None, kind: str | None = None) -> Any:
        return BridgedQueue(self._bridge, self._inner.queue(name, type=type, kind=kind))


class BridgedQueue:
    """A queue whose writes are part of such a transaction."""

    def __init__(self, bridge: Bridge, queue: AsyncQueue[Any]) -> None:
        self._bridge = bridge
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._queue, name)
        if not asyncio.iscoroutinefunction(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._bridge.do(value(*args, **kwargs))

        return call


def inner_of(transaction: BridgedTransaction) -> AsyncTransaction:
    """The transaction in the event loop."""
    return transaction._inner
