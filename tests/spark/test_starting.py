"""The session that `rowmq.spark.session` starts."""

import sys

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import rowmq.spark


def test_a_session_that_is_there_is_used_as_it_is(spark: SparkSession) -> None:
    before = spark.conf.getAll
    again = rowmq.spark.session("local[1]", name="other", config={"spark.sql.ansi.enabled": "no"})
    assert again is spark
    assert again.conf.getAll == before


def test_a_session_tries_failed_tasks_again(spark: SparkSession) -> None:
    assert spark.sparkContext.master == "local[2,4]"


def test_times_are_shown_in_utc(spark: SparkSession) -> None:
    (row,) = spark.sql("SELECT CAST(timestamp_seconds(0) AS string) AS text").collect()
    assert row.text == "1970-01-01 00:00:00"


def test_workers_run_this_python(spark: SparkSession) -> None:
    def executable(numbers: pa.Array) -> pa.Array:
        return pa.array([sys.executable] * len(numbers))

    (row,) = spark.range(1).select(F.arrow_udf(executable, "string")("id")).collect()  # type: ignore[attr-defined]
    assert row[0] == sys.executable
