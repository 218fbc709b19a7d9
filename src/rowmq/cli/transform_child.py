"""The process in which a transform runs: see `pipeline_transform`."""

import os
import sys
import threading

import msgspec

from rowmq.cli.failing import Code, redacted
from rowmq.cli.pipeline_transform import Task, Told
from rowmq.cli.sparking import Sparking, stopping
from rowmq.errors import ConfigurationError, DataLoss, InvalidInput, RowMQError

__all__ = ["main"]

HOPELESS = (InvalidInput, ConfigurationError, DataLoss)
"""What would be no better another time."""


def main() -> int:
    """Do what stdin says, and tell of it on stdout."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    with stopping() as stop:
        threading.Thread(target=wait_for_parent, args=(stop,), daemon=True).start()
        try:
            told = run(task, stop)
        except HOPELESS as error:
            tell(Told(error=redacted(f"{type(error).__name__}: {error}")))
            return Code.USAGE
        except RowMQError as error:
            if is_refused(error):
                tell(Told(error=redacted(str(error))))
                return Code.USAGE
            tell(Told(problem=redacted(str(error))))
            return Code.ERROR
    tell(told)
    return Code.OK


def is_refused(error: RowMQError) -> bool:
    """Whether it is the function, or where it writes to, that is wrong."""
    from rowmq.spark.pipelines.transform import Refused  # noqa: PLC0415 - only here

    return isinstance(error, Refused)


def run(task: Task, stop: threading.Event) -> Told:
    from rowmq.spark import pipelines  # noqa: PLC0415 - only here

    def note(progress: pipelines.TransformProgress) -> None:
        found = msgspec.structs.asdict(progress.result)
        tell(Told(**found, problem=progress.error and redacted(progress.error)))

    options = dict(task.options)
    with Sparking(task.master, task.conf).session("rowmq transform", quiet=True) as spark:
        result = pipelines.transform(
            spark,
            once=task.every is None,
            every=task.every or 0.0,
            progress=note,
            stop=stop,
            **options,
        )
    return Told(**msgspec.structs.asdict(result), done=True)


def wait_for_parent(stop: threading.Event) -> None:
    """When its stdin ends, the parent is gone, or wants it to stop."""
    while os.read(sys.stdin.fileno(), 1024):  # not by a buffer, whose lock would outlive us
        pass
    stop.set()


def tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
