"""How the Spark source and sink compare with Spark's own JDBC, in one run on this machine.

Both read the same table of a million messages of 200 bytes on PostgreSQL, in eight partitions, and
write half a million from two tasks. JDBC has Debian's driver, a fetch size of 10,000, batches of
10,000 and rewritten inserts: its fastest. It writes into a table like that of messages, with the
same indexes, and into one without any; it is neither atomic nor ordered, and a retried task writes
twice. Look at the ratios: absolute figures do not travel.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pyspark
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import rowmq
import rowmq.spark
from tests.servers import PostgresServer
from tests.servers.packages import unpack

PARTITIONS = 8
PAYLOAD_BYTES = 200
FETCH = 10_000

FILL = """
    INSERT INTO rowmq_messages
        (partition_id, message_offset, published_at, encoding, message_id, headers, payload)
    SELECT p.id, n, 1700000000000000 + n, 0, gen_random_uuid()::text, NULL,
           decode(repeat(lpad(to_hex(n), 8, '0'), %(bytes)s / 4), 'hex')
    FROM rowmq_partitions p CROSS JOIN generate_series(1, %(each)s) AS n
    WHERE p.topic = 'bench' ORDER BY p.id, n"""


class Subject(NamedTuple):
    """What is measured, and against what."""

    name: str
    rows: int
    ours: Callable[[], None]
    theirs: Callable[[], None]


class Bench:
    """A session, a server, and what is read and written there."""

    def __init__(self, spark: SparkSession, url: str, rows: int) -> None:
        self.spark = spark
        self.url = url
        self.rows = rows
        parts = urlsplit(url)
        self.jdbc = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}"
        self.login = {
            "user": str(parts.username),
            "password": str(parts.password),
            "driver": "org.postgresql.Driver",
        }
        self.version = 0

    def fill(self) -> None:
        """A topic of as many partitions as Spark reads at a time, and tables for JDBC."""
        each = self.rows // PARTITIONS
        with rowmq.connect(self.url) as mq:
            mq.migrate()
            for number in range(PARTITIONS):
                mq.publish("bench", b"", key=f"k{number}")
        with psycopg.connect(self.url, autocommit=True) as connection:
            # The servers of the tests check passwords more quickly than the JDBC driver allows.
            role, password = sql.Identifier(self.login["user"]), sql.Literal(self.login["password"])
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, password))
            connection.execute("DELETE FROM rowmq_messages")
            connection.execute(FILL, {"bytes": PAYLOAD_BYTES, "each": each})
            connection.execute(
                "UPDATE rowmq_partitions SET next_offset = %s, largest_bytes = %s",
                (each + 1, PAYLOAD_BYTES),
            )
            connection.execute("CREATE TABLE indexed (LIKE rowmq_messages INCLUDING ALL)")
            connection.execute("CREATE TABLE plain (LIKE rowmq_messages)")
            connection.execute("VACUUM ANALYZE rowmq_messages")

    # --- reading ----------------------------------------------------------------------------------

    def read(self, columns: str | None = None) -> None:
        reader = self.spark.read.format("rowmq").option("url", self.url).option("topic", "bench")
        reader = reader.option("minPartitions", PARTITIONS)
        use((reader if columns is None else reader.schema(columns)).load())

    def read_jdbc(self, *columns: str) -> None:
        with psycopg.connect(self.url) as connection:
            ids = connection.execute("SELECT id FROM rowmq_partitions WHERE topic = 'bench'")
            conditions = [f"partition_id = {id}" for (id,) in ids]
        found = self.spark.read.jdbc(
            self.jdbc,
            "rowmq_messages",
            predicates=conditions,
            properties=self.login | {"fetchsize": str(FETCH)},
        )
        use(found.select(*columns) if columns else found)

    # --- writing ----------------------------------------------------------------------------------

    def rows_to_write(self) -> DataFrame:
        numbers = self.spark.range(0, self.rows // 2, numPartitions=2)
        return numbers.select(
            F.concat(F.lit("k"), F.col("id") % PARTITIONS).alias("key"),
            F.repeat(F.lit("x"), PAYLOAD_BYTES).cast("binary").alias("value"),
        )

    def write(self) -> None:
        self.version += 1
        (
            self.rows_to_write()
            .write.format("rowmq")
            .option("url", self.url)
            .option("topic", "written")
            .option("txnAppId", "bench")
            .option("txnVersion", str(self.version))
            .mode("append")
            .save()
        )

    def write_jdbc(self, table: str) -> None:
        self.version += 1
        number = F.monotonically_increasing_id() + self.version * 10**12
        rows = self.rows_to_write().select(
            F.substring("key", 2, 9).cast("long").alias("partition_id"),
            number.alias("message_offset"),
            F.lit(0).cast("long").alias("published_at"),
            F.lit(0).cast("short").alias("encoding"),
            F.uuid().alias("message_id"),
            F.lit(None).cast("string").alias("headers"),
            F.col("value").alias("payload"),
        )
        settings = self.login | {"batchsize": str(FETCH), "isolationLevel": "READ_COMMITTED"}
        url = f"{self.jdbc}?reWriteBatchedInserts=true"
        rows.write.jdbc(url, table, mode="append", properties=settings)

    def subjects(self) -> list[Subject]:
        half = self.rows // 2
        return [
            Subject("read, all columns", self.rows, self.read, self.read_jdbc),
            Subject(
                "read, key and value",
                self.rows,
                lambda: self.read("key string, value binary"),
                lambda: self.read_jdbc("partition_id", "payload"),
            ),
            Subject(
                "read, offset and id",
                self.rows,
                lambda: self.read("offset bigint, id string"),
                lambda: self.read_jdbc("message_offset", "message_id"),
            ),
            Subject("write, same indexes", half, self.write, lambda: self.write_jdbc("indexed")),
            Subject(
                "write, JDBC without indexes", half, self.write, lambda: self.write_jdbc("plain")
            ),
        ]


def use(rows: DataFrame) -> None:
    """Have Spark produce all rows, and keep none."""
    rows.write.format("noop").mode("overwrite").save()


def measure(subject: Subject, repeat: int) -> dict[str, Any]:
    """Rows a second of both, in turns; the first turn warms up and is not counted."""
    rates: dict[str, list[float]] = {"rowmq": [], "jdbc": []}
    for turn in range(repeat + 1):
        for kind, run in (("rowmq", subject.ours), ("jdbc", subject.theirs)):
            started = time.perf_counter()
            run()
            if turn:
                rates[kind].append(subject.rows / (time.perf_counter() - started))
    middle = {kind: statistics.median(values) for kind, values in rates.items()}
    return {
        "scenario": subject.name,
        "ratio": middle["rowmq"] / middle["jdbc"],
        "per_second": middle,
        "spread": {kind: [min(values), max(values)] for kind, values in rates.items()},
    }


def show(console: Console, results: list[dict[str, Any]], settings: dict[str, str]) -> None:
    table = Table(title="Spark: ratio to its own JDBC, and rows a second (median, least to most)")
    for column in ("scenario", "ratio", "RowMQ", "JDBC"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for result in results:
        rates = [
            f"{result['per_second'][kind]:,.0f} ({least:,.0f} to {most:,.0f})"
            for kind, (least, most) in result["spread"].items()
        ]
        table.add_row(result["scenario"], f"{result['ratio']:.2f}", *rates)
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in settings.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many messages are read")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--only", default="", help="what the scenarios' names begin with")
    options = parser.parse_args()
    console = Console(stderr=options.json, highlight=False)
    # What the driver logs in with is a package of its own, which it does not ask for.
    java = unpack("libpostgresql-jdbc-java", "libscram-java") / "usr/share/java"
    driver = java / "postgresql.jar"
    jars = sorted({str(jar.resolve()) for jar in java.glob("*.jar")})
    with PostgresServer(fsync="on", full_page_writes="on", max_wal_size="4GB") as server:
        spark = rowmq.spark.session("local[2]", name="bench", config={"spark.jars": ",".join(jars)})
        bench = Bench(spark, server.url, options.rows)
        with console.status("filling the topic"):
            bench.fill()
        results = []
        with Progress(console=console, transient=True) as progress:
            chosen = [one for one in bench.subjects() if one.name.startswith(options.only)]
            task = progress.add_task("measuring", total=len(chosen))
            for subject in chosen:
                results.append(measure(subject, options.repeat))
                progress.advance(task)
        settings = {
            "RowMQ": rowmq.__version__,
            "Spark": pyspark.__version__,
            "Python": platform.python_version(),
            "cores": str(os.cpu_count()),
            "JDBC driver": Path(driver).resolve().name,
            "partitions": str(PARTITIONS),
            "fetch size": f"{FETCH:,}",
            "payload bytes": str(PAYLOAD_BYTES),
        }
        spark.stop()
    if options.json:
        json.dump({"settings": settings, "results": results}, sys.stdout, indent=2)
    else:
        show(console, results, settings)


if __name__ == "__main__":
    main()
