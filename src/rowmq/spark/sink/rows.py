"""From Arrow batches to rows as they are staged: checked, encoded and counted.

What can be done for a whole column at once is done by Arrow. Only what is wrong is looked for row
by row, to name it.
"""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rowmq.codec import Encoding, encode, encode_headers
from rowmq.errors import InvalidInput, InvalidOption, PayloadNotSerializable
from rowmq.naming import (
    ID_BYTES_MAX,
    KEY_BYTES_MAX,
    SHARD_MARK,
    check_headers,
    check_id,
    check_job_key,
    check_key,
    check_kind,
    check_topic,
)
from rowmq.spark.sink.options import ENCODINGS
from rowmq.spark.sink.shape import Shape
from rowmq.store.keys import KEYLESS, SHARD_KEYS, shard_key
from rowmq.store.postings import PRIORITY_MAX
from rowmq.store.staging import Part
from rowmq.times import from_micros

__all__ = ["Rows", "fields_of"]

PARTS_MAX = 100_000
"""How many parts a stage has, about, before another is begun: they are kept in memory."""

TYPES = {
    "stage_id": pa.int64(),
    "number": pa.int64(),
    "part": pa.int32(),
    "nth": pa.int64(),
    "encoding": pa.int16(),
    "payload": pa.binary(),
    "name": pa.string(),
    "headers": pa.string(),
    "ordering_key": pa.string(),
    "due_at": pa.int64(),
}

SOURCES = {"name": ("id", "key"), "headers": ("headers",)} | {
    column: (column,) for column in ("ordering_key", "due_at")
}
"""Of which column, of messages or of jobs, what not all rows have is made."""

_decode = msgspec.json.Decoder().decode


def fields_of(shape: Shape) -> pa.Schema:
    """The columns of staged rows of a shape: those that none of them has are left out."""
    names = [
        name
        for name in TYPES
        if name not in SOURCES or any(column in shape.columns for column in sources_of(name, shape))
    ]
    return pa.schema([(name, TYPES[name]) for name in names])


def sources_of(name: str, shape: Shape) -> tuple[str, ...]:
    if name == "name":
        return ("key",) if shape.queue is not None else ("id",)
    return SOURCES[name]


