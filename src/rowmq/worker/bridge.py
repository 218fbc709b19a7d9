"""From a handler's thread to the worker's event loop: what it asks for is done there."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rowmq.client import AsyncRowMQ, spare_of
from rowmq.drivers.base import take_steps
from rowmq.drivers.callers import guest_of
from rowmq.errors import InvalidInput, NotClaimed
from rowmq.message import Message, PublishResult
from rowmq.queue.desk import Spare
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.queue import AsyncQueue
from rowmq.queue.queues import desk_of
from rowmq.store.statement import Operation, Result
from rowmq.subscriber.delivery import AsyncDelivery, claim, conclude
from rowmq.transaction import AsyncTransaction, Guard, Transaction
from rowmq.worker.unit import Unit

__all__ = ["Bridge", "BridgedTransaction"]

T = TypeVar("T")


class Bridge:
    """The way to one event loop, for the handlers of a worker that run in threads."""

    def __init__(self, mq: AsyncRowMQ) -> None:
        self._loop = asyncio.get_running_loop()
        self._database = mq._engine.database
        self._spare = Spare(spare_of(mq._engine))
        self._desk = desk_of(
            mq._store,
            self._run,
            notifier=mq._notifier,
            watcher=mq._watcher,
            spare=spare_of(mq._engine),
        )

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the loop do something, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def settler(self, unit: Unit) -> Callable[[Sequence[Any], Any], None]:
        """What settles a unit for its handler: it returns when that is durable, or part of the
        transaction of a connection.
        """

        async def settle(wanted: Sequence[Any], connection: Any) -> None:
            unit.check_in_time()
            await unit.settle(wanted, connection)

        def call(wanted: Sequence[Any], connection: Any) -> None:
            if connection is None or isinstance(connection, BridgedTransaction):
                self.do(settle(wanted, None))
            else:
                unit.check_in_time()
                self._settle_here(unit, wanted, connection)
                unit.settled_by_handler(wanted, own=True)

        return call

    def _settle_here(self, unit: Unit, wanted: Sequence[Any], connection: Any) -> None:
        """Settle in a transaction of the handler's own, whose connection is this thread's."""
        raw = unit.raw
        if not isinstance(raw, AsyncDelivery):
            take_steps(self._desk.settle(wanted, connection))
            return
        claim(wanted)
        try:
            self._run(partial(raw._core.settling.settle_within, wanted), connection)
        finally:
            conclude(wanted)

    def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        if isinstance(connection, Transaction):  # of the client that the handler was given
            result: T = connection._mq._run(make, connection)
            return result
        driver = self._spare.driver
        if connection is None:  # whether a settle counted that nobody knows of
            return driver.run(make)
        return driver.follow(guest_of(connection, self._database), make())

    def close(self) -> None:
        self._spare.close()


class BridgedTransaction(Transaction):
    """The transaction of a handler that runs in a thread."""

    def __init__(self, bridge: Bridge, inner: AsyncTransaction) -> None:
        self._bridge = bridge
        self._inner = inner

    @property
    def _guard(self) -> Guard:  # type: ignore[override]
        raise InvalidInput(
            "a handler's transaction is used by itself: tx.publish(), tx.queue(name).put(), "
            "tx.execute(); as connection= of a client it is not known"
        )

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
    """A queue whose writes are part of such a transaction: what `Queue` has, but for claiming."""

    def __init__(self, bridge: Bridge, queue: AsyncQueue[Any]) -> None:
        self._bridge = bridge
        self._queue = queue
        self.name = queue.name

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._queue, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(value):
            raise AttributeError(f"a queue in a handler's transaction has no {name!r}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return seen_by_thread(self._bridge.do(value(*args, **kwargs)))

        return call


def seen_by_thread(value: Any) -> Any:
    """What a call gave, with jobs as sync code knows them."""
    if isinstance(value, list):
        return [seen_by_thread(item) for item in value]
    if isinstance(value, AsyncJob):
        return Job(value._facts, settle=refuse)
    return value


def refuse(*_: Any) -> None:
    """Jobs that were put, or read, are not claimed: their own checks come first."""
    raise NotClaimed("this job was not claimed, and cannot be settled")
