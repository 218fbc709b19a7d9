"""Transform: a user's function from DataFrame to DataFrame, between a topic and a topic or queue.

It is an ordinary stream: its checkpoint knows what was read, and the sink's ledger what was
published, so each message is transformed once. A stream that fails is started again, after a pause
that grows while it goes on failing.
"""

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from rowmq.errors import InvalidOption, PipelineFailed, RowMQError
from rowmq.spark.options import Given, topics_options
from rowmq.spark.pipelines.archive import check_numbers, given
from rowmq.spark.pipelines.tasks import failed, is_gone
from rowmq.spark.place import Place, place_of
from rowmq.spark.sink.options import sink_options
from rowmq.times import Duration, to_seconds

__all__ = ["TransformProgress", "TransformResult", "load_function", "transform"]

log = logging.getLogger("rowmq")

RESTARTS = 10
PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.2
"""How often a stream is looked at."""

Function = Callable[[DataFrame], DataFrame]


class TransformResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a transform did, by what its stream told of itself."""

    rows: int = 0
    """Rows that were read."""
    batches: int = 0
    restarts: int = 0


class TransformProgress(msgspec.Struct, frozen=True):
    """How far a transform is, and what it failed of last, if it is started again."""

    result: TransformResult
    error: str | None = None


def transform(
    spark: SparkSession,
    *,
    function: str | Function,
    source: Mapping[str, Any],
    sink: Mapping[str, Any],
    checkpoint: str | Path,
    url: str | None = None,
    once: bool = True,
    every: Duration = 1.0,
    restarts: int | None = RESTARTS,
    pause: Duration = PAUSE_SECONDS_FIRST,
    prefix: str | None = None,
    schema: str | None = None,
    progress: Callable[[TransformProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> TransformResult:
    """Run a function between a source and a sink, as a stream that is started again if it fails.

    `function` takes a streaming DataFrame and gives one that the sink can write, or names such a
    function as in "module:function". `source` and `sink` are options of the format "rowmq": which
    topic is read, as which group, and which topic or queue is written to. With `once` until it has
    caught up; else for ever, a batch each `every` seconds, until `stop` is set. `checkpoint` is the
    folder where the stream keeps how far it is: one for each transform.

    After so many `restarts` in a row without a batch that was done, it raises `PipelineFailed`;
    None never gives up.
    """
    place = place_of(given(url=url, prefix=prefix, schema=schema))
    reading, writing = options_of(place, source), options_of(place, sink)
    topics_options(Given(reading), stream=True)
    sink_options(Given(writing), stream=True, overwrite=False)
    if restarts is not None and restarts != 0:
        check_numbers(restarts=restarts)
    if isinstance(function, str):
        function = load_function(function)
        send_along(spark, function)
    stream = Stream(
        spark,
        function,
        reading,
        {**writing, "checkpointLocation": str(checkpoint)},
        every=None if once else to_seconds(every, name="every"),
    )
    keeper = Keeper(stream, restarts, to_seconds(pause, name="pause"), progress)
    return keeper.run(stop or threading.Event())


def options_of(place: Place, options: Mapping[str, Any]) -> dict[str, str]:
    """Options of the format, with the database's."""
    own = given(url=place.url, prefix=place.prefix, schema=place.schema)
    return own | {name: str(value) for name, value in options.items()}


class Stream:
    """A stream to be started, again and again."""

    def __init__(
        self,
        spark: SparkSession,
        function: Function,
        source: Mapping[str, str],
        sink: Mapping[str, str],
        *,
        every: float | None,
    ) -> None:
        self.spark = spark
        self.function = function
        self.source = source
        self.sink = sink
        self.every = every

    def start(self) -> Any:
        """Start it. What is wrong with the function itself is no reason to try again."""
        rows = self.spark.readStream.format("rowmq").options(**self.source).load()
        try:
            made = self.function(rows)
        except Exception as error:
            raise Refused(f"the function failed: {type(error).__name__}: {error}") from error
        if not isinstance(made, DataFrame) or not made.isStreaming:
            raise Refused(
                f"the function must give a DataFrame made from the one it was given, not a "
                f"{type(made).__name__}"
            )
        writer = made.writeStream.format("rowmq").outputMode("append").options(**self.sink)
        if self.every is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(self.every * 1000)} milliseconds")
        try:
            return writer.start()
        except AnalysisException as error:
            raise Refused(str(failed(error))) from error


