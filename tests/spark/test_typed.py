"""One model serves producer, worker and Spark, and a row that does not parse ends nothing."""

import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import rowmq.spark
from rowmq.codec import encode
from rowmq.errors import InvalidOption
from rowmq.spark import from_value, schema_of, split_bad
from rowmq.testing import TestApp
from tests.unit.spark import shapes
from tests.unit.spark.shapes import Customer, Everything, Line, Sku, everything


@dataclass
class Order:
    number: int
    lines: list[Line]
    note: str | None = None


def payloads(spark: SparkSession, *values: bytes | None) -> DataFrame:
    return spark.createDataFrame(list(enumerate(values)), "nth int, value binary")


def collect(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in df.collect()]


def customer() -> Customer:
    return Customer(
        id=uuid.UUID(int=7),
        name="Ann",
        born=date(2000, 2, 29),
        home=shapes.Address(street="s", zip=8000),
        colour=shapes.Colour.BLUE,
        since=datetime(2026, 1, 1, tzinfo=UTC),
        page=pydantic.HttpUrl("https://example.org/"),
    )


ORDER = Order(1, [Line(Sku("a")), Line(Sku("b"))], "hello")


def test_a_row_is_what_the_model_holds(spark: SparkSession) -> None:
    df = from_value(payloads(spark, encode(everything()).data), Everything)
    (row,) = collect(df.drop("nth", "value", "_error"))
    moment = row.pop("moment")
    assert moment.astimezone(UTC) == shapes.ROW["moment"]
    assert row == {name: value for name, value in shapes.ROW.items() if name != "moment"}
    found = {field.name: field.dataType.simpleString() for field in df.schema.fields[2:-1]}
    assert found == shapes.SCHEMA


@pytest.mark.parametrize(
    "made", [ORDER, customer(), shapes.Tagged(3, "n")], ids=["dataclass", "pydantic", "msgspec"]
)
def test_one_model_serves_producer_worker_and_spark(spark: SparkSession, made: Any) -> None:
    model = type(made)
    app, seen = rowmq.App("postgresql://nobody@nowhere.invalid/none"), []

    def handle(order: Any) -> None:
        seen.append(order)

    handle.__annotations__["order"] = model

    for topic in ("orders", "copies"):
        app.subscriber(topic, group="workers", name=topic)(handle)

    with TestApp(app) as t:
        t.publish("orders", made, key="k")
        df = spark.read.format("rowmq").options(url=t.url, topic="orders").load()
        typed = from_value(df, model, into="order")
        (row,) = typed.collect()
        assert row["_error"] is None
        assert row["order"].asDict(recursive=True).keys() == set(schema_of(model).names)
        copies = split_bad(typed)[0].select("key", F.col("order").alias("value"))
        copies.write.format("rowmq").options(url=t.url, topic="copies").mode("append").save()
        t.drain()
    assert seen == [made, made]


def test_rows_that_do_not_parse_say_why(spark: SparkSession) -> None:
    values = [
        encode(ORDER).data,
        b'{"number": 1}',
        b'{"number": "1", "lines": []}',
        b'{"number": 1, "lines": [{}]}',
        b"{nope",
        b"",
        None,
        b"\xff",
        b'{"number": 9223372036854775808, "lines": []}',
        encode(Order(2, [])).data,
    ]
    rows = from_value(payloads(spark, *values), Order).orderBy("nth").collect()
    mismatch = "the payload does not parse as Order: "
    reasons = [
        None,
        mismatch + "Object missing required field `lines`",
        mismatch + "Expected `int`, got `str` - at `$.number`",
        mismatch + "Object missing required field `skuCode` - at `$.lines[0]`",
        mismatch + "JSON is malformed",
        mismatch + "Input data was truncated",
        "there is no payload: it is null",
        mismatch,
        "it has no form in Spark: number: ",
        None,
    ]
    for row, reason in zip(rows, reasons, strict=True):
        assert (row["_error"] is None) == (reason is None), row
        assert (row["_error"] or "").startswith(reason or ""), row
        assert (row["number"] is None) == (row["lines"] is None) == (reason is not None)
    assert [row["number"] for row in rows if row["_error"] is None] == [1, 2]


