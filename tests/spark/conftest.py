"""One Spark for all tests: it takes as long to start as many of them take together."""

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

import pytest
from pyspark.sql import SparkSession

import rowmq.spark


class WithoutPandas(MetaPathFinder):
    """Clients of Spark Connect need pandas, so it is installed; nothing else may need it."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not part of the extra", name=fullname)


sys.meta_path.insert(0, WithoutPandas())

CONFIG = {
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": "tests.spark.daemon",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stopTimeout": "60s",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two threads and retries, which knows the format "rowmq".

    There is one in a process, since a JVM has no more. What ends executors or drivers needs a
    process of its own.
    """
    folder = tmp_path_factory.mktemp("spark")
    places = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = rowmq.spark.session("local[2]", name="tests", config=CONFIG | places)
    yield session
    session.stop()
