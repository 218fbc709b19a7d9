"""What `rowmq demo --spark` adds: a lake of all that happened, and a report about it.

Spark takes as long to start as the shop is open, so it is started beside it.
"""

import contextlib
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import rowmq
from rowmq.cli.demo_ledger import Story
from rowmq.cli.showing import plural
from rowmq.errors import PipelineFailed, RowMQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rowmq.spark.pipelines import Report

__all__ = ["Archivist", "show_report"]

MASTER = "local[2]"
SETTINGS = {
    "spark.driver.memory": "1g",
    # Some thousand rows are counted once: they need few tasks, and no code that is made for more.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}

FINDINGS_MAX = 3
START_SECONDS = 300.0
"""How long Spark may take to start."""


class Archivist:
    """Archives the demo's database to a lake beside it."""

    def __init__(self, folder: Path, url: str) -> None:
        """Raises, before anything is begun, if Spark or a Java for it is missing."""
        from rowmq.spark import pipelines  # noqa: PLC0415 - only this needs Spark
        from rowmq.spark.java import java_home  # noqa: PLC0415 - the same

        java_home()
        self.lake = folder / "lake"
        self.page = folder / "report.html"
        self._url = url
        self._pipelines = pipelines
        self._session: Future[SparkSession] = Future()
        threading.Thread(target=self._start, name="spark", daemon=True).start()

    def _start(self) -> None:
        from rowmq.spark import session  # noqa: PLC0415 - only this needs Spark

        try:
            self._session.set_result(session(MASTER, name="rowmq demo", config=SETTINGS))
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for it
            self._session.set_exception(error)

    @property
    def spark(self) -> "SparkSession":
        try:
            return self._session.result(START_SECONDS)
        except RowMQError:
            raise
        except Exception as error:
            raise PipelineFailed(f"Spark did not start: {error}") from error

    def archive(self) -> str:
        """Archive what is new; what that was, in words."""
        done = self._pipelines.archive(self.spark, url=self._url, lake=self.lake)
        counts = {"message": done.messages, "dead letter": done.dead_letters, "job": done.jobs}
        told = [plural(count, noun) for noun, count in counts.items() if count]
        return "Spark archives to a lake: " + (", ".join(told) or "nothing is new")

    def report(self) -> "Report":
        """Write the report."""
        return self._pipelines.report(
            self.spark, url=self._url, lake=self.lake, out=self.page, title="The demo's shop"
        )

    def promises(self, mq: rowmq.RowMQ, story: Story) -> dict[str, bool]:
        """What was promised of the lake, and whether it held."""
        messages = self._rows("messages", "topic", "id")
        orders = [row["id"] for row in messages if row["topic"] == "orders"]
        letters = {row["id"] for row in self._rows("dead_letters", "id")}
        jobs = [(row["queue"], row["id"]) for row in self._rows("jobs", "queue", "id")]
        finished = {
            (name, job.id)
            for name in ("receipts", "ticks")
            for job in mq.queue(name).archive(limit=10_000)
        }
        return {
            "every order and every finished job is in the lake, once": (
                sorted(orders) == sorted(str(order.id) for order in mq.read("orders", limit=10_000))
                and len(jobs) == len(set(jobs))
                and set(jobs) == finished
            ),
            "so are the dead letters, which the database has let go of": letters == story.dead,
        }

    def _rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        found = self._pipelines.read_table(self.spark, self.lake, table)
        return [] if found is None else [row.asDict() for row in found.select(*columns).collect()]

    def stop(self) -> None:
        """Stop Spark, if it has started; else it ends with this process."""
        if self._session.done() and self._session.exception() is None:
            with contextlib.suppress(Exception):  # it may be gone already
                self._session.result().stop()


def show_report(console: Console, report: "Report", lake: Path) -> None:
    """Say in short what the report says, and where it is."""
    console.print("\n[bold]What Spark says[/], in its report:")
    for line in (*told(report), *report.findings[:FINDINGS_MAX]):
        console.print(Text(f"   {line}"), soft_wrap=True)
    for what, where in (
        ("report", report.page.as_uri()),
        ("figures", str(report.figures)),
        ("lake", str(lake)),
    ):
        console.print(Text.assemble(f"   {what:<8} ", (where, "cyan")), soft_wrap=True)


def told(report: "Report") -> tuple[str, str]:
    """The totals, in words."""
    totals = report.totals
    topics, queues = plural(totals.topics, "topic"), plural(totals.queues, "queue")
    published, dead = (
        plural(totals.published, "message"),
        plural(totals.dead_letters, "dead letter"),
    )
    return (
        f"{published} in {topics}, {dead}",
        f"{plural(totals.completed, 'job')} completed in {queues}, {totals.failed} failed",
    )
