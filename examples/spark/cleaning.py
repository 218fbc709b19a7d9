"""A function for `rowmq pipeline transform`: from orders to those that can be read as such."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from rowmq.spark import from_value, split_bad


@dataclass
class Order:
    id: int
    total: float


def clean(orders: DataFrame) -> DataFrame:
    """From a topic's columns to those of another one; what is no order is left out."""
    good, _ = split_bad(from_value(orders, Order, into="order"))
    return good.selectExpr("key", "id", "order AS value")
