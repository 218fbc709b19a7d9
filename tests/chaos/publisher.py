"""Publishes messages and puts jobs, until it is told to end: `python -m tests.chaos.publisher`.

Most messages have an id, and are published again until that is answered: each must be there once.
Others are published once, and nobody knows what came of some of them. A part is published in a
transaction, together with a row of the publisher's own. Several threads do so, which share commits.
"""

import itertools
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rowmq
from rowmq.errors import RowMQError
from tests.chaos.load import INSERT_EFFECT, KEYS, LINES, MAIL, OUTBOX, PARCELS, TOPIC
from tests.chaos.record import Offered, Record
from tests.simulation.history import Partition, Published, Put

THREADS = 3
PAUSE_SECONDS = 0.06
OFFER_KEYS = ("x", "y", "z")


class Publisher:
    def __init__(self, mq: rowmq.RowMQ, record: Record) -> None:
        self.mq = mq
        self.record = record
        self.chance = random.Random(record.actor)
        self.stopping = False
        self.numbers = itertools.count(1)

    def run(self) -> None:
        self.record.ready()
        with ThreadPoolExecutor(THREADS) as threads:
            running = [threads.submit(self.go_on) for _ in range(THREADS)]
            for thread in running:
                thread.result()

    def go_on(self) -> None:
        ways: list[Callable[[str], Any]] = [self.publish, self.blindly, self.together]
        ways += [self.put, self.line_up, self.offer]
        while not self.stopping:
            (way,) = self.chance.choices(ways, [45, 15, 10, 10, 10, 10])
            way(f"{self.record.actor}-{next(self.numbers)}")
            time.sleep(PAUSE_SECONDS)

    def publish(self, mark: str) -> None:
        """Again and again, under one id, until it is answered."""

        def insist(key: str) -> Any:
            while True:
                try:
                    return self.mq.publish(TOPIC, mark, key=key, id=mark)
                except RowMQError as error:
                    if self.stopping:
                        raise
                    self.record.trouble(error)
                    time.sleep(PAUSE_SECONDS)

        self.published(mark, insist)

    def blindly(self, mark: str) -> None:
        self.published(mark, lambda key: self.mq.publish(TOPIC, mark, key=key))

    def together(self, mark: str) -> None:
        mark = f"{mark}@{OUTBOX}"

        def do(key: str) -> Any:
            with self.mq.transaction() as tx:
                tx.execute(INSERT_EFFECT, [OUTBOX, mark])
                return tx.publish(TOPIC, mark, key=key)

        self.published(mark, do)

    def published(self, mark: str, do: Callable[[str], Any]) -> None:
        key = self.chance.choice(KEYS)
        self.record.attempt(
            Published,
            lambda: do(key),
            lambda result: {"offset": result.offset},
            partition=Partition(TOPIC, key),
            mark=mark,
        )

    def put(self, mark: str) -> None:
        queue = self.chance.choice([MAIL, PARCELS])
        self.record.attempt(Put, lambda: self.mq.queue(queue).put(mark), queue=queue, mark=mark)

    def line_up(self, mark: str) -> None:
        line = self.chance.choice(LINES)
        mark = f"{mark}@{line}"
        queue = self.mq.queue(PARCELS)
        self.record.attempt(
            Put, lambda: queue.put(mark, ordering_key=line), queue=PARCELS, mark=mark
        )

    def offer(self, mark: str) -> None:
        queue, key = self.chance.choice([MAIL, PARCELS]), self.chance.choice(OFFER_KEYS)
        self.record.attempt(
            Offered,
            lambda: self.mq.queue(queue).offer_or_update(key, mark),
            lambda answer: {"answer": answer.name},
            queue=queue,
            mark=mark,
            key=key,
        )

    def stop(self, *_: Any) -> None:
        self.stopping = True


def main() -> None:
    url, path = sys.argv[1:]
    record = Record(path)
    with rowmq.connect(url, pool_size=THREADS, retry_for=2, lock_timeout=5) as mq:
        publisher = Publisher(mq, record)
        signal.signal(signal.SIGTERM, publisher.stop)
        publisher.run()


if __name__ == "__main__":
    main()
