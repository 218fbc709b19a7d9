"""Eight workers of a queue in a process of their own, which write down what they do.

    python -m tests.processes.jobs sync|async URL RECORD LOCK_TIMEOUT NAP

They work until the process is ended; each sleeps for a while over its first job. The record is
there when they begin. A line of it is what was done, the job, how it was delivered, and by whom.
That a job is handled is written down before it is acked, and again after, so nothing is done
unseen, even by one who is killed.
"""

import asyncio
import os
import sys
import threading
import time
from typing import Any

import rowmq
from rowmq.errors import StaleLease

__all__ = ["QUEUE", "WORKERS"]

QUEUE = "jobs"
WORKERS = 8
HANDLING_SECONDS = 0.005


class Record:
    """A file that lines are appended to."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, act: str, job: Any, worker: int) -> None:
        line = f"{act} {job.payload} {job.delivery_type.name} {os.getpid()}.{worker}\n"
        os.write(self.file, line.encode())


def work(mq: rowmq.RowMQ, record: Record, worker: int, lock_timeout: float, seconds: float) -> None:
    queue = mq.queue(QUEUE, lock_timeout=lock_timeout)
    size = 1 + worker % 3
    while True:
        jobs = queue.try_poll_many(size)
        for job in jobs:
            record.write("handled", job, worker)
            time.sleep(seconds)
            seconds = HANDLING_SECONDS
            try:
                job.ack()
            except StaleLease:
                record.write("stale", job, worker)
            else:
                record.write("acked", job, worker)
        if not jobs:
            time.sleep(0.01)


async def work_async(
    mq: rowmq.AsyncRowMQ, record: Record, worker: int, lock_timeout: float, seconds: float
) -> None:
    queue = mq.queue(QUEUE, lock_timeout=lock_timeout)
    size = 1 + worker % 3
    while True:
        jobs = await queue.try_poll_many(size)
        for job in jobs:
            record.write("handled", job, worker)
            await asyncio.sleep(seconds)
            seconds = HANDLING_SECONDS
            try:
                await job.ack()
            except StaleLease:
                record.write("stale", job, worker)
            else:
                record.write("acked", job, worker)
        if not jobs:
            await asyncio.sleep(0.01)


async def all_async(url: str, path: str, lock_timeout: float, nap: float) -> None:
    async with await rowmq.connect_async(url) as mq:
        record = Record(path)
        await asyncio.gather(
            *(work_async(mq, record, worker, lock_timeout, nap) for worker in range(WORKERS))
        )


def main() -> None:
    flavour, url, path, *numbers = sys.argv[1:]
    lock_timeout, nap = map(float, numbers)
    if flavour == "async":
        asyncio.run(all_async(url, path, lock_timeout, nap))
        return
    with rowmq.connect(url) as mq:
        record = Record(path)
        threads = [
            threading.Thread(target=work, args=(mq, record, worker, lock_timeout, nap))
            for worker in range(WORKERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
