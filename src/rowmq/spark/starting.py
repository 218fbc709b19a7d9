"""Starts Spark, set up for RowMQ: a Java is found, workers run this Python, and logs are quiet.

A session is nothing special: any other one that the data source is registered with does as well.
"""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rowmq.errors import InvalidOption
from rowmq.spark.java import provide_java

__all__ = ["register", "session"]

TASK_FAILURES_MAX = 4
"""How often a task may fail: what a cluster allows. A local Spark allows none by itself."""

LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

EVERYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}

LOCALLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def register(spark: SparkSession) -> None:
    """Make the format "rowmq" known to a session, also one of Spark Connect."""
    from rowmq.spark.datasource import RowMQDataSource  # noqa: PLC0415 - it imports databases

    spark.dataSource.register(RowMQDataSource)


def session(
    master: str = "local[*]", *, name: str = "rowmq", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session that knows the format "rowmq".

    `master` is one of Spark's, or the `sc://` address of a Spark Connect server. `config` adds to
    the settings, and replaces those that are made here. A session that is there already is used as
    it is: it gets to know the format, and nothing else is changed.

    Raises `JavaNotFound` if Spark is to be started and there is no Java for it.
    """
    if not isinstance(master, str) or not master:
        raise InvalidOption(f"master must be a master of Spark, as in local[*], not {master!r}")
    spark = present() or started(master, name, dict(config or {}))
    register(spark)
    return spark


def present() -> SparkSession | None:
    """The session that is there already."""
    try:
        return SparkSession.active()
    except PySparkException:
        return None


def started(master: str, name: str, config: Mapping[str, str]) -> SparkSession:
    """A new session. The environment is what Spark's own scripts read, so it is set there."""
    if master.startswith("sc://"):
        builder = SparkSession.builder.remote(master)
    else:
        provide_java()
        provide_python(master)
        builder = SparkSession.builder.master(with_retries(master))
    builder = builder.appName(name)
    for key, value in settings(master, config).items():
        builder = builder.config(key, value)
    before = children()
    try:
        return builder.getOrCreate()
    except (KeyboardInterrupt, SystemExit):
        # A JVM that is interrupted while it starts would never learn that nobody waits for it.
        for pid in children() - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise


def children() -> set[int]:
    """The processes that this one has started, where Linux tells of them."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found.update(map(int, thread.read_text().split()))
    return found


def provide_python(master: str) -> None:
    """Have Spark run this Python, which has our packages, where that is on the same machine."""
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def settings(master: str, config: Mapping[str, str]) -> dict[str, str]:
    """What a session is started with; the caller's word is the last."""
    if master.startswith("sc://"):
        return {"spark.sql.session.timeZone": "UTC", **config}
    made = EVERYWHERE | (LOCALLY if is_local(master) else {})
    if not has_log_settings():
        quiet = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
        config = {**config, JAVA_OPTIONS: f"{quiet} {config.get(JAVA_OPTIONS, '')}".strip()}
    return made | dict(config)


def has_log_settings() -> bool:
    """Whether somebody has set up what this Spark logs."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (Path(home) / "conf" if home else None)
    return folder is not None and any(Path(folder).glob("log4j2.[pxyj]*[!e]"))


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine: `local`, `local[2]`, `local-cluster[...]`."""
    return re.match(r"local\b", master) is not None


def with_retries(master: str) -> str:
    """A local master that tries failed tasks again, unless it says itself how often."""
    simple = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*\])?", master)
    return f"local[{simple[1] or 1},{TASK_FAILURES_MAX}]" if simple else master
