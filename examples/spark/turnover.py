"""What customers ordered, by Spark: python turnover.py [MASTER]

MASTER is where Spark runs: local[*] if nothing is said, spark://host:7077 for a cluster, or
sc://host:15002 for a Spark Connect server. The rest of the program is the same.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

import rowmq
import rowmq.spark
from rowmq.spark import from_value, split_bad

URL = os.environ.get("DATABASE_URL", f"sqlite:///{Path.cwd()}/shop.db")
CHECKPOINT = f"{Path.cwd()}/checkpoints/large"


@dataclass
class Order:
    id: int
    total: float


def publish() -> None:
    """Some orders, of two customers; one is no order."""
    with rowmq.connect(URL) as mq:
        for number in range(1, 7):
            order = {"id": number, "total": 10.0 * number}
            mq.publish("orders", order, key=f"customer-{number % 2}", id=f"order-{number}")
        mq.publish("orders", {"id": "seven"}, key="customer-1", id="order-7")


def sum_up(spark: SparkSession) -> None:
    """A batch: read, parse, count, and write to another topic, once for this version."""
    orders = spark.read.format("rowmq").options(url=URL, topic="orders").load()
    good, bad = split_bad(from_value(orders, Order, into="order"))
    turnover = good.groupBy("key").agg(F.struct(F.sum("order.total").alias("total")).alias("value"))
    writer = turnover.write.format("rowmq").mode("append")
    writer.options(url=URL, topic="turnover", txnAppId="turnover", txnVersion="1").save()
    print(f"{good.count()} orders, {bad.count()} that are none")


def follow(spark: SparkSession) -> None:
    """A stream: orders over 45 become jobs, each once, however often this is killed and started."""
    orders = spark.readStream.format("rowmq").options(url=URL, topic="orders", group="large").load()
    large = from_value(orders, Order, into="order").where("order.total > 45")
    jobs = large.select(F.col("order").alias("value"), F.col("id").alias("key"))
    writer = jobs.writeStream.format("rowmq").options(url=URL, queue="to-check")
    writer = writer.option("checkpointLocation", CHECKPOINT)
    writer.trigger(availableNow=True).start().awaitTermination()


def main(master: str) -> None:
    publish()
    spark = rowmq.spark.session(master, name="turnover")
    sum_up(spark)
    follow(spark)
    with rowmq.connect(URL) as mq:
        for message in mq.read("turnover"):
            print(f"{message.key}: {message.payload['total']:.2f}")
        print(f"{mq.queue('to-check').counts()['pending']} to check")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["local[*]"])
