"""What the database's ledger knows of a replay: its plan, and which chunks of it were done.

A lake has the plan itself. But the chunks are counted in the database, by the id of the replay: so
it is the database that says which plan an id stands for, once and for all. Of two who begin at the
same time both do that one; and another lake, whose chunks are others, does not pass for this one.
"""

from functools import partial

from rowmq.client import RowMQ
from rowmq.store.staging import Version
from rowmq.store.statement import Operation, Statement

__all__ = ["Ledger"]


class Ledger:
    """The ledger, for one replay."""

    def __init__(self, mq: RowMQ, *, id: str, target: str) -> None:
        self.mq = mq
        self.store = mq._store  # noqa: SLF001 - its own
        self.id = id
        self.target = target

    def chunk(self, number: int) -> Version:
        """What a chunk is known as: by the sink as well, which is told `txnAppId`."""
        return Version(f"app:replay:{self.id}", self.target, number)

    def standing(self, number: int) -> Version:
        """What a plan is known as."""
        return Version(f"replay:{self.id}", "plan", number)

    def done(self) -> int:
        """The number of the last chunk that was done; -1 if none was."""
        return self.mq._run(partial(self.find, self.chunk(0)))  # noqa: SLF001 - its own

    def plan(self) -> int | None:
        """The number of the plan that the id stands for, if it does so already."""
        number = self.mq._run(partial(self.find, self.standing(0)))  # noqa: SLF001 - its own
        return None if number < 0 else number

    def settle(self, number: int) -> int:
        """Have the id stand for a plan, unless it does so for another; which one it is."""
        staging = self.store.staging
        return self.mq._run(partial(staging.settle, self.standing(number)))  # noqa: SLF001 - its own

    def find(self, version: Version) -> Operation[int]:
        dialect = self.store.dialect
        name = (dialect.text(version.writer), dialect.text(version.target))
        result = yield Statement("replay.find", dialect.sql(FIND), name, sole=True)
        return int(result.rows[0][0]) if result.rows else -1


FIND = "SELECT version FROM {ledger} WHERE writer = ? AND target = ?"
