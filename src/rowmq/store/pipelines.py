"""What Spark reads and writes, as the database knows it, for people to see.

A stream that reads, or an archive, has a group and moves its place. One that writes has a line in
the ledger. The database does not know which of them belong to the same query: Spark does.
"""

from collections.abc import Sequence
from typing import Any

from rowmq.message import Pipelines, ReaderInfo, WriterInfo
from rowmq.store.dialect import Dialect, as_text
from rowmq.store.groups import Readers
from rowmq.store.statement import Operation, Result, Row, Statement
from rowmq.store.sweeping import Member
from rowmq.store.traffic import Counting, Place
from rowmq.times import from_micros

__all__ = ["Pipes"]

READERS_MAX = 200
WRITERS_MAX = 200


class Pipes:
    """The operations on pipelines, for one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.traffic = Counting(dialect)

    def list_pipelines(self) -> Operation[Pipelines]:
        """Who reads and keeps its own books, by topic; and who has published by the ledger, the
        last one first.
        """
        found = (yield from self.ask("readers", READERS, (READERS_MAX,))).rows
        members = [Member(id, as_text(topic)) for id, topic, *_ in found]
        places = yield from self.traffic.standings(members)
        written = yield from self.ask("writers", WRITERS, (WRITERS_MAX,))
        return Pipelines(
            readers=tuple(
                reader_of(member.topic, facts, places[member.id])
                for member, (_, _, *facts) in zip(members, found, strict=True)
            ),
            writers=tuple(
                WriterInfo(
                    writer=as_text(writer),
                    target=as_text(target),
                    version=int(version),
                    written_at=from_micros(updated_at),
                )
                for writer, target, version, updated_at in written
            ),
        )

    def ask(self, name: str, template: str, params: Sequence[Any]) -> Operation[Result]:
        """Run one statement, which is a transaction by itself: it keeps nobody waiting."""
        sql = self.dialect.sql(template)
        return (yield Statement(f"pipelines.{name}", sql, params, sole=True))


def reader_of(topic: str, facts: Row, place: Place) -> ReaderInfo:
    group, created_at, moved_at = facts
    behind, oldest = place.behind, place.oldest
    return ReaderInfo(
        topic=topic,
        group=as_text(group),
        created_at=from_micros(created_at),
        moved_at=None if moved_at is None else from_micros(moved_at),
        partitions=behind.partitions,
        behind=behind.behind,
        lag=behind.lag,
        oldest_at=None if oldest is None else from_micros(oldest),
        capped=place.capped,
        oldest_capped=place.oldest_capped,
    )


READERS = f"""
    SELECT g.id, g.topic, g.consumer_group, g.created_at, g.moved_at
    FROM {{groups}} g WHERE g.read_by = {int(Readers.BOOKKEEPER)}
    ORDER BY g.topic, g.consumer_group LIMIT ?"""

WRITERS = """
    SELECT writer, target, version, updated_at FROM {ledger} WHERE version >= 0
    ORDER BY updated_at DESC, writer, target LIMIT ?"""
