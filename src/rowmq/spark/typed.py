"""One model for producer, worker and Spark: a column of payloads becomes columns of its fields.

Payloads are read by `rowmq.codec`, as a worker reads them, so that Spark accepts what handlers
accept and nothing else. Spark's own `from_json` would turn what does not fit into nulls. A row that
does not parse is never an exception: it has nulls, and says why in a column of its own.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, types
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rowmq.codec import Encoding, decode, error_text
from rowmq.errors import InvalidOption, PayloadMismatch
from rowmq.spark.carrying import pack, unpack
from rowmq.spark.forms import Record
from rowmq.spark.models import form_of_model

__all__ = ["ERROR", "from_value", "schema_of", "split_bad"]

ERROR = "_error"
"""The column that says why a row does not parse."""

PARSED = "_rowmq_parsed"


def schema_of(model: Any) -> types.StructType:
    """What a model is in Spark: its fields by the names that are written, with their types.

    Takes a pydantic model, a dataclass, a TypedDict, a NamedTuple or a `msgspec.Struct`. A field is
    nullable if it may be None, or may be left out without a default. `InvalidOption` names a field
    that has no form in Spark.
    """
    return form_of_model(model).spark


def from_value(
    df: DataFrame, model: Any, *, column: str = "value", into: str | None = None, error: str = ERROR
) -> DataFrame:
    """Parse a column of payloads, binary or text, by a model.

    The fields become columns beside those that are there, or one struct if `into` names it. The
    column `error` is null where the payload was parsed; where it was not, it says why, and the
    fields are null. Works for batches and streams.
    """
    form = form_of_model(model)
    check_column(df, column)
    fields = [into] if into is not None else [field.name for field in form.fields]
    check_names(df, [*fields, error], into)
    parsed = df.withColumn(PARSED, parser(model, form)(F.col(quoted(column))))
    outcome = F.col(PARSED)
    found = outcome["model"]
    columns = [found] if into is not None else [found[field.name] for field in form.fields]
    made = [part.alias(name) for part, name in zip(columns, fields, strict=True)]
    return parsed.select(*map(quoted, df.columns), *made, outcome["error"].alias(error))


def split_bad(df: DataFrame, *, error: str = ERROR) -> tuple[DataFrame, DataFrame]:
    """The rows that were parsed, without the column of errors, and those that were not, with it.

    The latter still have the payload, so that they can be written to a topic of their own.
    """
    if error not in df.columns:
        raise InvalidOption(f"there is no column {error!r}: give the result of from_value")
    reason = F.col(quoted(error))
    return df.where(reason.isNull()).drop(error), df.where(reason.isNotNull())


def check_column(df: DataFrame, column: str) -> None:
    found = {field.name: field.dataType for field in df.schema}
    if column not in found:
        raise InvalidOption(f"there is no column {column!r}; there are {', '.join(found)}")
    if not isinstance(found[column], types.BinaryType | types.StringType):
        raise InvalidOption(
            f"column {column!r} is a {found[column].simpleString()}: payloads are binary or string"
        )


def check_names(df: DataFrame, names: Iterable[str], into: str | None) -> None:
    """Refuse names that are taken: Spark compares them without regard to case."""
    taken = {name.casefold() for name in df.columns}
    for name in names:
        if name.casefold() in taken:
            remedy = (
                "name a struct for the model, as in into='order'"
                if into is None
                else "choose others"
            )
            raise InvalidOption(f"there would be two columns {name!r}: {remedy}")
        taken.add(name.casefold())


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally."""
    return "`" + name.replace("`", "``") + "`"


def parser(model: Any, form: Record) -> Any:
    """A function of Spark's for a column of payloads; only the model travels to the executors."""
    packed = pack(model)

    def parse(payloads: pa.Array) -> pa.Array:
        return parsed(unpack(packed), payloads)

    outcome = types.StructType(
        [
            types.StructField("model", nullable(form.spark)),
            types.StructField("error", types.StringType()),
        ]
    )
    function = F.arrow_udf(parse, outcome)  # type: ignore[attr-defined]  # it is in no stub of theirs
    # What is filtered by the result would otherwise be parsed once more for each filter.
    return function.asNondeterministic()


def parsed(model: Any, payloads: pa.Array) -> pa.Array:
    """For each payload the model, or the reason why there is none."""
    pairs = [read(model, payload) for payload in payloads.to_pylist()]
    models, unfit = fitted(form_of_model(model), [found for found, _ in pairs])
    reasons = [error or reason for (_, error), reason in zip(pairs, unfit, strict=True)]
    return pa.StructArray.from_arrays([models, pa.array(reasons, pa.string())], ["model", "error"])


def read(model: Any, payload: bytes | str | None) -> tuple[Any, str | None]:
    """A payload as a worker would read it."""
    if payload is None:
        return None, "there is no payload: it is null"
    data = payload.encode() if isinstance(payload, str) else payload
    try:
        return decode(data, Encoding.JSON, model), None
    except PayloadMismatch as error:
        return None, error_text(str(error))
    except Exception as error:  # noqa: BLE001 - the model's own code may raise anything
        return None, error_text(error)


def fitted(form: Record, found: Sequence[Any]) -> tuple[pa.Array, list[str | None]]:
    """Models as an array, and the reason for each that Spark cannot hold: it may have a number of
    100 digits. Those are rare, so they are looked for by halves.
    """
    try:
        return form.array(found), [None] * len(found)
    except Exception as error:  # noqa: BLE001 - Arrow has several, and so have validators
        if len(found) == 1:
            return form.array([None]), [error_text(f"it has no form in Spark: {error}")]
    middle = len(found) // 2
    first, first_reasons = fitted(form, found[:middle])
    second, second_reasons = fitted(form, found[middle:])
    return pa.concat_arrays([first, second]), first_reasons + second_reasons


def nullable(spark: types.DataType) -> types.DataType:
    """The same type where everything may be null, as it is in a row that does not parse."""
    if isinstance(spark, types.StructType):
        return types.StructType(
            [types.StructField(field.name, nullable(field.dataType)) for field in spark]
        )
    if isinstance(spark, types.ArrayType):
        return types.ArrayType(nullable(spark.elementType))
    if isinstance(spark, types.MapType):
        return types.MapType(spark.keyType, nullable(spark.valueType))
    return spark
