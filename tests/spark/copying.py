"""A program that copies the topic `orders` to `copy`, by one stream for each database, on a cluster
of executors that are processes of their own: python -m tests.spark.copying FOLDER URL...
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import rowmq.spark

MASTER = "local-cluster[2,1,1024]"


def start(spark: SparkSession, url: str, checkpoint: Path) -> StreamingQuery:
    rows = (
        spark.readStream.format("rowmq")
        .option("url", url)
        .option("topic", "orders")
        .option("group", "copy")
        .option("maxOffsetsPerTrigger", "100")
        .option("minPartitions", "2")
        .load()
    )
    writer = rows.select("key", "value").writeStream.format("rowmq").option("url", url)
    writer = writer.option("topic", "copy").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def main() -> None:
    folder, *urls = sys.argv[1:]
    config = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.sql.shuffle.partitions": "1",
    }
    spark = rowmq.spark.session(MASTER, config=config)
    queries = [
        start(spark, url, Path(folder) / f"checkpoint-{place}") for place, url in enumerate(urls)
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
