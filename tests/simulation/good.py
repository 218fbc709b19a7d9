"""A good history, and ways to break one."""

from collections.abc import Callable
from typing import Any

import msgspec

from tests.simulation.history import (
    Claimed,
    Crashed,
    Delivered,
    Effect,
    Event,
    Final,
    History,
    Job,
    JobSettled,
    Outcome,
    Partition,
    Place,
    Progress,
    Published,
    Put,
    Settled,
    Stored,
    Tick,
)

__all__ = [
    "FAILED",
    "GOOD",
    "OK",
    "ONE",
    "REFUSED",
    "TICKING",
    "TWO",
    "UNKNOWN",
    "Break",
    "P",
    "all_of",
    "changed",
    "happened",
    "left",
    "never",
    "told",
]

OK, REFUSED, UNKNOWN, FAILED = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN, Outcome.FAILED
P = Partition("orders", "k")
ONE, TWO = Place("one", P), Place("two", P)

GOOD = History(
    strict=frozenset({"two"}),
    transactional=frozenset({"two", "mail"}),
    events=(
        Published(actor="p", began=1, ended=3, partition=P, mark="m1", outcome=OK, offset=1),
        Published(actor="p", began=4, ended=6, partition=P, mark="m2", outcome=OK, offset=2),
        Published(actor="q", began=5, partition=P, mark="m3", outcome=UNKNOWN),
        Crashed(actor="q", began=7, ended=7),
        # One group: its first owner dies, and its second has both again.
        Delivered(actor="a", began=8, ended=9, place=ONE, offset=1, mark="m1", epoch=1),
        Delivered(actor="a", began=8, ended=9, place=ONE, offset=2, mark="m2", epoch=1),
        Settled(
            actor="a", began=10, ended=11, place=ONE, offset=1, epoch=1, kind="ack", outcome=OK
        ),
        Delivered(
            actor="b", began=12, ended=13, place=ONE, offset=2, mark="m2", epoch=2, attempt=2
        ),
        Settled(
            actor="a", began=14, ended=15, place=ONE, offset=2, epoch=1, kind="ack", outcome=REFUSED
        ),
        Settled(
            actor="b",
            began=16,
            ended=17,
            place=ONE,
            offset=2,
            epoch=2,
            kind="ack",
            outcome=OK,
            attempt=2,
        ),
        # The other group, in strict order: a message after the other.
        Delivered(actor="c", began=20, ended=21, place=TWO, offset=1, mark="m1", epoch=1),
        Settled(
            actor="c", began=22, ended=23, place=TWO, offset=1, epoch=1, kind="ack", outcome=OK
        ),
        Delivered(actor="c", began=24, ended=25, place=TWO, offset=2, mark="m2", epoch=1),
        Settled(
            actor="c", began=26, ended=27, place=TWO, offset=2, epoch=1, kind="ack", outcome=OK
        ),
        # A job whose first lock runs out, and one that is offered twice and fails.
        Put(actor="p", began=30, ended=31, queue="mail", mark="j1", outcome=OK),
        Put(actor="p", began=32, ended=33, queue="mail", mark="j2", outcome=OK, key="x"),
        Put(actor="p", began=34, ended=35, queue="mail", mark="j3", outcome=OK, key="x"),
        Put(actor="p", began=36, ended=37, queue="mail", mark="j4", outcome=FAILED),
        Claimed(
            actor="w",
            began=40,
            ended=41,
            queue="mail",
            job=1,
            mark="j1",
            token=91,
            now=1000,
            until=1100,
        ),
        JobSettled(
            actor="w",
            began=42,
            ended=43,
            queue="mail",
            job=1,
            token=91,
            kind="extend",
            outcome=OK,
            until=1200,
        ),
        Claimed(
            actor="v",
            began=44,
            ended=45,
            queue="mail",
            job=1,
            mark="j1",
            token=92,
            now=1200,
            until=1300,
        ),
        JobSettled(
            actor="w",
            began=46,
            ended=47,
            queue="mail",
            job=1,
            token=91,
            kind="ack",
            outcome=REFUSED,
        ),
        JobSettled(
            actor="v", began=48, ended=49, queue="mail", job=1, token=92, kind="ack", outcome=OK
        ),
        Claimed(
            actor="v",
            began=50,
            ended=51,
            queue="mail",
            job=2,
            mark="j3",
            key="x",
            token=93,
            now=1210,
            until=1310,
        ),
        JobSettled(
            actor="v", began=52, ended=53, queue="mail", job=2, token=93, kind="reject", outcome=OK
        ),
        Claimed(
            actor="v",
            began=54,
            ended=55,
            queue="reports",
            job=3,
            mark="t1",
            token=94,
            now=1220,
            until=1320,
        ),
        JobSettled(
            actor="v", began=56, ended=57, queue="reports", job=3, token=94, kind="ack", outcome=OK
        ),
    ),
    final=Final(
        messages=(Stored(P, 1, "m1"), Stored(P, 2, "m2")),
        progress=(Progress(ONE, 0, 2), Progress(TWO, 0, 2)),
        jobs=(
            Job("mail", 1, "j1", "completed"),
            Job("mail", 2, "j3", "failed", "x"),
            Job("reports", 3, "t1", "completed"),
        ),
        ticks=(Tick("nightly", 600, 3),),
        due=(("nightly", 600),),
        effects=(Effect("two", "m1"), Effect("two", "m2"), Effect("mail", "j1")),
        counts={"mail": {"completed": 1, "failed": 1, "pending": 0}, "reports": {"completed": 1}},
        lags={("orders", "one"): 0, ("orders", "two"): 0},
    ),
)

Break = Callable[[History], History]


def left(**what: Any) -> Break:
    """Leave something else in the database."""

    def broken(history: History) -> History:
        final = msgspec.structs.replace(history.final, **what)
        return msgspec.structs.replace(history, final=final)

    return broken


def happened(*more: Event) -> Break:
    """Have more happen."""

    def broken(history: History) -> History:
        events = sorted([*history.events, *more], key=lambda event: event.began)
        return msgspec.structs.replace(history, events=tuple(events))

    return broken


def changed(at: int, **what: Any) -> Break:
    """Have what began at a time be otherwise."""

    def broken(history: History) -> History:
        events = [
            msgspec.structs.replace(event, **what) if event.began == at else event
            for event in history.events
        ]
        return msgspec.structs.replace(history, events=tuple(events))

    return broken


def never(began: int) -> Break:
    """Have what began at a time never happen."""

    def broken(history: History) -> History:
        events = tuple(event for event in history.events if event.began != began)
        return msgspec.structs.replace(history, events=events)

    return broken


def all_of(*breaks: Break) -> Break:
    def broken(history: History) -> History:
        for one in breaks:
            history = one(history)
        return history

    return broken


def told(**what: Any) -> Break:
    """Have something else be known of the run as a whole."""
    return lambda history: msgspec.structs.replace(history, **what)


TICKING = told(clocks=tuple([1000] * 44 + [1200] * 56))
"""The database's clock at each step: the first lock runs out at the 44th."""
