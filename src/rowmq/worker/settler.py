"""Settles what handlers are done with, many in one transaction, while the next ones run."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from rowmq.drivers.base import backoff_seconds
from rowmq.errors import DatabaseError, RowMQError, TransientError
from rowmq.telemetry.measuring import HandlerMeter
from rowmq.tracing import Tracer
from rowmq.worker.observing import settled_outcome
from rowmq.worker.sources import Source
from rowmq.worker.unit import UNTRACED, Unit, Verdict
from rowmq.worker.waiting import wait_for

__all__ = ["Settler"]

log = logging.getLogger("rowmq")

BATCH = 1_000
"""How many units are settled in one transaction."""

WAITING_MAX = 5_000
"""With so many waiting to be settled, handlers wait too."""

TRIES_MAX = 10
"""How often a settle is tried that the database refuses, and may not refuse later."""

Settled = tuple[Unit, Verdict]


class Settler:
    """The settles of one handler."""

    def __init__(
        self,
        source: Source,
        *,
        flush_interval: float,
        meter: HandlerMeter | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._source = source
        self._meter = meter
        self._tracer = tracer
        self._flush_interval = flush_interval
        self._waiting: list[Settled] = []
        self._under_way = 0
        self._added = asyncio.Event()
        self._flushed = asyncio.Condition()
        self._hurry = asyncio.Event()
        self.failing_since: float | None = None

    def add(self, unit: Unit, verdict: Verdict) -> bool:
        """Have a unit settled soon. True if very many wait for that."""
        waiting = self._waiting
        waiting.append((unit, verdict))
        if len(waiting) == 1:
            self._added.set()
        return len(waiting) > WAITING_MAX

    def add_all(self, settled: Iterable[Settled]) -> None:
        """Have units settled soon."""
        self._waiting += settled
        self._added.set()

    async def wait_for_room(self) -> None:
        """Wait until not so many wait to be settled."""
        async with self._flushed:
            await self._flushed.wait_for(lambda: len(self._waiting) <= WAITING_MAX)

    async def run(self) -> None:
        """Flush, for as long as the worker lives."""
        while True:
            await self._added.wait()
            if self._flush_interval and not self._hurry.is_set():
                await wait_for(self._hurry, self._flush_interval)
            self._added.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                self._under_way = len(batch)
                await self._settle(batch)
                del batch  # it may be long before there is another one
                self._under_way = 0
                async with self._flushed:
                    self._flushed.notify_all()

    def hurry(self) -> None:
        """Flush without waiting for others, from now on."""
        self._hurry.set()

    async def flush(self) -> None:
        """Wait until all that was added is settled."""
        self.hurry()
        async with self._flushed:
            await self._flushed.wait_for(lambda: not self._waiting and not self._under_way)

    @property
    def unsettled(self) -> int:
        return len(self._waiting) + self._under_way

    async def _settle(self, batch: Sequence[Settled]) -> None:
        try:
            await self._try(batch)
        except Exception:
            # Whatever it is, the next ones are to be settled; these come again after their time.
            log.exception("%d of %r were not settled", len(batch), self._source.name)
        self.failing_since = None
        if self._meter is not None:
            for unit, verdict in batch:
                self._meter.count(settled_outcome(unit, verdict))
        self._source.finished([unit for unit, _ in batch])

    async def _try(self, batch: Sequence[Settled]) -> None:
        """Settle a batch: for as long as the database is out of reach, again and again."""
        left, attempt = batch, 0
        while left:
            try:
                await self._settle_at_once(left)
                return
            except TransientError as error:
                log.warning("%d of %r wait to be settled: %s", len(left), self._source.name, error)
            except Exception as error:
                if len(left) > 1:
                    for item in unsettled(left):
                        await self._try([item])
                    return
                if not isinstance(error, DatabaseError) or attempt >= TRIES_MAX:
                    known = isinstance(error, RowMQError)
                    log.warning("%r was not settled: %s", left[0][0].raw, error, exc_info=not known)
                    return
            self.failing_since = self.failing_since or time.monotonic()
            await asyncio.sleep(backoff_seconds(attempt))
            left, attempt = unsettled(left), attempt + 1

    async def _settle_at_once(self, batch: Sequence[Settled]) -> None:
        """Settle a batch in one transaction, and tell who wants to know."""
        meter, tracer = self._meter, self._tracer
        units = () if tracer is None else [unit for unit, _ in batch]
        try:
            with UNTRACED if tracer is None else tracer.settle(self._source.name, units):
                await self._source.settle(batch)
        except Exception:
            if meter is not None:
                meter.settle_failures += 1
            raise
        if meter is not None:
            meter.settled_batch(len(batch))


def unsettled(batch: Sequence[Settled]) -> list[Settled]:
    """Those that are not settled yet."""
    return [(unit, verdict) for unit, verdict in batch if not unit.raw.settled]