class Rows:
    """The rows of one task, stage by stage."""

    def __init__(self, shape: Shape, batches: Iterator[pa.RecordBatch], partition: int) -> None:
        self.shape = shape
        self.schema = fields_of(shape)
        self.partition = partition
        self._batches = (batch for batch in batches if batch.num_rows)
        self._next = next(self._batches, None)
        self._passed = 0
        self._begin()

    def _begin(self) -> None:
        self.count = 0
        self.plain = True
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._counts: list[int] = []
        self._largest: list[int] = []

    @property
    def more(self) -> bool:
        """Whether there is a row that is in no stage yet."""
        return self._next is not None

    @property
    def parts(self) -> list[Part]:
        """The parts of what was given out last."""
        return [
            Part(number, *name, self._counts[number], self._largest[number])
            for name, number in self._numbers.items()
        ]

    def stage(self, stage_id: int) -> Iterator[pa.RecordBatch]:
        """The rows of the next stage, in batches."""
        self._begin()
        while self._next is not None and len(self._numbers) < PARTS_MAX:
            batch, self._next = self._next, None
            converted = self._convert(batch, stage_id)
            self.count += batch.num_rows
            self._passed += batch.num_rows
            yield converted
            self._next = next(self._batches, None)

    def _convert(self, batch: pa.RecordBatch, stage_id: int) -> pa.RecordBatch:
        rows = batch.num_rows
        encodings = self._encodings(batch)
        payload = self._payload(batch, encodings)
        parts, nths = self._count(batch, payload)
        columns = {
            "stage_id": pa.repeat(pa.scalar(stage_id, pa.int64()), rows),
            "number": pa.array(range(self.count, self.count + rows), pa.int64()),
            "part": parts,
            "nth": nths,
            "encoding": encodings,
            "payload": payload,
        }
        for name in self.schema.names[len(columns) :]:
            columns[name] = getattr(self, f"_{name}")(batch)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=self.schema)

    # --- values -----------------------------------------------------------------------------------

    def _encodings(self, batch: pa.RecordBatch) -> pa.Array:
        """How the payload of each row is marked."""
        usual = ENCODINGS[self.shape.encoding]
        if "encoding" not in self.shape.columns:
            return pa.repeat(pa.scalar(usual, pa.int16()), batch.num_rows)
        allowed = {"json": ENCODINGS["json"]} if self.shape.as_json else ENCODINGS
        codes = []
        for place, word in enumerate(batch.column("encoding").to_pylist()):
            if word is not None and word.lower() not in allowed:
                names = " or ".join(allowed)
                self._refuse(place, "encoding", InvalidOption(f"it is {names}, not {word!r}"))
            codes.append(usual if word is None else allowed[word.lower()])
        return pa.array(codes, pa.int16())

    def _payload(self, batch: pa.RecordBatch, encodings: pa.Array) -> pa.Array:
        """The bytes of each row's value."""
        column = batch.column(self.shape.value)
        if column.null_count:
            place = column.is_null().index(pa.scalar(True)).as_py()
            self._refuse(
                place,
                self.shape.value,
                InvalidInput("a payload cannot be null: leave such rows out, or give them a value"),
            )
        if self.shape.as_json:
            return self._as_json(column)
        data = column.cast(pa.binary())
        self._check_marks(data, encodings, text=not pa.types.is_binary(plain_type(column.type)))
        return data

    def _as_json(self, column: pa.Array) -> pa.Array:
        found = []
        for place, value in enumerate(column.to_pylist(maps_as_pydicts="strict")):
            try:
                found.append(encode(value).data)
            except PayloadNotSerializable as error:
                self._refuse(place, self.shape.value, error)
        return pa.array(found, pa.binary())

    def _check_marks(self, data: pa.Array, encodings: pa.Array, *, text: bool) -> None:
        """Raise for a value that is not what it is marked as."""
        marked = set(encodings.unique().to_pylist())
        checks: list[tuple[Encoding, Callable[[bytes], Any]]] = []
        if Encoding.JSON in marked:
            checks.append((Encoding.JSON, _decode))
        if Encoding.TEXT in marked and not text:
            checks.append((Encoding.TEXT, bytes.decode))
        for encoding, check in checks:
            for place, (code, value) in enumerate(
                zip(encodings.to_pylist(), data.to_pylist(), strict=True)
            ):
                if code != encoding:
                    continue
                try:
                    check(value)
                except (msgspec.MsgspecError, ValueError) as error:
                    problem = InvalidInput(f"it is marked as {encoding.name.lower()}: {error}")
                    self._refuse(place, self.shape.value, problem)

    # --- parts ------------------------------------------------------------------------------------

    def _count(self, batch: pa.RecordBatch, payload: pa.Array) -> tuple[pa.Array, pa.Array]:
        """For each row its part, and its place there."""
        sizes = pc.binary_length(payload).to_pylist()
        numbers, counts, largest = self._numbers, self._counts, self._largest
        parts, nths = [], []
        for place, name in enumerate(self._names(batch)):
            part = numbers.get(name)
            if part is None:
                self._check_name(place, name)
                part = numbers[name] = len(numbers)
                counts.append(0)
                largest.append(0)
            nth = counts[part]
            counts[part] = nth + 1
            largest[part] = max(largest[part], sizes[place])
            parts.append(part)
            nths.append(nth)
        return pa.array(parts, pa.int32()), pa.array(nths, pa.int64())

    def _names(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str, int]]:
        """For each row what its part is for: topic and key, or queue, kind and precedence."""
        shape = self.shape
        if shape.queue is not None:
            kinds = self._texts(batch, "kind", "")
            orders = [-priority for priority in self._priorities(batch)]
            return zip([shape.queue] * batch.num_rows, kinds, orders, strict=True)
        keys = self._keys(batch)
        if shape.topic is None:
            topics: list[str] = batch.column("topic").to_pylist()
        else:
            topics = [shape.topic] * batch.num_rows
        return zip(topics, keys, [0] * batch.num_rows, strict=True)

    def _keys(self, batch: pa.RecordBatch) -> list[str]:
        """The stored key of each row: a message without a key is where others look for its id."""
        keys = self._texts(batch, "key", KEYLESS)
        if "key" in self.shape.columns:
            marked = pc.starts_with(batch.column("key"), SHARD_MARK)
            if (place := pc.index(marked, True).as_py()) >= 0:
                self._check(place, "key", check_key, keys[place])
        if "id" not in self.shape.columns:
            return [key or SHARD_KEYS[0] for key in keys]
        ids = batch.column("id").to_pylist()
        return [
            key or (SHARD_KEYS[0] if id is None else shard_key(id))
            for key, id in zip(keys, ids, strict=True)
        ]

    def _texts(self, batch: pa.RecordBatch, name: str, none: str) -> list[str]:
        """A column of text; `none` stands for none, and so must not be in it."""
        if name not in self.shape.columns:
            return [none] * batch.num_rows
        column = batch.column(name)
        if column.null_count < len(column) and (place := pc.index(column, none).as_py()) >= 0:
            self._check(place, name, check_kind if name == "kind" else check_key, none)
        texts: list[str] = column.fill_null(none).to_pylist()
        return texts

    def _priorities(self, batch: pa.RecordBatch) -> list[int]:
        if "priority" not in self.shape.columns:
            return [0] * batch.num_rows
        found = [priority or 0 for priority in batch.column("priority").to_pylist()]
        for place, priority in enumerate(found):
            if abs(priority) > PRIORITY_MAX:
                problem = f"it must be from -{PRIORITY_MAX:,} to {PRIORITY_MAX:,}, not {priority:,}"
                self._refuse(place, "priority", InvalidOption(problem))
        return found

    def _check_name(self, place: int, name: tuple[str, str, int]) -> None:
        """Raise for a name that is none, when it comes for the first time."""
        target, own, _ = name
        if self.shape.queue is None and self.shape.topic is None:
            self._check(place, "topic", check_topic, target)
        if self.shape.queue is None and own not in SHARD_KEYS:
            self._check(place, "key", check_key, own)
        elif self.shape.queue is not None and own:
            self._check(place, "kind", check_kind, own)

    # --- what not all rows have -------------------------------------------------------------------

    def _name(self, batch: pa.RecordBatch) -> pa.Array:
        if self.shape.queue is None:
            return self._checked(batch, "id", check_id, ID_BYTES_MAX)
        keys = self._checked(batch, "key", check_job_key, KEY_BYTES_MAX)
        self.plain = self.plain and keys.null_count == len(keys)
        return keys

    def _ordering_key(self, batch: pa.RecordBatch) -> pa.Array:
        keys = self._checked(batch, "ordering_key", check_job_key, KEY_BYTES_MAX)
        self.plain = self.plain and keys.null_count == len(keys)
        return keys

    def _checked(
        self, batch: pa.RecordBatch, name: str, check: Callable[..., Any], bytes_max: int
    ) -> pa.Array:
        """A column of names."""
        column = batch.column(name).cast(pa.string())
        sizes = pc.min_max(pc.binary_length(column)).as_py()
        too_long = (sizes["max"] or 0) > bytes_max
        with_nul = pc.any(pc.match_substring(column, "\0")).as_py()
        if sizes["min"] == 0 or too_long or with_nul:
            for place, value in enumerate(column.to_pylist()):
                if value is not None:
                    self._check(place, name, check, value)
        return column

    def _headers(self, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column("headers")
        if column.null_count == len(column) or not len(column.items):
            return pa.nulls(len(column), pa.string())
        found = []
        for place, pairs in enumerate(column.to_pylist()):
            headers = self._check(place, "headers", check_headers, dict(pairs or ()))
            found.append(encode_headers(headers))
        return pa.array(found, pa.string())

    def _due_at(self, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column("due_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        bounds = pc.min_max(column).as_py()
        try:
            for bound in bounds.values():
                from_micros(bound or 0)
        except OverflowError:
            for place, micros in enumerate(column.to_pylist()):
                self._check(place, "due_at", due, micros or 0)
        return column

    # --- what is wrong ----------------------------------------------------------------------------

    def _check(self, place: int, column: str, check: Callable[..., Any], value: Any) -> Any:
        try:
            return check(value)
        except InvalidInput as error:
            self._refuse(place, column, error)

    def _refuse(self, place: int, column: str, error: InvalidInput) -> NoReturn:
        """Raise an error with where it was."""
        row = self._passed + place + 1
        raise type(error)(
            f"row {row:,} of Spark's partition {self.partition}, column {column!r}: {error}"
        ) from error


def due(micros: int) -> int:
    try:
        from_micros(micros)
    except OverflowError:
        raise InvalidOption("a time must be within the years 1 to 9999 in UTC") from None
    return micros


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type without regard to how long its values may be."""
    large = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
    return large.get(kind, kind)
