"""Takes messages and jobs by hand, and knows what came of each settle: `python -m
tests.chaos.consumer`.
"""

import logging
import random
import signal
import sys
import time
from typing import Any

import rowmq
from tests.chaos.load import (
    LEASE_SECONDS,
    LEDGER,
    LOCK_SECONDS,
    PARCELS,
    RETRY,
    TOPIC,
    VISIBILITY_SECONDS,
    fails_first,
    mark_of,
    place_of,
    token_of,
)
from tests.chaos.record import Record
from tests.simulation.history import Claimed, Delivered, JobSettled, Settled

BATCH = 10
WAIT_SECONDS = 0.05


class Consumer:
    def __init__(self, mq: rowmq.RowMQ, record: Record) -> None:
        self.queue = mq.queue(PARCELS, lock_timeout=LOCK_SECONDS, retry=RETRY)
        self.record = record
        self.chance = random.Random(record.actor)
        self.stopping = False

    def run(self, sub: Any) -> None:
        self.record.ready()
        while not self.stopping:
            with self.record.enduring():
                self.take_messages(sub)
            with self.record.enduring():
                self.take_jobs()

    def take_messages(self, sub: Any) -> None:
        began = time.monotonic_ns()
        deliveries = sub.poll(max=BATCH, timeout=WAIT_SECONDS)
        ended = time.monotonic_ns()
        for delivery in deliveries:
            mark = delivery.message.payload
            which = self.which(delivery)
            self.record.note(Delivered, began=began, ended=ended, mark=mark, **which)
        for delivery in deliveries:
            kind = self.kind(delivery.message.payload, delivery.attempt)
            which = self.which(delivery)
            self.record.attempt(Settled, getattr(delivery, kind), kind=kind, **which)

    def which(self, delivery: Any) -> dict[str, Any]:
        return {
            "place": place_of(LEDGER, delivery),
            "offset": delivery.message.offset,
            "epoch": delivery._token.holding.epoch,
            "attempt": delivery.attempt,
        }

    def take_jobs(self) -> None:
        began, earliest = time.monotonic_ns(), time.time_ns() // 1000
        jobs = self.queue.try_poll_many(BATCH)
        ended, latest = time.monotonic_ns(), time.time_ns() // 1000
        for job in jobs:
            self.record.note(
                Claimed,
                began=began,
                ended=ended,
                mark=mark_of(job),
                key=job.key,
                now=latest,
                until=earliest + round(LOCK_SECONDS * 1_000_000),
                **self.which_job(job),
            )
        for job in jobs:
            kind = self.kind(mark_of(job), job.attempt)
            self.record.attempt(JobSettled, getattr(job, kind), kind=kind, **self.which_job(job))

    def which_job(self, job: Any) -> dict[str, Any]:
        return {"queue": job.queue, "job": job.id, "token": token_of(job)}

    def kind(self, mark: str, attempt: int) -> str:
        return "nack" if fails_first(mark, attempt) else "ack"

    def stop(self, *_: Any) -> None:
        self.stopping = True


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    url, path = sys.argv[1:]
    record = Record(path)
    with rowmq.connect(url, pool_size=4, retry_for=2, lock_timeout=5) as mq:
        consumer = Consumer(mq, record)
        signal.signal(signal.SIGTERM, consumer.stop)
        sub = mq.subscribe(
            TOPIC,
            group=LEDGER,
            lease_duration=LEASE_SECONDS,
            visibility=VISIBILITY_SECONDS,
            max_attempts=100_000,
            backoff=RETRY,
        )
        with sub:
            consumer.run(sub)


if __name__ == "__main__":
    main()
