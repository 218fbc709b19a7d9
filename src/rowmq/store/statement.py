"""Operations are generators of SQL statements.

An operation yields a `Statement`, is sent its `Result`, and returns a value:

    def rename(store, old, new) -> Operation[bool]:
        result = yield Statement("things.rename", "UPDATE things SET ...", (new, old))
        return result.rowcount == 1

It does no I/O. Whoever drives it (sync, async, inside the caller's own transaction, or a simulator
that crashes between two statements) owns the connection and the transaction. A database error is
thrown into the generator at its `yield`. A retry starts a fresh generator, and a failed COMMIT may
have happened, so every operation is safe to repeat.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

__all__ = ["Operation", "Result", "Row", "Statement"]

Row = Sequence[Any]


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement in the placeholder style of its dialect, with a name for people.

    `sole` says that this statement is a whole transaction by itself: if it comes first, no BEGIN
    and COMMIT are spent on it. Every single read and every one-statement write is one. `relaxed`
    says that a transaction that begins with it may be committed without waiting for the disk.
    """

    name: str
    sql: str
    params: Sequence[Any] = ()
    sole: bool = False
    relaxed: bool = False


class Result(msgspec.Struct, frozen=True):
    """What a statement gave: its rows, or how many it changed (-1 where that is not told)."""

    rows: Sequence[Row]
    rowcount: int = -1

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


T = TypeVar("T")
Operation = Generator[Statement, Result, T]
