"""What is told to whoever measures: by handlers, and by drivers about statements."""

import threading
from collections import Counter
from time import perf_counter

from rowmq.drivers.base import Ended
from rowmq.drivers.forking import after_fork
from rowmq.errors import UniqueViolation
from rowmq.store.statement import Statement
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Distribution, Gathering

__all__ = ["HandlerMeter", "StatementMeter"]


class HandlerMeter:
    """Counts what one handler does. It is told in the worker's event loop, and read by anybody."""

    __slots__ = (
        "batches",
        "failures",
        "fetched",
        "fetches",
        "outcomes",
        "seconds",
        "settle_failures",
        "settled",
        "waits",
    )

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(catalogue.OUTCOMES, 0)
        self.seconds = Distribution(catalogue.HANDLER_BOUNDS)
        self.waits = Distribution(catalogue.WAIT_BOUNDS)
        self.failures = 0
        self.fetches = 0
        self.fetched = 0
        self.batches = 0
        self.settled = 0
        self.settle_failures = 0

    def count(self, outcome: str) -> None:
        """Note what became of one that a handler was given."""
        self.outcomes[outcome] += 1

    def waited(self, seconds: float | None) -> None:
        """One has waited so long for its handler, if that is known."""
        if seconds is not None:
            self.waits.note(max(0.0, seconds))

    def settled_batch(self, count: int) -> None:
        """So many were settled in one transaction."""
        self.batches += 1
        self.settled += count

    def found(self, count: int) -> None:
        """A fetch gave so many."""
        self.fetches += 1
        self.fetched += count

    def gather(self, gathering: Gathering, labels: tuple[str, str]) -> None:
        """Tell what was counted."""
        for outcome, count in list(self.outcomes.items()):
            gathering.add(catalogue.HANDLED, (*labels, outcome), count)
        gathering.spread(catalogue.HANDLER_SECONDS, labels, self.seconds)
        gathering.spread(catalogue.WAIT_SECONDS, labels, self.waits)
        gathering.add(catalogue.FAILURES, labels, self.failures)
        gathering.add(catalogue.FETCHES, labels, self.fetches)
        gathering.add(catalogue.FETCHED, labels, self.fetched)
        gathering.add(catalogue.SETTLE_BATCHES, labels, self.batches)
        gathering.add(catalogue.SETTLED, labels, self.settled)
        gathering.add(catalogue.SETTLE_FAILURES, labels, self.settle_failures)


class StatementMeter:
    """Times statements, by their names, of which there are only so many. From any thread."""

    def __init__(self) -> None:
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nothing was measured: at the start, and in a forked child."""
        self._lock = threading.Lock()
        self._seconds: dict[str, Distribution] = {}
        self._failures: Counter[str] = Counter()

    def __call__(self, statement: Statement) -> Ended:
        """A statement begins."""
        began = perf_counter()

        def ended(error: BaseException | None) -> None:
            # A row that is there already is an answer: so duplicates are found.
            failed = error is not None and not isinstance(error, UniqueViolation)
            self._note(statement.name, perf_counter() - began, failed=failed)

        return ended

    def _note(self, name: str, seconds: float, *, failed: bool) -> None:
        with self._lock:
            known = self._seconds.get(name)
            if known is None:
                known = self._seconds[name] = Distribution(catalogue.STATEMENT_BOUNDS)
                self._failures[name] = 0
            known.note(seconds)
            if failed:
                self._failures[name] += 1

    def gather(self, gathering: Gathering) -> None:
        """Tell what was measured."""
        with self._lock:
            for name, seconds in self._seconds.items():
                gathering.spread(catalogue.STATEMENT_SECONDS, (name,), seconds)
            for name, count in self._failures.items():
                gathering.add(catalogue.STATEMENT_FAILURES, (name,), count)
