"""Work on Spark's executors that is no query: a task for each piece of it, and what they tell."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from rowmq import errors
from rowmq.errors import DataLoss, InvalidInput, PipelineFailed, RowMQError

__all__ = ["cores_of", "failed", "is_gone", "run_tasks"]

T = TypeVar("T")
Told = TypeVar("Told")

OURS = "rowmq.errors."
RAISED = re.compile(r"(?!org\.|java\.|SQLSTATE)[A-Za-z_][\w.]*: \S")
"""The last line of a traceback."""

HOPELESS = (DataLoss, InvalidInput)
"""What would be no better if the task were tried again."""


def run_tasks(
    spark: SparkSession, work: Callable[[T], Iterator[Told]], pieces: Sequence[T], told: type[Told]
) -> list[Told]:
    """Do the work on each piece, in a task of its own, and give all that was told.

    A task that fails is tried again, as Spark is set up to; what a failed one told is not given.
    """
    if not pieces:
        return []
    tasks = list(pieces)

    def do(number: int) -> list[str]:
        return list(answers(work, tasks[number]))

    # Not what the optimizer may run twice, or not at all.
    doing = F.udf(do, "array<string>", useArrow=False).asNondeterministic()
    frame = spark.range(0, len(tasks), 1, len(tasks)).select(doing("id").alias("told"))
    try:
        rows = frame.collect()
    except PySparkException as error:
        raise failed(error) from error
    except (Py4JError, OSError) as error:
        raise PipelineFailed(f"Spark itself has ended: {type(error).__name__}") from error
    found = [msgspec.json.decode(text, type=Answer) for row in rows for text in row["told"]]
    for answer in found:
        if answer.error is not None:
            raise error_named(*answer.error)
    return [msgspec.convert(answer.told, type=told, str_keys=True) for answer in found]


class Answer(msgspec.Struct):
    """What a task tells: something, or why it cannot go on."""

    told: Any = None
    error: tuple[str, str] | None = None


def answers(work: Callable[[T], Iterator[Any]], piece: T) -> Iterator[str]:
    try:
        for told in work(piece):
            yield msgspec.json.encode(Answer(told=told)).decode()
    except HOPELESS as error:
        yield msgspec.json.encode(Answer(error=(type(error).__name__, str(error)))).decode()


def error_named(name: str, message: str) -> RowMQError:
    """An error that a task told of."""
    known: type[RowMQError] = getattr(errors, name, PipelineFailed)
    return known(message)


def failed(error: PySparkException) -> PipelineFailed:
    """Why Spark gave up, in a sentence: what Python raised, or else what Spark says first."""
    text = error.getMessage() or str(error)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.match(line)]
    ours = [line for line in raised if line.startswith(OURS)]
    found = (ours or raised or lines[:1] or [type(error).__name__])[-1]
    return PipelineFailed(f"Spark gave up: {found.strip().removeprefix(OURS)}")


def cores_of(spark: SparkSession) -> int:
    """How many tasks can run at a time."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # Spark Connect does not tell
        return os.cpu_count() or 1


def is_gone(spark: SparkSession) -> bool:
    """Whether Spark has ended: then nothing can be done with it any more."""
    try:
        spark.range(1).count()
    except (PySparkException, Py4JError, OSError, AttributeError):
        return True
    return False
