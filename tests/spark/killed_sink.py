"""A driver of Spark that is killed between the database's commit and Spark's own.

    python -m tests.spark.killed_sink FOLDER BATCH URL...

For each database a stream reads the files of FOLDER/in, one in each batch, and publishes their
lines. When all of them have committed batch BATCH in their databases, and before one of them has
told Spark so, everything is killed. A BATCH that never comes lets them go through.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import rowmq.spark
from rowmq.spark.datasource import RowMQDataSource
from rowmq.spark.sink.writers import StreamWriter, stream_writer

TOPIC = "t"


class KilledWriter(StreamWriter):
    """Commits, and then never says so."""

    folder: Path
    batch: int
    streams: int
    driver: int

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if batchId == self.batch:
            (self.folder / f"{self.batch} {os.getpid()}").touch()
            while len(list(self.folder.glob(f"{self.batch} *"))) < self.streams:
                time.sleep(0.01)
            os.killpg(self.driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)  # which the driver's group does not hold


class KilledSource(RowMQDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        plain = stream_writer(self.given, schema, overwrite=overwrite)
        return KilledWriter(plain.options, plain.shape)


def main(folder: Path, batch: int, urls: Sequence[str]) -> None:
    KilledWriter.folder, KilledWriter.batch = folder, batch
    KilledWriter.streams, KilledWriter.driver = len(urls), os.getpgrp()
    config = {"spark.local.dir": str(folder / "local")}
    spark = rowmq.spark.session("local[2]", name="killed", config=config)
    spark.dataSource.register(KilledSource)
    queries = []
    for number, url in enumerate(urls):
        source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
        rows = source.withColumn("key", F.substring("value", -1, 1))
        stream = rows.writeStream.format("rowmq").options(url=url, topic=TOPIC)
        stream = stream.option("checkpointLocation", str(folder / f"checkpoint {number}"))
        queries.append(stream.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