class Checked(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise LookupError("thirteen has no place")


def test_what_a_models_own_code_raises_is_told_of_too(spark: SparkSession) -> None:
    df = from_value(payloads(spark, b'{"number": 13}', b'{"number": 14}'), Checked)
    assert [tuple(row) for row in df.select("number", "_error").orderBy("nth").collect()] == [
        (None, "LookupError: thirteen has no place"),
        (14, None),
    ]


def test_bad_rows_can_be_split_off_and_written_to_a_topic(spark: SparkSession) -> None:
    with TestApp() as t:
        for payload in (ORDER, {"number": 2}, b"\xff"):
            t.publish("orders", payload, key="k")
        df = spark.read.format("rowmq").options(url=t.url, topic="orders").load()
        good, bad = split_bad(from_value(df, Order))
        assert [row["number"] for row in good.collect()] == [1]
        assert "_error" not in good.columns
        letters = bad.select(
            "key", "value", F.create_map(F.lit("error"), "_error").alias("headers")
        )
        letters.write.format("rowmq").options(url=t.url, topic="bad").mode("append").save()
        found = list(t.mq.read("bad"))
    assert [bytes(message.payload) for message in found] == [b'{"number":2}', b"\xff"]
    assert all("does not parse as Order" in message.headers["error"] for message in found)


def test_a_stream_is_typed_like_a_batch(spark: SparkSession, tmp_path: Any) -> None:
    with TestApp() as t:
        for payload in (ORDER, {"number": 2}):
            t.publish("orders", payload, key="k")
        found = {}
        for name, column in (("good", "order.number"), ("bad", "_error")):
            options = {"url": t.url, "topic": "orders", "group": name}
            stream = spark.readStream.format("rowmq").options(**options).load()
            good, bad = split_bad(from_value(stream, Order, into="order"))
            query = (
                (good if name == "good" else bad)
                .select(column)
                .writeStream.format("memory")
                .queryName(f"typed_{name}")
                .option("checkpointLocation", str(tmp_path / name))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            found[name] = [row[0] for row in spark.table(f"typed_{name}").collect()]
    assert found["good"] == [1]
    assert ["missing required field" in reason for reason in found["bad"]] == [True]


def test_text_is_parsed_as_bytes_are(spark: SparkSession) -> None:
    df = payloads(spark, encode(ORDER).data).selectExpr("CAST(value AS string) AS body")
    (row,) = from_value(df, Order, column="body", error="why").collect()
    assert (row["number"], row["why"]) == (1, None)
    assert row["lines"][0]["skuCode"] == "a"


def test_a_payload_is_parsed_once_however_often_it_is_asked_for(spark: SparkSession) -> None:
    df = from_value(payloads(spark, encode(ORDER).data), Order)
    good, _ = split_bad(df)
    asked = good.where("number > 0 AND note IS NOT NULL").groupBy("note").count()
    (plan,) = asked._jdf.queryExecution().executedPlan().toString().split("\n\n")
    assert plan.count("ArrowEvalPython [") == 1


def test_no_rows_are_no_rows(spark: SparkSession) -> None:
    assert from_value(payloads(spark), Order).collect() == []


def test_names_that_are_taken_are_refused_with_a_way_out(spark: SparkSession) -> None:
    df = payloads(spark, b"{}").withColumn("Number", F.lit(1))
    with pytest.raises(InvalidOption, match=r"two columns 'number': .* into='order'"):
        from_value(df, Order)
    assert from_value(df, Order, into="order").columns[-2:] == ["order", "_error"]
    with pytest.raises(InvalidOption, match="two columns 'nth'"):
        from_value(df, Order, into="nth")
    with pytest.raises(InvalidOption, match="two columns 'value'"):
        from_value(df, Order, into="order", error="value")


def test_a_column_that_is_no_payload_is_refused(spark: SparkSession) -> None:
    df = payloads(spark, b"{}")
    with pytest.raises(InvalidOption, match="no column 'values'; there are nth, value"):
        from_value(df, Order, column="values")
    with pytest.raises(InvalidOption, match="'nth' is a int: payloads are binary or string"):
        from_value(df, Order, column="nth")
    with pytest.raises(InvalidOption, match="give the result of from_value"):
        split_bad(df)


def test_the_schema_of_a_model_describes_its_rows(spark: SparkSession) -> None:
    row = Row(number=1, lines=[Row(skuCode="a", unitPrice=None)], note=None)
    made = spark.createDataFrame([row], schema_of(Order), verifySchema=False)
    assert made.schema == schema_of(Order)
