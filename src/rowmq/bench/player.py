"""RowMQ's own player: `python -m rowmq.bench.player SPEC`."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import rowmq
from rowmq.bench import handling, sending
from rowmq.bench.playing import Spec, Stage, spec_of
from rowmq.worker.looping import run_loop

__all__ = ["main"]


def looped(play: Callable[[Spec, Stage], Any], spec: Spec, stage: Stage) -> None:
    run_loop(play(spec, stage))


TASKS: dict[str, Callable[[Spec, Stage], None]] = {
    "publish": sending.send,
    "pace": lambda spec, stage: asyncio.run(sending.pace(spec, stage)),
    "consume": partial(looped, handling.consume),
    "churn": partial(looped, handling.churn),
    "latency": partial(looped, handling.latency),
    "idle": partial(looped, handling.idle),
}


def main() -> None:
    spec = spec_of(sys.argv)
    TASKS[spec.task](spec, Stage("rowmq", rowmq.__version__))


if __name__ == "__main__":
    main()
