"""A process that holds a job until it is killed.

    python -m tests.processes.holder sync|async URL QUEUE '{"max_failures": 2, ...}'

It asks for a job until it has one, and then says on its standard output which delivery it is.
"""

import asyncio
import json
import sys
import time
from typing import Any

import rowmq

ASKING_SECONDS = 0.02


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def hold(url: str, queue: str, options: dict[str, Any]) -> None:
    with rowmq.connect(url) as mq:
        say("ready")
        while True:
            with mq.queue(queue).hold(**options) as job:
                if job is not None:
                    job.tx.publish("started", job.attempt)
                    say(job.deliveries)
                    time.sleep(600)
            time.sleep(ASKING_SECONDS)


async def hold_async(url: str, queue: str, options: dict[str, Any]) -> None:
    async with await rowmq.connect_async(url) as mq:
        say("ready")
        while True:
            async with mq.queue(queue).hold(**options) as job:
                if job is not None:
                    await job.tx.publish("started", job.attempt)
                    say(job.deliveries)
                    await asyncio.sleep(600)
            await asyncio.sleep(ASKING_SECONDS)


def main() -> None:
    flavour, url, queue, options = sys.argv[1:]
    if flavour == "sync":
        hold(url, queue, json.loads(options))
    else:
        asyncio.run(hold_async(url, queue, json.loads(options)))


if __name__ == "__main__":
    main()
