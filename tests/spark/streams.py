"""Functions that tests transform with."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

__all__ = ["NOT_A_FUNCTION", "doubled", "no_frame"]

NOT_A_FUNCTION = 3


def doubled(rows: DataFrame) -> DataFrame:
    number = F.get_json_object(F.col("value").cast("string"), "$.n").cast("bigint")
    return rows.select("key", "id", F.struct((number * 2).alias("n")).alias("value"))


def no_frame(_: DataFrame) -> int:
    return 7
