"""Holding: a job that is worked on in one transaction, from its claim to its ack.

On servers the transaction keeps the job's row locked; see `store.holds`. SQLite lets one connection
write at a time, and a transaction that is held would keep out all others. There the job is claimed
like any other, and its transaction begins when it is first used: the ack is part of it, and counts
only if the lock is still there.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.options import whole
from rowmq.queue.claiming import Claimed
from rowmq.queue.core import Core, check_order, told
from rowmq.queue.job import claimed_facts
from rowmq.queue.ticket import Wanted, wanted_of
from rowmq.store.holds import HeldJob
from rowmq.store.settles import Kind, Settle
from rowmq.times import Duration
from rowmq.transaction import AsyncTransaction, Guard, Transaction, guard_of

__all__ = ["AsyncHolder", "Holder"]

log = logging.getLogger("rowmq")

DIED = "its process died while it held the job"


class _Holder:
    """What holding is in sync and async code."""

    def __init__(
        self,
        mq: Any,
        core: Core,
        order: str,
        max_failures: int,
        lock_timeout: Duration | None,
    ) -> None:
        self.mq = mq
        self.core = core
        self.store = core.desk.store
        self.newest = check_order(order)
        self.max_failures = whole("max_failures", max_failures)
        self.lock_timeout = lock_timeout
        self.fenced = self.store.dialect.name == "sqlite"

    # --- a row that is kept locked ----------------------------------------------------------------

    def find(self) -> Steps[bool]:
        """Whether something is due, without a lock."""
        yield from self.core.claimer.look()
        return bool(self.core.claimer.lanes)

    def take(self, tx: Any) -> Steps[HeldJob | None]:
        """Lock a job for a transaction."""
        lanes = self.core.claimer.lanes
        take = partial(self.store.holds.take, lanes, newest=self.newest)
        held: HeldJob | None = yield partial(self.core.desk.run, take, tx)
        return held

    def facts_of(self, held: HeldJob) -> tuple[Any, str | None]:
        """What a held job shows, and why it is not to be tried, if so."""
        starts = held.starts
        entry = held.job.entry._replace(
            attempts=held.failures, deliveries=held.row.deliveries + starts + 1
        )
        claimed = Claimed(held.job._replace(entry=entry), held.lane, 0)
        facts, error = claimed_facts(claimed, self.core.view)
        if error is None and held.failures >= self.max_failures:
            error = f"{DIED}; it failed {held.failures} times, and max_failures is "
            error += str(self.max_failures)
        return facts, error

    def refusal(self, held: HeldJob, error: str) -> Settle:
        """A job that is failed without being tried."""
        log.warning("job %d of queue %r has failed: %s", held.row.job_id, held.lane.queue, error)
        return held.settle(Kind.REJECT, attempts=held.failures, error=error)

    def finish(self, held: HeldJob, settle: Settle, tx: Any) -> Any:
        return self.core.desk.run(partial(self.store.holds.finish, held, settle), tx)

    def done(self, held: HeldJob) -> Settle:
        return held.settle(Kind.ACK, attempts=held.failures + 1)

    def fail(self, held: HeldJob, error: BaseException) -> Any:
        """Count a failure, or, if it was none of the job's, take back that it was started."""
        holds = self.store.holds
        if not isinstance(error, Exception):
            return self.core.desk.run(partial(holds.unmark, held))
        fail = partial(holds.fail, held, error=told(error), max_failures=self.max_failures)
        return self.core.desk.run(fail)

    # --- the fenced equivalent --------------------------------------------------------------------

    def claim(self) -> Steps[Any]:
        """Claim a job that has not failed too often."""
        while True:
            jobs = yield from self.core.claim(1, self.lock_timeout, newest=self.newest)
            if not jobs:
                return None
            job = jobs[0]
            if job.deliveries <= self.max_failures:
                return job
            error = f"{DIED}; it failed {job.deliveries - 1} times, and max_failures is "
            error += str(self.max_failures)
            wanted = wanted_of(job._ticket, Kind.REFUSE, error=error)  # noqa: SLF001 - our own
            yield from self.core.settle([wanted], None)

    def ack(self, job: Any, tx: Any) -> Steps[None]:
        """Settle a claimed job, in its transaction if that was used."""
        connection = tx if tx.begun else None
        yield from self.core.settle([wanted_of(job._ticket, Kind.ACK)], connection)  # noqa: SLF001

    def nack(self, job: Any, error: BaseException) -> Steps[None]:
        """Count a failure, or, if it was none of the job's, give it back."""
        ticket = job._ticket  # noqa: SLF001 - our own
        if not isinstance(error, Exception):
            wanted = wanted_of(ticket, Kind.RELEASE)
        elif job.deliveries >= self.max_failures:
            wanted = wanted_of(ticket, Kind.REJECT, error=told(error))
        else:
            # At once, and as often as `max_failures` says: the handle's strategy has no part in it.
            wanted = Wanted(ticket, ticket.settle(Kind.NACK, error=told(error)))
        yield from self.core.settle([wanted], None)


