"""Columns that every table of RowMQ's has in Spark, from how they are stored."""

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from rowmq.codec import Encoding
from rowmq.errors import InvalidOption

__all__ = ["HEADERS", "chosen_columns", "encodings_of", "headers_of", "named"]

HEADERS = pa.map_(pa.string(), pa.string())
ENCODINGS = [encoding.name.lower() for encoding in sorted(Encoding)]

_headers = msgspec.json.Decoder(dict[str, str])


def headers_of(stored: pa.Array) -> pa.Array:
    """Headers, as a map for each row, of JSON text; none are an empty map."""
    rows = len(stored)
    if stored.null_count == rows or not pc.any(pc.greater(pc.binary_length(stored), 0)).as_py():
        nothing = pa.repeat(pa.scalar(None, pa.string()), 0)
        offsets = pa.repeat(pa.scalar(0, pa.int32()), rows + 1)
        return pa.MapArray.from_arrays(offsets, nothing, nothing)
    decode = _headers.decode
    maps = [list(decode(text).items()) if text else [] for text in stored.to_pylist()]
    return pa.array(maps, HEADERS)


def encodings_of(stored: pa.Array) -> pa.Array:
    """The names of encodings, of their numbers."""
    return pa.array(ENCODINGS).take(stored)


def named(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """A batch of columns, each of which may be null, as Spark has it."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def chosen_columns(asked: StructType, known: Sequence[StructType]) -> tuple[str, ...]:
    """The names of the columns that were asked for, if they are known and of their own type."""
    types = {field.name: field.dataType for struct in known for field in struct}
    for field in asked:
        if field.name not in types:
            raise InvalidOption(f"there is no column {field.name!r}; known are {', '.join(types)}")
        if field.dataType != types[field.name]:
            raise InvalidOption(
                f"column {field.name!r} is a {types[field.name].simpleString()}, not a "
                f"{field.dataType.simpleString()}: cast it after the load"
            )
    return tuple(field.name for field in asked)
