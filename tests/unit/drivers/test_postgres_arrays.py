"""Columns go to PostgreSQL as psycopg itself would write them, only quicker."""

from typing import Any

import psycopg
import pytest
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.pq import Format
from psycopg.types.array import ListBinaryDumper

from rowmq.drivers.postgres_arrays import ColumnDumper

COLUMNS = [
    ["a", "", "\N{SNOWMAN}", '"{,}\\', "NULL"],
    ["a", None, "b"],
    [None, "b"],
    [b"", b"\0\xff", b"x" * 70_000],
    [b"x", None],
    [2**31],  # which psycopg, too, takes for a bigint
    [2**62, None, -(2**40)],
]


class Context:
    """What a cursor is to its dumpers."""

    connection = None

    def __init__(self, dumper: type[ListBinaryDumper]) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        self.adapters.register_dumper(list, dumper)


def dump(dumper: type[ListBinaryDumper], column: list[Any]) -> tuple[bytes, int]:
    found = Transformer(Context(dumper)).get_dumper(column, PyFormat.AUTO)
    return bytes(found.dump(column) or b""), found.oid


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
def test_a_column_is_written_as_psycopg_writes_it(column: list[Any]) -> None:
    assert dump(ColumnDumper, column) == dump(ListBinaryDumper, column)


@pytest.mark.parametrize("column", [[1], [1, None], [40_000, -1], [0, 2**40]], ids=repr)
def test_whole_numbers_have_one_type_however_small(column: list[Any]) -> None:
    data, oid = dump(ColumnDumper, column)
    assert oid == dump(ListBinaryDumper, [2**40])[1]
    assert Transformer().get_loader(oid, Format.BINARY).load(data) == column


@pytest.mark.parametrize("column", [[], [None], [True], [1.5], [[1, 2], [3, 4]]], ids=repr)
def test_what_is_no_column_is_left_to_psycopg(column: list[Any]) -> None:
    assert dump(ColumnDumper, column) == dump(ListBinaryDumper, column)


def test_one_session_writes_columns_of_every_kind() -> None:
    transformer = Transformer(Context(ColumnDumper))
    for column in (*COLUMNS, *reversed(COLUMNS)):
        dumper = transformer.get_dumper(column, PyFormat.AUTO)
        data = bytes(dumper.dump(column) or b"")
        assert transformer.get_loader(dumper.oid, Format.BINARY).load(data) == column
