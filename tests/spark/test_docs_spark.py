"""The examples of docs/spark.md run one after the other, as they stand there, and print what they
say; so do the programs that it shows.
"""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import rowmq
from rowmq.spark import pipelines
from rowmq.spark.jobs import columns_of
from rowmq.spark.options import JOBS, READING
from rowmq.spark.sink.options import WRITING
from rowmq.spark.sink.shape import TO_QUEUE, TO_TOPIC
from rowmq.spark.source.reading import COLUMNS, EXTRA
from tests.databases import Databases

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "spark"
PAGE = ROOT / "docs" / "spark.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TURNOVER = [
    "6 orders, 1 that are none",
    "customer-0: 120.00",
    "customer-1: 90.00",
    "2 to check",
]
SHORT = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""The README's example, which takes the URL from elsewhere."""
PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


def test_examples_of_the_page_run_and_print_what_they_say(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert spark is not None, "which the page's own session() then finds"
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    examples = list(FENCE.finditer(page))
    assert examples
    for example in examples:
        line = page.count("\n", 0, example.start(1))
        code = compile("\n" * line + example[1], str(PAGE), "exec")
        exec(code, names)  # noqa: S102 - our own page
        said = iter(capsys.readouterr().out.splitlines())
        for promised in PRINTED.findall(example[1]):
            assert promised in said, f"{PAGE.name}, after line {line + 1}"
    (short,) = SHORT.findall((ROOT / "README.md").read_text())
    exec(short, names)  # noqa: S102 - our own, too
    assert names["orders"].isStreaming


def test_the_example_is_the_same_program_however_often_it_is_run(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed and started again it would be no other: nothing is published twice."""
    assert spark is not None, "which the program's own session() then finds"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setattr("sys.argv", ["turnover.py"])
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "turnover.py"), run_name="__main__")
        assert capsys.readouterr().out.splitlines() == TURNOVER


def test_the_function_of_the_example_runs_in_a_pipeline(
    spark: SparkSession, databases: Databases, tmp_path: Path
) -> None:
    """What cannot be read as an order is left out."""
    url = databases.get("sqlite").create().url
    with rowmq.connect(url) as mq:
        mq.publish("orders", {"id": 1, "total": 9.5}, key="ann", id="order-1")
        mq.publish("orders", "no order", key="ann", id="order-2")
        done = pipelines.transform(
            spark,
            url=url,
            function=runpy.run_path(str(EXAMPLES / "cleaning.py"))["clean"],
            source={"topic": "orders", "group": "cleaning"},
            sink={"topic": "clean"},
            checkpoint=tmp_path / "checkpoint",
            restarts=0,
        )
        assert done.rows == 2
        found = mq.read("clean")
    assert [(message.key, message.id) for message in found] == [("ann", "order-1")]
    assert found[0].payload == {"id": 1, "total": 9.5}


def test_the_page_tells_of_every_option_and_column() -> None:
    page = PAGE.read_text()
    columns = [field.name for struct in (COLUMNS, EXTRA, *tables()) for field in struct]
    written = [*TO_TOPIC, *TO_QUEUE]
    for name in {*READING, *WRITING, *columns, *written}:
        assert f"`{name}`" in page, name


def tables() -> list[StructType]:
    return [columns_of(what) for what in JOBS]
