"""What may be written by Spark, and as what it is staged: told before anything is written."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    VariantType,
)

from rowmq import errors
from rowmq.spark.options import Given
from rowmq.spark.sink import rows as rows_module
from rowmq.spark.sink.loading import parts_table, runs
from rowmq.spark.sink.options import SinkOptions, sink_options
from rowmq.spark.sink.rows import Rows
from rowmq.spark.sink.shape import shape_of
from rowmq.store.keys import SHARD_KEYS
from rowmq.store.staging import PART, STAGED, Part, StagedRow, Version

TEXT = StringType()
URL = {"url": "postgresql://u:secret@h/d"}

COLUMNS: dict[str, Any] = {
    "value": pa.string(),
    "payload": pa.string(),
    "key": pa.string(),
    "id": pa.string(),
    "topic": pa.string(),
    "encoding": pa.string(),
    "kind": pa.string(),
    "ordering_key": pa.string(),
    "priority": pa.int32(),
    "due_at": pa.timestamp("us", "UTC"),
    "headers": pa.map_(pa.string(), pa.string()),
}


def options(**given: str) -> SinkOptions:
    return sink_options(Given(URL | given), stream=False, overwrite=False)


def rows_of(columns: Mapping[str, Sequence[Any]], given: dict[str, str], **types: Any) -> Rows:
    """What a task makes of a batch with these columns."""
    known = COLUMNS | types
    arrays = {name: pa.array(values, known[name]) for name, values in columns.items()}
    batch = pa.record_batch(arrays)
    shape = shape_of(options(**given), from_arrow_schema(batch.schema))
    return Rows(shape, iter([batch]), partition=3)


def written(
    columns: Mapping[str, Sequence[Any]], kind: Any = None, given: dict[str, str] | None = None
) -> tuple[Rows, list[dict[str, Any]]]:
    """The rows of a batch, and as what they are staged."""
    chosen = given or {}
    target = {} if "queue" in chosen or "topic" in columns else {"topic": "t"}
    rows = rows_of(columns, target | chosen, **({} if kind is None else {"value": kind}))
    (batch,) = rows.stage(7)
    return rows, batch.to_pylist()


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"topic": "t", "queue": "q"}, "'topic', 'queue', not both"),
        ({"topic": "t", "txnAppId": "a"}, "both of txnAppId"),
        ({"topic": "t", "txnVersion": "1"}, "both of txnAppId"),
        ({"topic": "t", "txnAppId": "a", "txnVersion": "-1"}, "from 0 on"),
        ({"topic": "t", "txnAppId": "a", "txnVersion": "1.5"}, "from 0 on"),
        ({"topic": "t", "txnAppId": "a", "txnVersion": "9" * 19}, "from 0 on"),
        ({"topic": "t", "txnAppId": "", "txnVersion": "1"}, "1 to 200 bytes"),
        ({"topic": "t", "txnAppId": "é" * 101, "txnVersion": "1"}, "1 to 200 bytes"),
        ({"topic": "t", "onConflict": "update"}, "is for jobs"),
        ({"queue": "q", "onConflict": "replace"}, "error, ignore, update"),
        ({"topic": "t", "encoding": "avro"}, "bytes, text, json"),
        ({"topics": "t"}, "did you mean 'topic'"),
        ({"topic": ""}, "must not be empty"),
        ({"queue": "q" * 201}, "at most 200 bytes"),
        ({"topic": "t", "checkpointLocation": "c"}, "no option"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(given: dict[str, str], match: str) -> None:
    with pytest.raises(errors.InvalidInput, match=match):
        options(**given)


def test_a_stream_has_its_own_versions_and_spark_s_options() -> None:
    given = URL | {"topic": "t", "checkpointlocation": "c"}
    assert sink_options(Given(given), stream=True, overwrite=False).version is None
    given |= {"txnAppId": "a", "txnVersion": "1"}
    with pytest.raises(errors.InvalidOption, match="numbers its batches by itself"):
        sink_options(Given(given), stream=True, overwrite=False)


@pytest.mark.parametrize(("stream", "right"), [(False, "mode"), (True, "outputMode")])
def test_to_overwrite_is_refused_with_what_to_write_instead(stream: bool, right: str) -> None:
    with pytest.raises(errors.InvalidOption, match=rf"\.{right}\('append'\)"):
        sink_options(Given(URL | {"topic": "t"}), stream=stream, overwrite=True)


def test_a_version_is_one_of_its_target() -> None:
    given = {"txnAppId": "a b", "txnVersion": " 0 "}
    assert options(topic="t", **given).version == Version("app:a b", "topic t", 0)
    assert options(queue="t", **given).version == Version("app:a b", "queue t", 0)
    assert options(**given).version == Version("app:a b", "topics", 0)


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "given", "match"),
    [
        ({}, {}, "to which topic"),
        ({"topc": TEXT}, {"topic": "t"}, "did you mean 'topic'"),
        ({"offset": LongType()}, {"topic": "t"}, "Known columns are value, key, id"),
        ({"id": LongType()}, {"queue": "q"}, "Known columns are value, kind, key"),
        ({"key": LongType()}, {"topic": "t"}, "'key' must be a string, not a bigint"),
        ({"headers": MapType(TEXT, IntegerType())}, {"topic": "t"}, "map<string,string>"),
        ({"headers": TEXT}, {"topic": "t"}, "map<string,string>"),
        ({"due_at": TimestampNTZType()}, {"queue": "q"}, "which has a zone"),
        ({"priority": DoubleType()}, {"queue": "q"}, "whole number"),
        ({"payload": TEXT}, {"topic": "t"}, "both columns 'value' and 'payload'"),
        ({"value": VariantType()}, {"topic": "t"}, "to_json"),
        ({"value": LongType()}, {"topic": "t", "encoding": "text"}, "written as JSON"),
    ],
)
def test_columns_that_have_no_place_are_refused(
    columns: dict[str, DataType], given: dict[str, str], match: str
) -> None:
    schema = StructType()
    for name, kind in ({"value": TEXT} | columns).items():
        schema.add(name, kind)
    with pytest.raises(errors.InvalidOption, match=match):
        shape_of(options(**given), schema)


def test_a_column_must_be_the_payload() -> None:
    with pytest.raises(errors.InvalidOption, match="no column 'value' or 'payload'"):
        shape_of(options(topic="t"), StructType().add("key", TEXT))


def test_the_option_topic_stands_above_the_column() -> None:
    rows, _ = written({"value": ["1"], "topic": ["other"]}, given={"topic": "t"})
    assert [part.target for part in rows.parts] == ["t"]


# --- values ---------------------------------------------------------------------------------------

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string())), ("c", pa.date32())])


@pytest.mark.parametrize(
    ("kind", "value", "data", "encoding"),
    [
        (pa.string(), "é🐘", "é🐘".encode(), 1),
        (pa.large_string(), "é", "é".encode(), 1),
        (pa.binary(), b"\x00\xff", b"\x00\xff", 0),
        (pa.large_binary(), b"", b"", 0),
        (pa.int32(), 7, b"7", 2),
        (pa.bool_(), True, b"true", 2),
        (pa.decimal128(4, 2), Decimal("1.50"), b'"1.50"', 2),
        (pa.list_(pa.int32()), [1, None], b"[1,null]", 2),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], b'{"a":1}', 2),
        (
            STRUCT,
            {"a": 1, "b": ["x"], "c": date(2026, 1, 2)},
            b'{"a":1,"b":["x"],"c":"2026-01-02"}',
            2,
        ),
        (
            pa.timestamp("us", "UTC"),
            datetime(2026, 1, 2, tzinfo=UTC),
            b'"2026-01-02T00:00:00Z"',
            2,
        ),
    ],
)
def test_a_value_is_stored_as_what_it_is(kind: Any, value: Any, data: bytes, encoding: int) -> None:
    _, (row,) = written({"value": [value]}, kind)
    assert (row["payload"], row["encoding"]) == (data, encoding)


@pytest.mark.parametrize(
    ("given", "marks", "encodings"),
    [({"encoding": "json"}, None, [2, 2]), ({"encoding": "json"}, ["text", None], [1, 2])],
)
def test_a_value_may_be_marked_as_something_else(
    given: dict[str, str], marks: list[str | None] | None, encodings: list[int]
) -> None:
    columns: dict[str, list[Any]] = {"value": ['{"a":1}', "2"]}
    columns |= {} if marks is None else {"encoding": marks}
    _, found = written(columns, given=given)
    assert [row["encoding"] for row in found] == encodings


def test_a_struct_that_json_cannot_hold_is_refused_with_its_place() -> None:
    kind = pa.struct([("a", pa.float64())])
    with pytest.raises(errors.PayloadNotSerializable, match=r"row 2 .*'value'.*JSON has no nan"):
        written({"value": [{"a": 1.0}, {"a": float("nan")}]}, kind)


# --- rows that are wrong --------------------------------------------------------------------------

NAIVE_MAX = 400_000_000_000_000_000


@pytest.mark.parametrize(
    ("columns", "given", "error", "match"),
    [
        ({"value": ["1", None]}, {}, errors.InvalidInput, "row 2 .*partition 3.*'value'.*null"),
        ({"payload": [None]}, {}, errors.InvalidInput, "column 'payload'"),
        ({"value": ["1"], "key": [""]}, {}, errors.InvalidKey, "row 1 .*'key'.*empty"),
        ({"value": ["1"], "key": ["é" * 128]}, {}, errors.InvalidKey, "255 bytes"),
        ({"value": ["1"], "key": ["a\0b"]}, {}, errors.InvalidKey, "NUL"),
        ({"value": ["1"] * 2, "id": ["a", ""]}, {}, errors.InvalidId, "row 2 .*'id'.*empty"),
        ({"value": ["1"], "id": ["a\0b"]}, {}, errors.InvalidId, "NUL"),
        ({"value": ["1"], "id": ["x" * 256]}, {}, errors.InvalidId, "255 bytes"),
        ({"value": ["1"], "headers": [[("a", None)]]}, {}, errors.InvalidHeaders, "'a' must be"),
        ({"value": ["1"], "headers": [[("a", "x" * 70_000)]]}, {}, errors.InvalidHeaders, "limit"),
        ({"value": ["1"], "encoding": ["xml"]}, {}, errors.InvalidOption, "bytes or text or json"),
        ({"value": ["1", "{"]}, {"encoding": "json"}, errors.InvalidInput, "row 2 .*as json"),
        ({"value": ["1"], "kind": [""]}, {"queue": "q"}, errors.InvalidQueue, "'kind'.*empty"),
        ({"value": ["1"], "kind": ["k" * 201]}, {"queue": "q"}, errors.InvalidQueue, "200 bytes"),
        ({"value": ["1"], "ordering_key": [""]}, {"queue": "q"}, errors.InvalidKey, "ordering_key"),
        ({"value": ["1"], "priority": [32_768]}, {"queue": "q"}, errors.InvalidOption, "32,767"),
        ({"value": ["1"], "due_at": [NAIVE_MAX]}, {"queue": "q"}, errors.InvalidOption, "9999"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    columns: dict[str, list[Any]], given: dict[str, str], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        written(columns, given=given)


@pytest.mark.parametrize("topic", [None, "", "a\0b", "t" * 201])
def test_a_topic_of_a_row_that_is_none_is_named(topic: str | None) -> None:
    with pytest.raises(errors.InvalidTopic, match=r"row 2 .*column 'topic'"):
        written({"value": ["1", "2"], "topic": ["t", topic]})


def test_bytes_that_are_no_text_cannot_be_marked_as_such() -> None:
    with pytest.raises(errors.InvalidInput, match=r"row 2 .*marked as text"):
        written({"value": [b"a", b"\xff"]}, pa.binary(), {"encoding": "text"})


# --- stages ---------------------------------------------------------------------------------------


def test_rows_are_numbered_in_their_parts() -> None:
    rows, found = written({"value": ["1", "22", "3", "4"], "key": ["a", None, "b", "a"]})
    assert [(row["number"], row["part"], row["nth"]) for row in found] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 2, 0),
        (3, 0, 1),
    ]
    assert rows.parts == [
        Part(0, "t", "a", 0, 2, 1),
        Part(1, "t", SHARD_KEYS[0], 0, 1, 2),
        Part(2, "t", "b", 0, 1, 1),
    ]
    assert (rows.count, rows.more) == (4, False)


def test_jobs_are_staged_with_what_they_have() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    columns: dict[str, list[Any]] = {
        "payload": ["1", "2"],
        "kind": ["k", None],
        "key": [None, "x"],
        "priority": [5, None],
        "due_at": [moment, None],
        "headers": [[("a", "b")], None],
    }
    rows = rows_of(columns, {"queue": "q"})
    (batch,) = rows.stage(1)
    first, second = next(runs(batch))
    micros = int(moment.timestamp()) * 1_000_000
    assert first == StagedRow(0, 0, 0, 1, b"1", None, '{"a":"b"}', None, micros)
    assert second == StagedRow(1, 1, 0, 1, b"2", "x", None, None, None)
    assert rows.parts == [Part(0, "q", "k", -5, 1, 1), Part(1, "q", "", 0, 1, 1)]
    assert not rows.plain


def test_many_keys_are_spread_over_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "PARTS_MAX", 3)
    shape = shape_of(options(topic="t"), StructType().add("value", TEXT).add("key", TEXT))
    rows = Rows(shape, batches_of(5), partition=0)
    stages: list[list[bytes]] = []
    while rows.more:
        given = [row for batch in rows.stage(len(stages)) for row in batch.to_pylist()]
        assert [row["number"] for row in given] == list(range(rows.count))
        assert sum(part.messages for part in rows.parts) == rows.count
        stages.append([row["payload"] for row in given])
    assert stages == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8", b"9"]]


def batches_of(count: int) -> Iterator[pa.RecordBatch]:
    """Empty ones among them, as Spark may have."""
    for number in range(count):
        values = [str(2 * number), str(2 * number + 1)]
        yield pa.record_batch({"value": values, "key": values})
        yield pa.record_batch(
            {"value": pa.array([], pa.string()), "key": pa.array([], pa.string())}
        )


def test_large_rows_are_staged_in_short_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rowmq.spark.sink.loading.FILL_BYTES", 5_000)
    _, found = written({"value": ["x" * 1_000] * 10})
    batch = pa.RecordBatch.from_pylist(found)
    sizes = [len(run) for run in runs(batch)]
    assert sum(sizes) == 10
    assert max(sizes) <= 5


def test_what_is_staged_has_the_types_of_its_tables() -> None:
    arrow = {"bigint": pa.int64(), "integer": pa.int32(), "smallint": pa.int16()} | {
        "text": pa.string(),
        "bytea": pa.binary(),
    }
    assert {name: arrow[kind] for name, kind in STAGED.items()} == rows_module.TYPES
    table = parts_table(1, [Part(0, "t", "k", 0, 1, 2)])
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == {
        name: arrow[kind] for name, kind in PART.items()
    }


def test_no_url_is_to_be_seen_in_what_a_task_gets() -> None:
    assert "secret" not in repr(options(topic="t"))