class Holder(_Holder):
    """Holds jobs in sync code."""

    @contextlib.contextmanager
    def hold(self) -> Iterator[Any]:
        with self._fenced() if self.fenced else self._open() as job:
            yield job

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        while True:
            if not take_steps(self.find()):
                yield None
                return
            held: HeldJob | None = None
            marked = False
            try:
                with self.mq.transaction() as tx:
                    held = take_steps(self.take(tx))
                    if held is None:
                        yield None
                        return
                    facts, error = self.facts_of(held)
                    if error is not None:
                        self.finish(held, self.refusal(held, error), tx)
                        continue
                    self.core.desk.spare.run(partial(self.store.holds.mark, held))
                    marked = True
                    yield self.core.new_job(facts, None, tx)
                    self.finish(held, self.done(held), tx)
            except BaseException as error:
                if held is not None and marked:
                    with told_if_it_fails():
                        self.fail(held, error)
                raise
            return

    @contextlib.contextmanager
    def _fenced(self) -> Iterator[Any]:
        job = take_steps(self.claim())
        if job is None:
            yield None
            return
        try:
            with contextlib.ExitStack() as stack:
                tx = LazyTransaction(self.mq, stack)
                yield self.core.new_job(job._facts, None, tx)  # noqa: SLF001 - our own
                take_steps(self.ack(job, tx))
        except BaseException as error:
            with told_if_it_fails():
                take_steps(self.nack(job, error))
            raise


class AsyncHolder(_Holder):
    """Holds jobs in async code."""

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[Any]:
        async with self._fenced() if self.fenced else self._open() as job:
            yield job

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        while True:
            if not await take_steps_async(self.find()):
                yield None
                return
            held: HeldJob | None = None
            marked = False
            try:
                async with self.mq.transaction() as tx:
                    held = await take_steps_async(self.take(tx))
                    if held is None:
                        yield None
                        return
                    facts, error = self.facts_of(held)
                    if error is not None:
                        await self.finish(held, self.refusal(held, error), tx)
                        continue
                    mark = partial(self.store.holds.mark, held)
                    await asyncio.to_thread(self.core.desk.spare.run, mark)
                    marked = True
                    yield self.core.new_job(facts, None, tx)
                    await self.finish(held, self.done(held), tx)
            except BaseException as error:
                if held is not None and marked:
                    with told_if_it_fails():
                        await self.fail(held, error)
                raise
            return

    @contextlib.asynccontextmanager
    async def _fenced(self) -> AsyncIterator[Any]:
        job = await take_steps_async(self.claim())
        if job is None:
            yield None
            return
        try:
            async with contextlib.AsyncExitStack() as stack:
                tx = AsyncLazyTransaction(self.mq, stack)
                yield self.core.new_job(job._facts, None, tx)  # noqa: SLF001 - our own
                await take_steps_async(self.ack(job, tx))
        except BaseException as error:
            with told_if_it_fails():
                await take_steps_async(self.nack(job, error))
            raise


@contextlib.contextmanager
def told_if_it_fails() -> Iterator[None]:
    """The block's own error is the one to raise; what else goes wrong is logged."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        log.warning("a failure of a held job could not be counted: %s", error)


class LazyTransaction(Transaction):
    """A transaction that begins when it is first used, and ends with a stack."""

    def __init__(self, mq: Any, stack: contextlib.ExitStack) -> None:
        self._mq = mq
        self._stack = stack
        self._inner: Transaction | None = None

    @property
    def begun(self) -> bool:
        return self._inner is not None

    @property
    def _guard(self) -> Guard:  # type: ignore[override]
        if self._inner is None:
            self._inner = self._stack.enter_context(self._mq.transaction())
        return guard_of(self._inner)


class AsyncLazyTransaction(AsyncTransaction):
    """A transaction that begins when it is first used, and ends with a stack."""

    def __init__(self, mq: Any, stack: contextlib.AsyncExitStack) -> None:
        self._mq = mq
        self._stack = stack
        self._inner: AsyncTransaction | None = None

    @property
    def begun(self) -> bool:
        return self._inner is not None

    async def _begin(self) -> Guard:
        if self._inner is not None:
            return guard_of(self._inner)
        inner: AsyncTransaction = await self._stack.enter_async_context(self._mq.transaction())
        self._inner = inner
        return guard_of(inner)
