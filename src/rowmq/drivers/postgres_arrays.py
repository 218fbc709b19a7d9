"""Arrays for psycopg, a whole column at a time.

psycopg looks at every element of a list several times: what it is, and how it is written. The
arrays of our own SQL are columns of whole numbers, text or bytes, which is seen once. Whole
numbers always go as bigint, however small they are: so a statement has the same types every time,
and stays prepared; its own casts say what they become.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct
from types import NoneType
from typing import Any, ClassVar

from psycopg.abc import Buffer, DumperKey, PyFormat
from psycopg.types.array import BaseListDumper, ListBinaryDumper

__all__ = ["ColumnDumper"]


class ColumnDumper(ListBinaryDumper):
    """Finds the dumper of a list: one of those below, or else psycopg's own."""

    def get_key(self, obj: list[Any], format: PyFormat) -> DumperKey:
        kind = kind_of(obj)
        return super().get_key(obj, format) if kind is None else (self.cls, kind)

    def upgrade(self, obj: list[Any], format: PyFormat) -> BaseListDumper:
        kind = kind_of(obj)
        return super().upgrade(obj, format) if kind is None else COLUMNS[kind](self.cls, self._tx)


class FlatDumper(ListBinaryDumper):
    """Writes a column of one type, which may have gaps."""

    cell_oid: ClassVar[int]
    write: ClassVar[Callable[[Any], bytes]]

    def get_key(self, obj: list[Any], format: PyFormat) -> DumperKey:  # noqa: ARG002 - as given
        return self.cls

    def upgrade(self, obj: list[Any], format: PyFormat) -> BaseListDumper:  # noqa: ARG002
        return self

    def dump(self, obj: list[Any]) -> Buffer | None:
        write = type(self).write
        gaps = None in obj
        cells = [GAP if v is None else write(v) for v in obj] if gaps else map(write, obj)
        return HEAD.pack(1, gaps, self.cell_oid, len(obj), 1) + b"".join(cells)


def kind_of(column: list[Any]) -> type | None:
    """The one type of a column that there is a dumper for."""
    kinds = set(map(type, column)) - {NoneType}
    kind = kinds.pop() if len(kinds) == 1 else None
    return kind if kind in COLUMNS else None


def sized(data: bytes) -> bytes:
    return SIZE.pack(len(data)) + data


def sized_text(text: str) -> bytes:
    return sized(text.encode())


HEAD = Struct(">iiIii")
"""Dimensions, whether there are gaps, the element's type; then length and first index."""

SIZE = Struct(">i")
GAP = SIZE.pack(-1)


class NumberDumper(FlatDumper):
    oid = 1016
    cell_oid = 20
    write = partial(Struct(">iq").pack, 8)


class TextDumper(FlatDumper):
    oid = 1009
    cell_oid = 25
    write = sized_text


class BytesDumper(FlatDumper):
    oid = 1001
    cell_oid = 17
    write = sized


COLUMNS: dict[Any, type[FlatDumper]] = {int: NumberDumper, str: TextDumper, bytes: BytesDumper}
