"""A database's clock that tests move: a table with the time stands for it.

Clients that are connected here ask that table wherever they would ask the database's clock. So a
week passes in a second, for all of them at once, in whatever process they are.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import rowmq
from rowmq.engine import Options, open_async_engine, open_engine
from rowmq.times import to_micros
from tests.databases import Database
from tests.flavours import Awaited, in_thread

__all__ = ["CLOCK", "Clock", "connect"]

CLOCK = "(SELECT now_us FROM moved_clock)"


class Clock:
    """The time that clients of a database are told."""

    def __init__(self, database: Database, now: datetime) -> None:
        self.database = database
        self.now = now
        database.execute("DROP TABLE IF EXISTS moved_clock")
        database.execute("CREATE TABLE moved_clock (now_us bigint NOT NULL)")
        database.execute(f"INSERT INTO moved_clock VALUES ({to_micros(now)})")

    def set(self, now: datetime) -> None:
        self.now = now.astimezone(UTC)
        self.database.execute(f"UPDATE moved_clock SET now_us = {to_micros(now)}")

    def move(self, **by: float) -> datetime:
        """Move on, or back; the time it is then."""
        self.set(self.now + timedelta(**by))
        return self.now

    def drop(self) -> None:
        self.database.execute("DROP TABLE moved_clock")


async def connect(flavour: str, url: str, **options: Any) -> Any:
    """A client of a flavour that goes by the moved clock; the tables are there."""
    chosen = Options(clock=CLOCK, **options)
    if flavour == "async":
        mq = rowmq.AsyncRowMQ(open_async_engine(url, chosen))
        await mq._prepare(auto_migrate=False)
        return mq
    return Awaited(await in_thread(connect_sync, url, chosen))


def connect_sync(url: str, options: Options) -> rowmq.RowMQ:
    mq = rowmq.RowMQ(open_engine(url, options))
    mq._prepare(auto_migrate=False)
    return mq
