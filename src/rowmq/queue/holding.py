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

from msgspec.structs import replace

from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.options import whole
from rowmq.queue.claiming import Claimed
from rowmq.queue.core import Core, check_order, delivered_too_often, told
from rowmq.queue.job import ClaimedFacts, claimed_facts
from rowmq.queue.ticket import Wanted, wanted_of
from rowmq.queue.view import micros_of
from rowmq.store.claims import OpenLane
from rowmq.store.holds import HeldJob
from rowmq.store.settles import SAME_PLACE, Kind, Settle
from rowmq.times import Duration
from rowmq.transaction import AsyncTransaction, Guard, Transaction, guard_of

__all__ = ["AsyncHolder", "Holder"]

log = logging.getLogger("rowmq")

PASSED_OVER_MAX = 100
"""How many jobs are passed over because somebody has their key."""


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
        if lock_timeout is not None:
            micros_of("lock_timeout", lock_timeout)
        self.fenced = self.store.dialect.name == "sqlite"
        self._lanes: list[OpenLane] = []

    # --- a row that is kept locked ----------------------------------------------------------------

    def find(self) -> Steps[bool]:
        """Whether something is due, without a lock."""
        self._lanes = yield from self.core.claimer.look()
        return bool(self._lanes)

    def take(self, tx: Any, passed: set[int]) -> Steps[HeldJob | int | None]:
        """Lock a job for a transaction. A number is a job to pass over in the next one."""
        if len(passed) >= PASSED_OVER_MAX:
            return None
        take = partial(self.store.holds.take, self._lanes, newest=self.newest, passed=passed)
        held: HeldJob | int | None = yield partial(self.core.desk.run, take, tx)
        return held

    def facts_of(self, held: HeldJob) -> tuple[ClaimedFacts, str | None]:
        """What a held job shows, and why it is not to be tried, if so."""
        deliveries = held.row.deliveries + held.starts + 1
        entry = held.job.entry._replace(attempts=held.failures, deliveries=deliveries)
        claimed = Claimed(replace(held.job, entry=entry), held.lane, 0)
        facts, error = claimed_facts(claimed, self.core.view)
        if error is None and held.failures >= self.max_failures:
            error = self.too_often(held.failures, f"in {held.starts} of them its process died")
        return facts, error or delivered_too_often(facts, self.core.view)

    def too_often(self, failures: int, how: str) -> str:
        return f"it failed {failures} times ({how}), and max_failures is {self.max_failures}"

    def refusal(self, held: HeldJob, error: str) -> Settle:
        """A job that is failed without being tried."""
        log.warning("job %d of queue %r has failed: %s", held.row.job_id, held.lane.queue, error)
        return held.settle(Kind.REJECT, attempts=held.failures, error=error)

    def finish(self, held: HeldJob, settle: Settle, tx: Any) -> Any:
        """Settle a held job in its transaction."""
        return self.core.desk.run(partial(self.store.holds.finish, held, settle), tx)

    def done(self, held: HeldJob) -> Settle:
        """The ack of a job whose block ended well."""
        return held.settle(Kind.ACK, attempts=held.failures + 1)

    def fail(self, held: HeldJob, error: Exception) -> Any:
        """Count a failure."""
        fail = partial(self.store.holds.fail, error=told(error), max_failures=self.max_failures)
        return self.core.desk.run(partial(fail, held))

    # --- the fenced equivalent --------------------------------------------------------------------

    def claim(self) -> Steps[Any]:
        """Claim a job that has not failed too often."""
        while True:
            jobs = yield from self.core.claim(1, self.lock_timeout, newest=self.newest)
            if not jobs:
                return None
            job = jobs[0]
            # A delivery that was not settled is a death: an attempt, and a failure.
            ticket = job._ticket  # noqa: SLF001 - our own
            entry = ticket.claimed.job.entry
            counted = entry._replace(attempts=entry.deliveries - 1)
            ticket.claimed = replace(ticket.claimed, job=replace(ticket.claimed.job, entry=counted))
            facts, _ = claimed_facts(ticket.claimed, self.core.view)
            job = self.core.new_job(facts, ticket)
            if job.deliveries <= self.max_failures:
                return job
            error = self.too_often(job.deliveries - 1, "or its process died")
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
            settle = ticket.settle(Kind.NACK, delay_us=SAME_PLACE, error=told(error))
            wanted = Wanted(ticket, settle)
        yield from self.core.settle([wanted], None)


class Holder(_Holder):
    """Holds jobs in sync code."""

    @contextlib.contextmanager
    def hold(self) -> Iterator[Any]:
        with self._fenced() if self.fenced else self._open() as job:
            yield job

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        passed: set[int] = set()
        while True:
            if not take_steps(self.find()):
                yield None
                return
            held: HeldJob | int | None = None
            marked = False
            try:
                with self.mq.transaction() as tx:
                    held = take_steps(self.take(tx, passed))
                    if isinstance(held, int):
                        passed.add(held)
                        continue
                    if held is None:
                        yield None
                        return
                    facts, error = self.facts_of(held)
                    if error is not None:
                        self.finish(held, self.refusal(held, error), tx)
                        continue
                    self.core.desk.spare.run(partial(self.store.holds.mark, held))
                    marked = True
                    try:
                        yield self.core.new_job(facts, None, tx)
                    except Exception:
                        raise
                    except BaseException:
                        # No failure of the job's; and while its row is locked, nobody counts it.
                        marked = False
                        with told_if_it_fails():
                            self.core.desk.spare.run(partial(self.store.holds.unmark, held))
                        raise
                    self.finish(held, self.done(held), tx)
            except Exception as error:
                if isinstance(held, HeldJob) and marked:
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
        passed: set[int] = set()
        while True:
            if not await take_steps_async(self.find()):
                yield None
                return
            held: HeldJob | int | None = None
            marked = False
            try:
                async with self.mq.transaction() as tx:
                    held = await take_steps_async(self.take(tx, passed))
                    if isinstance(held, int):
                        passed.add(held)
                        continue
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
                    try:
                        yield self.core.new_job(facts, None, tx)
                    except Exception:
                        raise
                    except BaseException:
                        # No failure of the job's; and while its row is locked, nobody counts it.
                        marked = False
                        with told_if_it_fails():
                            unmark = partial(self.store.holds.unmark, held)
                            await asyncio.shield(
                                asyncio.to_thread(self.core.desk.spare.run, unmark)
                            )
                        raise
                    await self.finish(held, self.done(held), tx)
            except Exception as error:
                if isinstance(held, HeldJob) and marked:
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
        log.warning("what became of a held job could not be written down: %s", error)


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
