"""The two handles of a queue: `Queue` for sync code and `AsyncQueue` for async code.

What they do is in `core`; how jobs are looked at, changed by hand, and settled by receipts is in
`inspecting`, `steering` and `redeeming`. A handle costs nothing: it holds no connection, and need
not be closed.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Self, TypeVar

from rowmq.drivers.base import take_steps, take_steps_async
from rowmq.errors import InvalidInput
from rowmq.message import Outcome, ScheduledMessage
from rowmq.queue.desk import Desk
from rowmq.queue.holding import AsyncHolder, Holder
from rowmq.queue.inspecting import AsyncInspecting, Inspecting
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.poller import AsyncPoller, Poller
from rowmq.queue.redeeming import AsyncRedeeming, Redeeming
from rowmq.queue.steering import AsyncSteering, Steering
from rowmq.queue.view import View
from rowmq.store.queues import Settings
from rowmq.times import Duration

__all__ = ["AsyncQueue", "Queue"]

T = TypeVar("T")


class Queue(Inspecting[T], Steering[T], Redeeming[T], Poller[T]):
    """A queue, for sync code. Safe to share between threads."""

    def __init__(self, mq: Any, desk: Desk, view: View, connection: Any = None) -> None:
        super().__init__(mq, desk, [view])
        self._connection = connection

    @property
    def name(self) -> str:
        """What the queue is called."""
        return self._core.view.queue

    def _in(self, connection: Any) -> Any:
        """The transaction to write in; None is one of our own."""
        return self._connection if connection is None else connection

    # --- put and offer ----------------------------------------------------------------------------

    def put(
        self,
        payload: T,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        ordering_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> Job[T]:
        """Add a job. It is durable when this returns.

        It is due now, after `delay`, or at a time; the highest priority is claimed first. Jobs with
        the same `ordering_key` are done one at a time, in order. A `key` must not have a live job:
        else `KeyTaken` is raised, and the offers are what you want.
        """
        job: Job[T] = take_steps(
            self._core.put(
                payload,
                self._in(connection),
                delay=delay,
                at=at,
                priority=priority,
                key=key,
                ordering_key=ordering_key,
                headers=headers,
            )
        )
        return job

    def put_many(
        self,
        payloads: Iterable[T],
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        ordering_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> list[Job[T]]:
        """Add a job for each payload in one transaction: all of them, or none and an error."""
        return take_steps(
            self._core.put_many(
                payloads,
                self._in(connection),
                delay=delay,
                at=at,
                priority=priority,
                ordering_key=ordering_key,
                headers=headers,
            )
        )

    def offer_or_update(
        self,
        key: str,
        payload: T,
        at: datetime | None = None,
        *,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> Outcome:
        """Have one live job with this key, with this payload, due at this time, after this
        delay, or now.

        CREATED if there was none. UPDATED if there was: also one that is being worked on, whose
        lock becomes void. IGNORED if it was the same already.
        """
        message = ScheduledMessage(key, payload, at, True, priority, headers, delay)
        return self._offer([message], connection)[0]

    def offer_if_not_exists(
        self,
        key: str,
        payload: T,
        at: datetime | None = None,
        *,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> Outcome:
        """Add a job, unless there is a live one with this key: CREATED or IGNORED."""
        message = ScheduledMessage(key, payload, at, False, priority, headers, delay)
        return self._offer([message], connection)[0]

    def offer_batch(
        self, messages: Iterable[ScheduledMessage[T]], *, connection: Any = None
    ) -> list[tuple[ScheduledMessage[T], Outcome]]:
        """Offer many jobs in one transaction, one after the other; each with its outcome."""
        given = messages_of(messages)
        return list(zip(given, self._offer(given, connection), strict=True))

    def _offer(self, messages: list[ScheduledMessage[T]], connection: Any) -> list[Outcome]:
        return take_steps(self._core.offer(messages, self._in(connection)))

    def ack(self, jobs: Iterable[Job[T]], *, connection: Any = None) -> None:
        """Ack many jobs in one transaction."""
        super().ack(jobs, connection=self._in(connection))

    # --- settings ---------------------------------------------------------------------------------

    def configure(
        self,
        *,
        keep_completed: bool | None = None,
        keep_failed: bool | None = None,
        retention: Duration | None = None,
        failed_retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_in_flight: float | None = None,
        rate: float | None = None,
        rate_period: Duration | None = None,
        durability: str | None = None,
        connection: Any = None,
    ) -> None:
        """Change the queue's settings; those left out stay as they are.

        Finished jobs are kept in the archive, unless `keep_completed` or `keep_failed` is False;
        completed ones for `retention`, a week at first, failed ones for `failed_retention`, for
        ever at first. `max_in_flight` jobs are claimed at a time, and `rate` are started in any
        `rate_period` (a second), by all workers together. `math.inf` is no limit. With `durability`
        "relaxed" instead of "full", puts and settles return before they are on the disk: a crash of
        the database may lose the last moments of them. PostgreSQL and SQLite only.
        """
        take_steps(
            self._core.configure(
                keep_completed=keep_completed,
                keep_failed=keep_failed,
                retention=retention,
                failed_retention=failed_retention,
                max_payload_bytes=max_payload_bytes,
                max_in_flight=max_in_flight,
                rate=rate,
                rate_period=rate_period,
                durability=durability,
                connection=self._in(connection),
            )
        )

    def pause(self, *, connection: Any = None) -> None:
        """Have nobody claim jobs of this queue, until `resume`. What is claimed can be settled."""
        take_steps(self._core.set(Settings(paused=True), self._in(connection)))

    def resume(self, *, connection: Any = None) -> None:
        """Have jobs be claimed again."""
        take_steps(self._core.set(Settings(paused=False), self._in(connection)))

    # --- hold -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(
        self,
        *,
        order: str = "fifo",
        max_failures: int = 3,
        lock_timeout: Duration | None = None,
    ) -> Iterator[Job[T] | None]:
        """Work on a job in a transaction, `job.tx`, that keeps it locked; None if none is due.

        Leaving the block acks the job in that same transaction. An exception rolls it back and
        counts a failure, and so does the death of the process; after `max_failures` the job has
        failed. `lifo` takes the newest first. On SQLite, where an open transaction keeps all others
        from writing, the job is claimed for `lock_timeout`, and `job.tx` begins when it is used.
        """
        holder = Holder(self._mq, self._core, order, max_failures, lock_timeout)
        with holder.hold() as job:
            yield job

    def _within(self, connection: Any) -> Self:
        """The same queue, in a transaction."""
        return type(self)(self._mq, self._desk, self._core.view, connection)


class AsyncQueue(AsyncInspecting[T], AsyncSteering[T], AsyncRedeeming[T], AsyncPoller[T]):
    """A queue, for async code. Safe to share between tasks."""

    def __init__(self, mq: Any, desk: Desk, view: View, connection: Any = None) -> None:
        super().__init__(mq, desk, [view])
        self._connection = connection

    @property
    def name(self) -> str:
        """What the queue is called."""
        return self._core.view.queue

    def _in(self, connection: Any) -> Any:
        """The transaction to write in; None is one of our own."""
        return self._connection if connection is None else connection

    # --- put and offer ----------------------------------------------------------------------------

    async def put(
        self,
        payload: T,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        ordering_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> AsyncJob[T]:
        """Add a job: see `Queue.put`."""
        job: AsyncJob[T] = await take_steps_async(
            self._core.put(
                payload,
                self._in(connection),
                delay=delay,
                at=at,
                priority=priority,
                key=key,
                ordering_key=ordering_key,
                headers=headers,
            )
        )
        return job

    async def put_many(
        self,
        payloads: Iterable[T],
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        ordering_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> list[AsyncJob[T]]:
        """Add a job for each payload in one transaction: all of them, or none and an error."""
        return await take_steps_async(
            self._core.put_many(
                payloads,
                self._in(connection),
                delay=delay,
                at=at,
                priority=priority,
                ordering_key=ordering_key,
                headers=headers,
            )
        )

    async def offer_or_update(
        self,
        key: str,
        payload: T,
        at: datetime | None = None,
        *,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> Outcome:
        """Have one live job with this key: see `Queue.offer_or_update`."""
        message = ScheduledMessage(key, payload, at, True, priority, headers, delay)
        return (await self._offer([message], connection))[0]

    async def offer_if_not_exists(
        self,
        key: str,
        payload: T,
        at: datetime | None = None,
        *,
        delay: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        connection: Any = None,
    ) -> Outcome:
        """Add a job, unless there is a live one with this key: CREATED or IGNORED."""
        message = ScheduledMessage(key, payload, at, False, priority, headers, delay)
        return (await self._offer([message], connection))[0]

    async def offer_batch(
        self, messages: Iterable[ScheduledMessage[T]], *, connection: Any = None
    ) -> list[tuple[ScheduledMessage[T], Outcome]]:
        """Offer many jobs in one transaction, one after the other; each with its outcome."""
        given = messages_of(messages)
        return list(zip(given, await self._offer(given, connection), strict=True))

    async def _offer(self, messages: list[ScheduledMessage[T]], connection: Any) -> list[Outcome]:
        return await take_steps_async(self._core.offer(messages, self._in(connection)))

    async def ack(self, jobs: Iterable[AsyncJob[T]], *, connection: Any = None) -> None:
        """Ack many jobs in one transaction."""
        await super().ack(jobs, connection=self._in(connection))

    # --- settings ---------------------------------------------------------------------------------

    async def configure(
        self,
        *,
        keep_completed: bool | None = None,
        keep_failed: bool | None = None,
        retention: Duration | None = None,
        failed_retention: Duration | None = None,
        max_payload_bytes: int | None = None,
        max_in_flight: float | None = None,
        rate: float | None = None,
        rate_period: Duration | None = None,
        durability: str | None = None,
        connection: Any = None,
    ) -> None:
        """Change the queue's settings: see `Queue.configure`."""
        await take_steps_async(
            self._core.configure(
                keep_completed=keep_completed,
                keep_failed=keep_failed,
                retention=retention,
                failed_retention=failed_retention,
                max_payload_bytes=max_payload_bytes,
                max_in_flight=max_in_flight,
                rate=rate,
                rate_period=rate_period,
                durability=durability,
                connection=self._in(connection),
            )
        )

    async def pause(self, *, connection: Any = None) -> None:
        """Have nobody claim jobs of this queue, until `resume`. What is claimed can be settled."""
        await take_steps_async(self._core.set(Settings(paused=True), self._in(connection)))

    async def resume(self, *, connection: Any = None) -> None:
        """Have jobs be claimed again."""
        await take_steps_async(self._core.set(Settings(paused=False), self._in(connection)))

    # --- hold -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def hold(
        self,
        *,
        order: str = "fifo",
        max_failures: int = 3,
        lock_timeout: Duration | None = None,
    ) -> AsyncIterator[AsyncJob[T] | None]:
        """Work on a job in a transaction, `job.tx`, that keeps it locked: see `Queue.hold`."""
        holder = AsyncHolder(self._mq, self._core, order, max_failures, lock_timeout)
        async with holder.hold() as job:
            yield job

    def _within(self, connection: Any) -> Self:
        """The same queue, in a transaction."""
        return type(self)(self._mq, self._desk, self._core.view, connection)


def messages_of(messages: Iterable[ScheduledMessage[T]]) -> list[ScheduledMessage[T]]:
    """A list of what `offer_batch` takes."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidInput(
            f"offer_batch takes a list of rowmq.ScheduledMessage(key, payload, at), not a "
            f"{type(messages).__name__}"
        )
    return list(messages)
