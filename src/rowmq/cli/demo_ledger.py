"""What `rowmq demo` has seen happen: read from the ledger, and from the database itself."""

import sqlite3
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

import rowmq
from rowmq.cli.demo_app import RECEIPT_SECONDS

__all__ = ["Figures", "Ledger", "Story", "promises"]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say of one group, queue or schedule."""

    name: str
    given: int
    """How many messages or jobs there were."""
    begun: int
    """How many attempts were begun."""
    again: int
    """How many of them were not the first."""
    dead: int
    healed: int
    done: int
    """How many were done, by the ledger."""

    @property
    def left(self) -> int:
        return max(0, self.given - self.done - self.dead + self.healed)


class Story(msgspec.Struct, kw_only=True):
    """What the demo itself did, which the ledger cannot know."""

    published: int = 0
    duplicates: list[bool] = msgspec.field(default_factory=list)
    """Of the orders that were published twice: whether the second time was seen to be that."""
    rolled_back: bool = False
    slow: str = ""
    killed_pid: int = 0
    dead: set[str] = msgspec.field(default_factory=set)
    """The orders that were in the dead letters before they were redriven."""
    yen: set[str] = msgspec.field(default_factory=set)
    stopped: list[int] = msgspec.field(default_factory=list)
    """The exit codes of the workers that were asked to stop."""


class Ledger:
    """Reads what the handlers wrote, beside the workers that write."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def effects(self, name: str) -> list[tuple[str, str | None, int, int, float]]:
        """Reference, customer, pid, attempt and time of one kind of effect, in their order."""
        return self.rows(
            "SELECT reference, customer, pid, attempt, at FROM demo_ledger WHERE effect = ? "
            "ORDER BY number",
            name,
        )

    def count(self, effect: str) -> int:
        ((count,),) = self.rows("SELECT COUNT(*) FROM demo_ledger WHERE effect = ?", effect)
        return int(count)

    def attempts(self, handler: str) -> tuple[int, int]:
        """How many attempts were begun, and how many of those were not the first."""
        ((begun, again),) = self.rows(
            "SELECT COUNT(*), COUNT(*) FILTER (WHERE attempt > 1) FROM demo_attempts "
            "WHERE handler = ?",
            handler,
        )
        return int(begun), int(again)

    def begun_by(self, handler: str, reference: str) -> list[int]:
        """Which processes began something, in order."""
        sql = "SELECT pid FROM demo_attempts WHERE handler = ? AND reference = ? ORDER BY rowid"
        return [pid for (pid,) in self.rows(sql, handler, reference)]

    def done_by(self) -> dict[int, int]:
        """How much each process has done."""
        return dict(self.rows("SELECT pid, COUNT(*) FROM demo_ledger GROUP BY pid"))

    def fix(self) -> None:
        """Fix the bug, for all workers at once."""
        self._connection.execute("INSERT INTO demo_fixes (name) VALUES ('yen')")

    # --- at a glance ------------------------------------------------------------------------------

    def group(self, name: str, handler: str, effect: str, story: Story, dead: int) -> Figures:
        """A group's figures; `dead` is how many dead letters it has now."""
        begun, again = self.attempts(handler)
        buried = story.dead if name == "billing" else set()
        billed = {reference for reference, *_ in self.effects(effect)}
        return Figures(
            name=name,
            given=story.published,
            begun=begun,
            again=again,
            dead=len(buried) or dead,
            healed=len(buried & billed),
            done=self.count(effect),
        )

    def queue(self, name: str, handler: str, effect: str, counts: dict[str, int]) -> Figures:
        """A queue's figures."""
        begun, again = self.attempts(handler)
        done = self.count(effect)
        return Figures(
            name=name,
            given=sum(counts.values()),
            begun=begun,
            again=again,
            dead=counts["failed"],
            healed=0,
            done=done,
        )

    def figures(self, mq: rowmq.RowMQ, story: Story) -> list[Figures]:
        """All of them."""
        letters = Counter(letter.group for letter in mq.dead_letters("orders", limit=1_000))
        receipts, ticks = mq.queue("receipts").counts(), mq.queue("ticks").counts()
        return [
            self.group("billing", "bill", "billed", story, letters["billing"]),
            self.group("search", "index", "indexed", story, letters["search"]),
            self.queue("receipts", "send", "sent", receipts),
            self.queue("ticks", "tick", "ticked", ticks),
        ]


# --- what was promised ----------------------------------------------------------------------------


def promises(mq: rowmq.RowMQ, ledger: Ledger, story: Story) -> dict[str, bool]:
    """What was promised, and whether it held."""
    numbered: dict[str | None, list[int]] = defaultdict(list)
    ordered: dict[str | None, list[str | None]] = defaultdict(list)
    for message in mq.read("orders", limit=10_000):
        numbered[message.key].append(message.offset)
        ordered[message.key].append(message.id)
    orders = {id for ids in ordered.values() for id in ids}
    billed = [reference for reference, *_ in ledger.effects("billed")]
    begun = ledger.begun_by("bill", story.slow)
    twice = len(story.duplicates)
    found = {
        f"{story.published} orders, {twice} of them published twice: none doubled": (
            len(orders) == story.published
            and sum(map(len, ordered.values())) == story.published
            and all(story.duplicates)
        ),
        "each customer's orders numbered without a gap": all(
            offsets == list(range(1, len(offsets) + 1)) for offsets in numbered.values()
        ),
        "a transaction that failed took its message with it": story.rolled_back,
        "every order billed, and none twice, though a worker was killed": (
            sorted(billed) == sorted(map(str, orders))
        ),
        "the killed worker's order was taken over by another": (
            begun[:1] == [story.killed_pid] and begun[-1] != story.killed_pid
        ),
        "every order found by search, each customer's in their order": (
            indexed_in_order(ledger) == dict(ordered)
        ),
        f"the {len(story.yen)} orders with the bug died, and no others; a redrive healed them": (
            story.dead == story.yen and not mq.dead_letters("orders") and story.yen <= set(billed)
        ),
        "one receipt for each order billed, and none before its time": receipts_held(ledger),
        "one tick each second, none missed, none doubled": ticks_held(ledger),
    }
    if story.stopped:
        found["the workers stopped in time when they were asked to"] = not any(story.stopped)
    return found


def indexed_in_order(ledger: Ledger) -> dict[str | None, list[str | None]]:
    """What search has of each customer, in the order it came."""
    found: dict[str | None, list[str | None]] = defaultdict(list)
    for reference, customer, *_ in ledger.effects("indexed"):
        found[customer].append(reference)
    return dict(found)


def receipts_held(ledger: Ledger) -> bool:
    """Whether receipts were sent once each, and not too soon after the billing."""
    billed = {reference: at for reference, *_, at in ledger.effects("billed")}
    sent = [(reference, at) for reference, *_, at in ledger.effects("sent")]
    soonest = RECEIPT_SECONDS - 0.05  # the database has milliseconds, and reads the time first
    return sorted(reference for reference, _ in sent) == sorted(billed) and all(
        at - billed[reference] >= soonest for reference, at in sent
    )


def ticks_held(ledger: Ledger) -> bool:
    """Whether there was a tick for each second, from the first to the last."""
    times = sorted(
        datetime.fromisoformat(reference).timestamp() for reference, *_ in ledger.effects("ticked")
    )
    return bool(times) and times == [times[0] + second for second in range(len(times))]
