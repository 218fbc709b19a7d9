"""The columns of a DataFrame that is written: which there are, and of which types.

What cannot be written is refused here, by the driver, before a task has begun.
"""

import difflib

import msgspec
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from rowmq.errors import InvalidOption
from rowmq.spark.sink.options import SinkOptions

__all__ = ["Shape", "shape_of"]

VALUES = ("value", "payload")

TEXT = (StringType,)
WHOLE = (ByteType, ShortType, IntegerType, LongType)

TO_TOPIC: dict[str, tuple[type[DataType], ...]] = {
    "key": TEXT,
    "id": TEXT,
    "headers": (MapType,),
    "topic": TEXT,
    "encoding": TEXT,
}

TO_QUEUE: dict[str, tuple[type[DataType], ...]] = {
    "kind": TEXT,
    "key": TEXT,
    "ordering_key": TEXT,
    "priority": WHOLE,
    "due_at": (TimestampType,),
    "headers": (MapType,),
    "encoding": TEXT,
}

HINTS = {
    MapType: "a map<string,string>",
    StringType: "a string",
    TimestampType: "a timestamp, which has a zone",
    ByteType: "a whole number",
}


class Shape(msgspec.Struct, frozen=True):
    """What tasks need to know of the rows: the target, where there is one for all, the columns, and
    how values are encoded.
    """

    topic: str | None
    queue: str | None
    columns: tuple[str, ...]
    value: str
    encoding: str
    """What the value of a row is marked as that does not say so itself."""
    as_json: bool
    """Whether values are neither bytes nor text, and are written as JSON."""


def shape_of(options: SinkOptions, schema: StructType) -> Shape:
    """The shape of a DataFrame's rows."""
    known = TO_TOPIC if options.queue is None else TO_QUEUE
    (value, kind) = value_of(schema)
    for field in schema:
        if field.name != value:
            check_column(field, known)
    columns = tuple(field.name for field in schema)
    if options.queue is None and options.topic is None and "topic" not in columns:
        raise InvalidOption(
            "to which topic? Give .option('topic', 'orders'), a column 'topic', or "
            ".option('queue', 'emails') to put jobs"
        )
    as_json = not isinstance(kind, BinaryType | StringType)
    if as_json and options.encoding not in (None, "json"):
        raise InvalidOption(
            f"column {value!r} is a {kind.simpleString()}, which is written as JSON: the option "
            f"encoding cannot be {options.encoding!r}"
        )
    plain = "bytes" if isinstance(kind, BinaryType) else "text"
    usual = options.encoding or ("json" if as_json else plain)
    return Shape(options.topic, options.queue, columns, value, usual, as_json)


def value_of(schema: StructType) -> tuple[str, DataType]:
    """The column of the payload, and its type."""
    found = [field for field in schema if field.name in VALUES]
    if len(found) != 1:
        how = "both columns" if found else "no column"
        raise InvalidOption(
            f"the DataFrame has {how} 'value' {'and' if found else 'or'} 'payload': one of them is "
            f"the payload. Make it, as in df.select(to_json(struct('*')).alias('value'))"
        )
    (field,) = found
    if isinstance(field.dataType, VariantType):
        raise InvalidOption(
            f"column {field.name!r} is a variant: write to_json({field.name}) as text, with "
            f".option('encoding', 'json')"
        )
    return field.name, field.dataType


def check_column(field: StructField, known: dict[str, tuple[type[DataType], ...]]) -> None:
    """Raise for a column that is not known, or of another type than it must be."""
    if field.name not in known:
        near = difflib.get_close_matches(field.name, known, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]!r}?" if near else "drop it, or make it part of the value."
        listed = ", ".join(["value", *known])
        raise InvalidOption(
            f"there is no place for column {field.name!r}: {hint} Known columns are {listed}"
        )
    wanted = known[field.name]
    if not isinstance(field.dataType, wanted) or not maps_text(field.dataType):
        raise InvalidOption(
            f"column {field.name!r} must be {HINTS[wanted[0]]}, not a "
            f"{field.dataType.simpleString()}: cast it before the write"
        )


def maps_text(kind: DataType) -> bool:
    """Whether a type is no map, or one of text to text."""
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
