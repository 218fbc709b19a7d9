"""An app whose handlers write down what they are given: `python -m tests.chaos.worker`.

It is not told to a handler when its message was fetched: that was after the process began. Nor does
it learn what came of its settle: that may have happened, from the handler's end on.
"""

import logging
import sys
import time
from typing import Any

import rowmq
from tests.chaos.load import (
    AUDIT,
    BILLING,
    INSERT_EFFECT,
    LEASE_SECONDS,
    LOCK_SECONDS,
    MAIL,
    RETRY,
    TICKS,
    TOPIC,
    VISIBILITY_SECONDS,
    fails_first,
    mark_of,
    place_of,
    token_of,
)
from tests.chaos.record import Record
from tests.simulation.history import Claimed, Delivered, JobSettled, Outcome, Settled

MESSAGES: dict[str, Any] = {
    "lease_duration": LEASE_SECONDS,
    "visibility": VISIBILITY_SECONDS,
    "max_deliveries": 100_000,
    "retry": RETRY,
}
JOBS: dict[str, Any] = {"lock_timeout": LOCK_SECONDS, "max_deliveries": 100_000, "retry": RETRY}


class FailedOnPurposeError(Exception):
    """What is to be tried again."""


class Scribe:
    """Writes down what a handler is given, and how it ends."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def begin(self, context: rowmq.Context, group: str = "") -> None:
        now = time.monotonic_ns()
        if context.job is None:
            self.record.note(
                Delivered,
                began=self.record.born,
                ended=now,
                mark=context.payload,
                **self._which(context, group),
            )
            return
        self.record.note(
            Claimed,
            began=self.record.born,
            ended=now,
            mark=mark_of(context.job),
            key=context.job.key,
            now=time.time_ns() // 1000,
            until=0,  # nobody knows when it was claimed
            **self._which_job(context.job),
        )

    def end(self, context: rowmq.Context, group: str = "") -> None:
        """It comes to its end: well, or, at the first attempt of some, not."""
        failed = fails_first(str(context.payload), context.attempt)
        how: dict[str, Any] = {
            "began": time.monotonic_ns(),
            "kind": "nack" if failed else "ack",
            "outcome": Outcome.UNKNOWN,
        }
        if context.job is None:
            self.record.note(Settled, **how, **self._which(context, group))
        else:
            self.record.note(JobSettled, **how, **self._which_job(context.job))
        if failed:
            raise FailedOnPurposeError(context.payload)

    def _which(self, context: rowmq.Context, group: str) -> dict[str, Any]:
        delivery = context.delivery
        return {
            "place": place_of(group, delivery),
            "offset": delivery.message.offset,
            "epoch": delivery._token.holding.epoch,
            "attempt": delivery.attempt,
        }

    def _which_job(self, job: Any) -> dict[str, Any]:
        return {"queue": job.queue, "job": job.id, "token": token_of(job)}


def declare(app: rowmq.App, scribe: Scribe) -> None:
    @app.subscriber(TOPIC, group=BILLING, strict=True, transactional=True, **MESSAGES)
    async def bill(mark: str, context: rowmq.Context, tx: rowmq.AsyncTransaction) -> None:
        scribe.begin(context, BILLING)
        await tx.execute(INSERT_EFFECT, [BILLING, mark])
        scribe.end(context, BILLING)

    @app.subscriber(TOPIC, group=AUDIT, **MESSAGES)
    def audit(_mark: str, context: rowmq.Context) -> None:
        scribe.begin(context, AUDIT)
        scribe.end(context, AUDIT)

    @app.worker(MAIL, transactional=True, **JOBS)
    def send(mark: str, context: rowmq.Context, tx: rowmq.Transaction) -> None:
        scribe.begin(context)
        tx.execute(INSERT_EFFECT, [MAIL, mark])
        scribe.end(context)

    @app.worker(TICKS, **JOBS)
    async def tick(_payload: Any, context: rowmq.Context) -> None:
        scribe.begin(context)
        scribe.end(context)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    url, path = sys.argv[1:]
    record = Record(path)
    app = rowmq.App(url, maintenance_interval=0, graceful_timeout=10, retry_for=2, lock_timeout=5)
    declare(app, Scribe(record))
    app.on_startup(record.ready)
    sys.exit(0 if app.run() else 1)


if __name__ == "__main__":
    main()
