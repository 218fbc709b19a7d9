"""Every public call, given anything: it works and reads back, or is refused and changes nothing."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import rowmq
from rowmq.store.dialect import TABLES
from tests.databases import Database, SQLiteDatabase
from tests.fuzz.effort import effort
from tests.fuzz.playing import (
    EXCUSED,
    AsyncPlayer,
    Call,
    Game,
    Player,
    SyncPlayer,
    calls,
    methods,
    parameters,
)
from tests.fuzz.values import VALUES, Some

OPTIONS: dict[str, Any] = {"notify": False, "pool_size": 2}

# Those who consume write here whenever they like; and whoever may put jobs takes ids for them.
BUSY = ("migrations", "subscribers", "offsets", "delivery_state", "job_ids")
QUIET = [table for table in TABLES if table not in BUSY]


CLAIMED = ("delivery", "job", "subscriber")
"""What is had by writing, before anything is given to it; as are some jobs, and some deliveries."""


def contents(database: Database) -> list[Any]:
    """What each table has; or, where that takes longer to find out, how many rows."""
    if isinstance(database, SQLiteDatabase):
        with closing(sqlite3.connect(database.path, timeout=30)) as connection:
            looks = [f"SELECT * FROM rowmq_{table}" for table in QUIET]
            return [sum(map(hash, connection.execute(look))) for look in looks]
    counts = ", ".join(f"(SELECT COUNT(*) FROM rowmq_{table})" for table in QUIET)
    return list(database.execute(f"SELECT {counts}")[0])


@contextmanager
def players(database: Database) -> Iterator[list[tuple[Player, Any]]]:
    """A sync and an async client, with who has them do things."""
    with asyncio.Runner() as runner, rowmq.connect(database.url, **OPTIONS) as mq:
        other = AsyncPlayer(runner)
        async_mq = other.do(lambda: rowmq.connect_async(database.url, **OPTIONS))
        try:
            yield [(SyncPlayer(), mq), (other, async_mq)]
        finally:
            other.do(async_mq.close)


def play(player: Player, mq: Any, database: Database, moves: list[Call]) -> list[Any]:
    """What calls came to. Those that were refused have changed nothing."""
    outcomes = []
    with Game(player, mq) as game:
        before = contents(database)
        for call in moves:
            outcome = game.play(call)
            outcomes.append(outcome)
            after = contents(database)
            is_input = outcome is not None and issubclass(
                getattr(rowmq.errors, outcome[0], Exception), rowmq.errors.InvalidInput
            )
            taken = any(isinstance(value, Some) for value in call.arguments.values())
            if is_input and not taken and call.receiver not in CLAIMED:
                assert after == before, call
            before = after
        usable(player, mq)
    return outcomes


def usable(player: Player, mq: Any) -> None:
    """The client works as if nothing had been."""
    published = player.do(lambda: mq.publish("sentinel", "here", key="k"))
    (message,) = player.do(lambda: mq.read("sentinel", key="k", from_offset=published.offset))
    assert message.payload == "here"
    queue = mq.queue("another sentinel")
    put = player.do(lambda: queue.put("here"))
    job = player.do(queue.try_poll)
    assert (job.id, job.payload) == (put.id, "here")
    player.do(job.ack)


def wipe(database: Database) -> None:
    if database.name == "sqlite":
        for table in TABLES:
            if table != "migrations":
                database.execute(f"DELETE FROM rowmq_{table}")
    else:
        database.clean()


def test_every_call_has_values() -> None:
    """Of a new method or a new parameter somebody has to say what it may be given."""
    missing = {
        f"{receiver}.{method}({name}=)"
        for receiver, method in methods()
        if (receiver, method) not in EXCUSED or method == "subscribe"
        for name in parameters(receiver, method)
        if name not in VALUES
    }
    assert missing == set()
    assert set(EXCUSED) <= set(methods())


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("chosen", [m for m in methods() if m not in EXCUSED], ids=".".join)
def test_each_call_by_itself(database: Database, chosen: tuple[str, str]) -> None:
    with players(database) as found:

        @effort(6)
        @given(calls(chosen))
        def check(call: Call) -> None:
            check_alike(found, database, [call])

        check()


def test_calls_one_after_the_other(database: Database) -> None:
    with players(database) as found:

        @effort(25)
        @given(st.lists(calls(), min_size=1, max_size=6))
        def check(moves: list[Call]) -> None:
            check_alike(found, database, moves)

        check()


def check_alike(found: list[tuple[Player, Any]], database: Database, moves: list[Call]) -> None:
    """Both clients make the same of it."""
    outcomes = []
    for player, mq in found:
        wipe(database)
        outcomes.append(play(player, mq, database, moves))
    for call, one, other in zip(moves, *outcomes, strict=True):
        if one is None or other is None:
            continue  # nothing was delivered in time to be settled
        note(f"{call!r}: {one}, {other}")
        assert one[0] == other[0], call
        if call.arguments.get("connection") is None:  # of which each says what it takes itself
            assert one[1] == other[1], call
