"""Functions that tests transform with; one of them fails where a file says so."""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

__all__ = ["NOT_A_FUNCTION", "SHAKY", "doubled", "no_frame", "shaky"]

NOT_A_FUNCTION = 3
SHAKY = "ROWMQ_TEST_SHAKY"
"""Names the variable with the folder: while it has a file, tasks take it away and fail."""


def doubled(rows: DataFrame) -> DataFrame:
    number = F.get_json_object(F.col("value").cast("string"), "$.n").cast("bigint")
    return rows.select("key", "id", F.struct((number * 2).alias("n")).alias("value"))


def shaky(rows: DataFrame) -> DataFrame:
    folder = Path(os.environ[SHAKY])

    def pass_on(key: str) -> str:
        for file in folder.iterdir():
            file.unlink()
            raise RuntimeError("it shook")
        return key

    return doubled(rows).withColumn("key", F.udf(pass_on, "string", useArrow=False)("key"))


def no_frame(_: DataFrame) -> int:
    return 7
