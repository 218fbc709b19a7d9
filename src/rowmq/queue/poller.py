"""Polling for jobs: `Poller` for sync code and `AsyncPoller` for async code."""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from rowmq.drivers.base import take_steps, take_steps_async
from rowmq.queue.core import Core
from rowmq.queue.desk import Desk
from rowmq.queue.job import AsyncJob, Facts, Job, tickets_of
from rowmq.queue.ticket import Ticket, Wanted
from rowmq.queue.view import View
from rowmq.times import Duration

__all__ = ["AsyncPoller", "Poller"]

T = TypeVar("T")


class Poller(Generic[T]):
    """Claims jobs of several queues, for sync code. Safe to share between threads."""

    def __init__(self, mq: Any, desk: Desk, views: list[View]) -> None:
        self._mq = mq
        self._desk = desk
        self._core = Core(desk, views, self._job)

    def try_poll(self, *, lock_timeout: Duration | None = None) -> Job[T] | None:
        """A job that is due, claimed; None if there is none.

        The highest priority comes first, then the earliest. It is locked for `lock_timeout`, or as
        the queue's handle says: if it is not settled by then, it is given to others.
        """
        jobs = take_steps(self._core.claim(1, lock_timeout))
        return jobs[0] if jobs else None

    def try_poll_many(self, limit: int, *, lock_timeout: Duration | None = None) -> list[Job[T]]:
        """Up to `limit` jobs that are due, claimed in one lock; at most 10,000."""
        return take_steps(self._core.claim(limit, lock_timeout))

    def poll(
        self, timeout: Duration | None = None, *, lock_timeout: Duration | None = None
    ) -> Job[T] | None:
        """A job as soon as one is due; None after `timeout` seconds without."""
        job: Job[T] | None = take_steps(self._core.poll(timeout, lock_timeout))
        return job

    def ack(self, jobs: Iterable[Job[T]], *, connection: Any = None) -> None:
        """Ack many jobs in one transaction."""
        self._settle(tickets_of(jobs), connection)

    def __repr__(self) -> str:
        names = ", ".join(repr(queue) for queue in self._core.views)
        return f"<{type(self).__name__} {names}>"

    def _job(self, facts: Facts, ticket: Ticket | None = None, tx: Any = None) -> Job[T]:
        return Job(facts, self._settle, ticket, tx)

    def _settle(self, wanted: list[Wanted], connection: Any) -> None:
        take_steps(self._core.settle(wanted, connection))


class AsyncPoller(Generic[T]):
    """Claims jobs of several queues, for async code. Safe to share between tasks."""

    def __init__(self, mq: Any, desk: Desk, views: list[View]) -> None:
        self._mq = mq
        self._desk = desk
        self._core = Core(desk, views, self._job)

    async def try_poll(self, *, lock_timeout: Duration | None = None) -> AsyncJob[T] | None:
        """A job that is due, claimed: see `Poller.try_poll`."""
        jobs = await take_steps_async(self._core.claim(1, lock_timeout))
        return jobs[0] if jobs else None

    async def try_poll_many(
        self, limit: int, *, lock_timeout: Duration | None = None
    ) -> list[AsyncJob[T]]:
        """Up to `limit` jobs that are due, claimed in one lock; at most 10,000."""
        return await take_steps_async(self._core.claim(limit, lock_timeout))

    async def poll(
        self,
        timeout: Duration | None = None,  # noqa: ASYNC109 - a poll's, and no cancellation
        *,
        lock_timeout: Duration | None = None,
    ) -> AsyncJob[T] | None:
        """A job as soon as one is due; None after `timeout` seconds without."""
        job: AsyncJob[T] | None = await take_steps_async(self._core.poll(timeout, lock_timeout))
        return job

    async def ack(self, jobs: Iterable[AsyncJob[T]], *, connection: Any = None) -> None:
        """Ack many jobs in one transaction."""
        await self._settle(tickets_of(jobs), connection)

    def __repr__(self) -> str:
        names = ", ".join(repr(queue) for queue in self._core.views)
        return f"<{type(self).__name__} {names}>"

    def _job(self, facts: Facts, ticket: Ticket | None = None, tx: Any = None) -> AsyncJob[T]:
        return AsyncJob(facts, self._settle, ticket, tx)

    async def _settle(self, wanted: list[Wanted], connection: Any) -> None:
        await take_steps_async(self._core.settle(wanted, connection))
