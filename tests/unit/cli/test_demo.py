"""The check at the end of `rowmq demo` sees what was lost, doubled, too soon or out of order."""

import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

import rowmq
from rowmq.cli.demo_app import LEDGER_SQL, RECEIPT_SECONDS, Order
from rowmq.cli.demo_ledger import Ledger, Story, promises
from rowmq.cli.demo_show import held

PROMISES = 10


@pytest.fixture
def played(tmp_path: Path) -> Iterator[tuple[rowmq.RowMQ, Ledger, Story]]:
    """A database and a ledger of a demo in which all went well."""
    path = tmp_path / "demo.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(LEDGER_SQL)
    story = Story(
        published=4,
        duplicates=[True],
        rolled_back=True,
        slow="order-2",
        killed_pid=11,
        dead={"order-4"},
        yen={"order-4"},
        stopped=[0, 0],
    )
    with rowmq.connect(f"sqlite:///{path}") as mq, closing(Ledger(path)) as ledger:
        for number in range(1, 5):
            order = Order(number)
            mq.publish("orders", order, key=f"customer-{number % 2}", id=order.id)
            write(ledger, "billed", order.id, at=100.0)
            write(ledger, "indexed", order.id, customer=f"customer-{number % 2}")
            write(ledger, "sent", order.id, at=100.0 + RECEIPT_SECONDS)
            write(ledger, "ticked", datetime.fromtimestamp(number, UTC).isoformat())
        for pid in (11, 12):
            ledger.rows("INSERT INTO demo_attempts VALUES ('bill', 'order-2', 1, ?)", pid)
        yield mq, ledger, story


def write(
    ledger: Ledger, effect: str, reference: str, *, customer: str | None = None, at: float = 0.0
) -> None:
    ledger.rows(
        "INSERT INTO demo_ledger (effect, reference, customer, pid, attempt, at) "
        "VALUES (?, ?, ?, 12, 1, ?)",
        effect,
        reference,
        customer,
        at,
    )


def test_the_check_holds_when_all_went_well(
    played: tuple[rowmq.RowMQ, Ledger, Story],
) -> None:
    found = promises(*played)
    assert len(found) == PROMISES
    assert all(found.values()), found


BREAKS = {
    "DELETE FROM demo_ledger WHERE effect = 'billed' AND reference = 'order-1'": "order billed",
    "INSERT INTO demo_ledger SELECT 99, effect, reference, customer, pid, attempt, at "
    "FROM demo_ledger WHERE effect = 'billed' AND reference = 'order-1'": "every order billed",
    "DELETE FROM demo_ledger WHERE effect = 'indexed' AND reference = 'order-1'": "found by search",
    "UPDATE demo_ledger SET number = 99 WHERE effect = 'indexed' AND reference = 'order-1'": (
        "found by search"
    ),
    "UPDATE demo_ledger SET at = at - 1 WHERE effect = 'sent' AND reference = 'order-1'": (
        "one receipt for each"
    ),
    "DELETE FROM demo_ledger WHERE effect = 'sent' AND reference = 'order-1'": "one receipt",
    "DELETE FROM demo_ledger WHERE effect = 'ticked' AND reference LIKE '%:02+%'": "one tick each",
    "UPDATE demo_attempts SET pid = 11": "taken over by another",
    "DELETE FROM rowmq_messages WHERE message_id = 'order-1'": "numbered without a gap",
}


@pytest.mark.parametrize(("sql", "promise"), BREAKS.items())
def test_the_check_sees_what_was_lost_or_doubled(
    played: tuple[rowmq.RowMQ, Ledger, Story], sql: str, promise: str
) -> None:
    mq, ledger, story = played
    ledger.rows(sql)
    broken = [said for said, kept in promises(mq, ledger, story).items() if not kept]
    assert any(promise in said for said in broken), broken
    assert not held(Console(file=io.StringIO()), promises(mq, ledger, story))


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ({"published": 5}, "none doubled"),
        ({"duplicates": [False]}, "none doubled"),
        ({"rolled_back": False}, "took its message with it"),
        ({"dead": {"order-3", "order-4"}}, "and no others"),
        ({"stopped": [0, 5]}, "stopped in time"),
    ],
)
def test_the_check_sees_what_went_otherwise_than_told(
    played: tuple[rowmq.RowMQ, Ledger, Story], change: dict[str, object], promise: str
) -> None:
    mq, ledger, story = played
    for name, value in change.items():
        setattr(story, name, value)
    broken = [said for said, kept in promises(mq, ledger, story).items() if not kept]
    assert any(promise in said for said in broken), broken
