"""Which dead letters are meant: all of a topic or a group, those of some messages, or exactly some.

An id names a message of one key: another key may have it too, another group may have given up on
the same message, and one group may do so twice. So a letter has a handle, which names it alone. It
is where the letter's copy lies in the log of letters, whose offsets are given once: the handle of a
letter that has gone is that of no other. It has the time at which the letter was made as well, for
a database that was restored or made anew gives its offsets again.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Self

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted

__all__ = ["BATCH", "HANDLE", "Handle", "Selection"]

BATCH = 100
"""How many letters are redriven or purged in one transaction."""

HANDLE = {"partition_id": "bigint", "message_offset": "bigint", "failed_at": "bigint"}
"""The columns of what a handle is made of."""

_NUMBERS = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18}){2}", re.ASCII)


class Handle(NamedTuple):
    """What names a letter, and no other one."""

    partition_id: int
    offset: int
    failed_at: int

    @classmethod
    def read(cls, text: str) -> Self:
        """The handle that a letter has told."""
        if not isinstance(text, str) or not _NUMBERS.fullmatch(text):
            raise InvalidOption(
                f"{quoted(text)} is no handle of a dead letter: give one as letter.handle has it"
            )
        return cls(*(int(number) for number in text.split(".")))

    def written(self) -> str:
        return f"{self.partition_id}.{self.offset}.{self.failed_at}"


class Selection(NamedTuple):
    """The letters of a topic, or of one group of it: those of messages with some ids, those with
    some handles, or all.
    """

    topic: str
    group: str | None = None
    ids: Sequence[str] | None = None
    handles: Sequence[Handle] | None = None

    @property
    def parts(self) -> "list[Selection]":
        """The same in parts that fit into a statement."""
        if self.handles is not None:
            runs = runs_of(len(self.handles))
            return [self._replace(handles=self.handles[run]) for run in runs]
        if self.ids is not None:
            return [self._replace(ids=self.ids[run]) for run in runs_of(len(self.ids))]
        return [self]


def runs_of(count: int) -> list[slice]:
    return [slice(start, start + BATCH) for start in range(0, count, BATCH)]