class Refused(PipelineFailed):
    """What would be no better another time."""


class Keeper:
    """Starts a stream, and starts it again when it fails."""

    def __init__(
        self,
        stream: Stream,
        restarts: int | None,
        pause: float,
        progress: Callable[[TransformProgress], None] | None,
    ) -> None:
        self.stream = stream
        self.restarts = restarts
        self.pause = pause
        self.progress = progress
        self.result = TransformResult()
        self.seen: dict[int, int] = {}
        """The rows of each batch that the stream told of."""

    def run(self, stop: threading.Event) -> TransformResult:
        failures = 0
        while not stop.is_set():
            batches = len(self.seen)
            try:
                self.follow(self.stream.start(), stop)
            except Refused:
                raise
            except (PySparkException, Py4JError, OSError) as error:
                failures = 1 if len(self.seen) > batches else failures + 1
                self.pause_after(error, failures, stop)
            else:
                break
        return self.result

    def pause_after(self, error: Exception, failures: int, stop: threading.Event) -> None:
        """Wait before the next start; raise if there have been too many."""
        problem = told_by(error)
        if "ModuleNotFoundError" in str(problem):
            raise PipelineFailed(
                f"{problem}. Spark's executors have to have it: install it there, or send it along "
                f"with the setting spark.submit.pyFiles"
            ) from error
        if is_gone(self.stream.spark):
            raise PipelineFailed(f"Spark itself has ended: {problem}") from error
        if self.restarts is not None and failures > self.restarts:
            raise problem from error
        seconds = min(PAUSE_SECONDS_MAX, self.pause * 2 ** (failures - 1))
        log.warning("the stream failed and is started again in %.1f s: %s", seconds, problem)
        restarts = self.result.restarts + 1
        self.result = msgspec.structs.replace(self.result, restarts=restarts)
        self.tell(str(problem))
        stop.wait(seconds)

    def follow(self, query: Any, stop: threading.Event) -> None:
        """Wait until a stream ends, by itself or because it is told to."""
        try:
            while not query.awaitTermination(LOOK_SECONDS):
                self.note(query)
                if stop.is_set():
                    query.stop()
                    break
        finally:
            self.note(query)

    def note(self, query: Any) -> None:
        """Take down what a stream tells of its batches."""
        try:
            recent = query.recentProgress
        except (PySparkException, Py4JError, OSError):  # pragma: no cover - it died just now
            return
        before = len(self.seen)
        for batch in recent:
            if batch["numInputRows"]:
                self.seen[batch["batchId"]] = batch["numInputRows"]
        if len(self.seen) > before:
            self.result = msgspec.structs.replace(
                self.result, rows=sum(self.seen.values()), batches=len(self.seen)
            )
            self.tell(None)

    def tell(self, error: str | None) -> None:
        if self.progress is not None:
            self.progress(TransformProgress(self.result, error))


def told_by(error: Exception) -> RowMQError:
    if isinstance(error, PySparkException):
        return failed(error)
    return PipelineFailed(f"Spark gave up: {type(error).__name__}")


def load_function(target: str) -> Function:
    """The function that `module:function` names, where a module in the current directory counts."""
    module_name, _, name = target.partition(":")
    if not module_name or not name or module_name.endswith(".py") or "/" in module_name:
        raise InvalidOption(
            f"a function is named by its module and name, as in shop.streams:clean, not {target!r}"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and misses another
        raise InvalidOption(
            f"there is no module {module_name!r} in this directory, nor installed"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidOption(f"module {module_name!r} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def send_along(spark: SparkSession, function: Function) -> None:
    """Have the executors know a module of the current directory: they run in others."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or file is None or "." in module.__name__:
        return
    if Path(file).resolve().parent == Path.cwd():
        spark.addArtifacts(str(Path(file).resolve()), pyfile=True)
