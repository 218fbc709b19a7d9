"""What the values of a model are in Spark: each type has a form, which knows its type in Spark and
in Arrow, and turns a column of Python values into an Arrow array.

Values are taken apart by column and not by row, which is several times quicker.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate, chain
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import types

from rowmq.errors import NaiveDatetime

__all__ = ["Entries", "Field", "Form", "Inside", "Items", "Leaf", "Record"]

Values = Sequence[Any]

DECIMAL_DIGITS = 38
DECIMAL_SCALE = 18


class Form(ABC):
    """How values of one type stand in Spark. Any of them may be None."""

    spark: types.DataType
    arrow: pa.DataType

    @abstractmethod
    def array(self, values: Values) -> pa.Array:
        """A column of values. Raises if one of them has no such form."""


class Leaf(Form):
    """A value without parts; `convert` makes it one that Arrow knows."""

    def __init__(
        self, spark: types.DataType, arrow: pa.DataType, convert: Callable[[Any], Any] | None = None
    ) -> None:
        self.spark = spark
        self.arrow = arrow
        self.convert = convert

    def array(self, values: Values) -> pa.Array:
        if self.convert is not None:
            convert = self.convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self.arrow)


class Inside(Form):
    """A value that stands inside another, which is no more than its wrapping."""

    def __init__(self, form: Form, get: Callable[[Any], Any]) -> None:
        self.form = form
        self.get = get
        self.spark = form.spark
        self.arrow = form.arrow

    def array(self, values: Values) -> pa.Array:
        get = self.get
        return self.form.array([None if value is None else get(value) for value in values])


class Field(NamedTuple):
    """A part of a record, and how it is found in one."""

    name: str
    form: Form
    nullable: bool
    get: Callable[[Any], Any]

    def array(self, records: Values, *, some_missing: bool) -> pa.Array:
        """The values of this part, of each record in turn."""
        get = self.get
        try:
            if some_missing:
                return self.form.array([None if one is None else get(one) for one in records])
            return self.form.array(list(map(get, records)))
        except Exception as error:
            raise ValueError(f"{self.name}: {error}") from error


class Record(Form):
    """An object with named parts."""

    spark: types.StructType

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = fields
        self.spark = types.StructType(
            [types.StructField(field.name, field.form.spark, field.nullable) for field in fields]
        )
        self.arrow = pa.struct([(field.name, field.form.arrow) for field in fields])

    def array(self, values: Values) -> pa.Array:
        missing = [value is None for value in values]
        arrays = [field.array(values, some_missing=any(missing)) for field in self.fields]
        return pa.StructArray.from_arrays(
            arrays, fields=list(self.arrow), mask=pa.array(missing, pa.bool_())
        )


class Items(Form):
    """Many values of one form, in order or in none."""

    def __init__(self, item: Form, *, nullable: bool) -> None:
        self.item = item
        self.spark = types.ArrayType(item.spark, containsNull=nullable)
        self.arrow = pa.list_(pa.field("element", item.arrow))

    def array(self, values: Values) -> pa.Array:
        items = list(chain.from_iterable(value for value in values if value is not None))
        return pa.ListArray.from_arrays(offsets(values), self.item.array(items), type=self.arrow)


class Entries(Form):
    """Values by keys."""

    def __init__(self, key: Form, item: Form, *, nullable: bool) -> None:
        self.key = key
        self.item = item
        self.spark = types.MapType(key.spark, item.spark, valueContainsNull=nullable)
        self.arrow = pa.map_(pa.field("key", key.arrow, nullable=False), item.arrow)

    def array(self, values: Values) -> pa.Array:
        present = [value for value in values if value is not None]
        keys = self.key.array(list(chain.from_iterable(present)))
        items = self.item.array(list(chain.from_iterable(value.values() for value in present)))
        return pa.MapArray.from_arrays(offsets(values), keys, items, type=self.arrow)


def offsets(values: Values) -> pa.Array:
    """Where the parts of each value begin among those of all; null for one that is None."""
    ends = list(accumulate((0 if value is None else len(value) for value in values), initial=0))
    begins = [None if value is None else end for value, end in zip(values, ends, strict=False)]
    return pa.array([*begins, ends[-1]], pa.int32())


def moment(value: datetime) -> datetime:
    """A time that names a moment, whatever the time zone of the session."""
    if value.tzinfo is None:
        raise NaiveDatetime(
            f"{value.isoformat()} has no time zone, so it names no moment; to read it as it is, "
            f"declare the field as Annotated[datetime, msgspec.Meta(tz=False)], in pydantic as "
            f"NaiveDatetime"
        )
    return value


BOOLEAN = Leaf(types.BooleanType(), pa.bool_())
BYTES = Leaf(types.BinaryType(), pa.binary(), bytes)
DATE = Leaf(types.DateType(), pa.date32())
DECIMAL = Leaf(
    types.DecimalType(DECIMAL_DIGITS, DECIMAL_SCALE), pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE)
)
FLOAT = Leaf(types.DoubleType(), pa.float64())
INTEGER = Leaf(types.LongType(), pa.int64())
LOCAL_TIME = Leaf(types.TimestampNTZType(), pa.timestamp("us"))
MOMENT = Leaf(types.TimestampType(), pa.timestamp("us", tz="UTC"), moment)
TEXT = Leaf(types.StringType(), pa.string())
WORDS = Leaf(types.StringType(), pa.string(), str)
WRITTEN = Leaf(types.StringType(), pa.string(), msgspec.to_builtins)
