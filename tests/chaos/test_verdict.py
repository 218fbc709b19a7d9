"""The verdict of a trial catches what was lost, doubled, reordered, too late, and not ticked."""

from typing import Any

import msgspec
import pytest

from tests.chaos.load import AUDIT, BILLING, LEDGER, MAIL, OUTBOX, PARCELS, SCHEDULE, TICKS, TOPIC
from tests.chaos.verdict import CLOCK_NS, Verdict, history_of, judge
from tests.simulation.history import (
    Claimed,
    Delivered,
    Effect,
    Event,
    Final,
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

P = Partition(TOPIC, "a")
GROUPS = (BILLING, AUDIT, LEDGER)
OK, UNKNOWN = Outcome.OK, Outcome.UNKNOWN
FIRST, SECOND = "m1", f"m2@{OUTBOX}"
LINE = ("p1@red", "p2@red")


def messages() -> list[Event]:
    """Two messages that every group was given, and acked."""
    events: list[Event] = []
    for offset, mark in enumerate((FIRST, SECOND), start=1):
        at = 10 * offset
        events.append(
            Published(
                actor="p", began=at, ended=at + 1, partition=P, mark=mark, outcome=OK, offset=offset
            )
        )
        for group in GROUPS:
            which: dict[str, Any] = {"place": Place(group, P), "offset": offset, "epoch": 1}
            events += [
                Delivered(actor="c", began=at + 2, ended=at + 3, mark=mark, **which),
                Settled(actor="c", began=at + 4, ended=at + 5, kind="ack", outcome=OK, **which),
            ]
    return events


def jobs() -> list[Event]:
    """Two jobs of a line, one of a transactional handler, and a tick."""
    events: list[Event] = []
    for id, (queue, mark) in enumerate(
        [(PARCELS, LINE[0]), (PARCELS, LINE[1]), (MAIL, "j1"), (TICKS, "tick 5")], start=1
    ):
        at = 100 * id * CLOCK_NS
        if queue != TICKS:
            events.append(
                Put(actor="p", began=at, ended=at + 1, queue=queue, mark=mark, outcome=OK)
            )
        which: dict[str, Any] = {"queue": queue, "job": id, "token": id}
        events += [
            Claimed(
                actor="w", began=at + 2, ended=at + 3, mark=mark, now=at, until=at + 50, **which
            ),
            JobSettled(actor="w", began=at + 4, ended=at + 5, kind="ack", outcome=OK, **which),
        ]
    return events


EVENTS = [*messages(), *jobs()]

FINAL = Final(
    messages=(Stored(P, 1, FIRST), Stored(P, 2, SECOND)),
    progress=tuple(Progress(Place(group, P), 0, 2) for group in GROUPS),
    jobs=(
        Job(PARCELS, 1, LINE[0], "completed"),
        Job(PARCELS, 2, LINE[1], "completed"),
        Job(MAIL, 3, "j1", "completed"),
        Job(TICKS, 4, "tick 5", "completed"),
    ),
    ticks=(Tick(SCHEDULE, 5, 4),),
    due=((SCHEDULE, 5),),
    effects=(
        Effect(OUTBOX, SECOND),
        Effect(BILLING, FIRST),
        Effect(BILLING, SECOND),
        Effect(MAIL, "j1"),
    ),
)


def verdict_of(events: list[Event] = EVENTS, **changed: Any) -> Verdict:
    """The verdict on the good history, with something else in the database."""
    verdict = Verdict(fault="kill", database="sqlite")
    judge(verdict, history_of(events, msgspec.structs.replace(FINAL, **changed)))
    return verdict


def changed(
    change: dict[str, Any], events: list[Event], kind: type[Event], **which: Any
) -> list[Event]:
    """Events, with some of them told differently."""
    return [
        msgspec.structs.replace(event, **change)
        if isinstance(event, kind) and all(getattr(event, n) == v for n, v in which.items())
        else event
        for event in events
    ]


def test_a_good_trial_is_good() -> None:
    verdict = verdict_of()
    assert verdict.stories == []
    assert (verdict.messages, verdict.redeliveries, verdict.unknown) == (6, 0, 0)


def test_a_lost_message_is_caught() -> None:
    assert verdict_of(messages=FINAL.messages[1:]).lost


def test_a_lost_message_is_none_if_nobody_was_told_that_it_is_there() -> None:
    events = [
        *EVENTS,
        Published(actor="p", began=5, partition=P, mark="m0", outcome=UNKNOWN),
    ]
    verdict = verdict_of(events)
    assert verdict.good
    assert verdict.unknown == 1


def test_a_message_that_a_group_never_got_is_caught() -> None:
    events = [
        event
        for event in EVENTS
        if not (isinstance(event, Delivered) and event.place.group == AUDIT and event.offset == 2)
    ]
    assert verdict_of(events).lost


def test_a_lost_job_is_caught() -> None:
    assert verdict_of(jobs=FINAL.jobs[1:]).lost


def test_a_message_that_is_there_twice_is_caught() -> None:
    assert verdict_of(messages=(*FINAL.messages, Stored(P, 3, FIRST))).doubled


@pytest.mark.parametrize("owner", [BILLING, MAIL])
def test_an_effect_that_was_doubled_is_caught(owner: str) -> None:
    again = next(effect for effect in reversed(FINAL.effects) if effect.of == owner)
    verdict = verdict_of(effects=(*FINAL.effects, again))
    assert (verdict.doubled, verdict.lost, verdict.out_of_order) == (1, 0, 0)


@pytest.mark.parametrize("owner", [BILLING, MAIL])
def test_an_effect_that_is_missing_is_caught(owner: str) -> None:
    assert verdict_of(effects=tuple(e for e in FINAL.effects if e.of != owner)).doubled


def test_an_effect_of_a_publisher_without_its_message_is_caught() -> None:
    assert verdict_of(effects=(*FINAL.effects, Effect(OUTBOX, f"m3@{OUTBOX}"))).doubled


def test_a_message_without_the_effect_of_its_publisher_is_caught() -> None:
    assert verdict_of(effects=FINAL.effects[1:]).doubled


def test_effects_in_another_order_are_caught() -> None:
    outbox, first, second, job = FINAL.effects
    assert verdict_of(effects=(outbox, second, first, job)).out_of_order


def test_messages_that_were_reordered_are_caught() -> None:
    """The first one was published before the second, and is behind it."""
    swapped = (Stored(P, 2, FIRST), Stored(P, 1, SECOND))
    events = [
        msgspec.structs.replace(event, offset=3 - event.offset)
        if isinstance(event, Published | Delivered | Settled) and event.offset is not None
        else event
        for event in EVENTS
    ]
    verdict = verdict_of(events, messages=swapped)
    assert verdict.out_of_order
    assert not verdict.lost


def test_a_job_that_overtook_another_of_its_line_is_caught() -> None:
    put, claimed = 110 * CLOCK_NS, 115 * CLOCK_NS
    early = changed({"began": put, "ended": put}, EVENTS, Put, mark=LINE[1])
    early = changed({"began": claimed, "ended": claimed}, early, Claimed, mark=LINE[1])
    assert verdict_of(early).good
    late = {"began": 120 * CLOCK_NS, "ended": 120 * CLOCK_NS}
    verdict = verdict_of(changed(late, early, JobSettled, job=1))
    assert (verdict.out_of_order, verdict.lost) == (1, 0)


def test_a_settle_that_came_too_late_is_caught() -> None:
    late = Settled(
        actor="b",
        began=90,
        ended=91,
        place=Place(LEDGER, P),
        offset=1,
        epoch=0,
        kind="ack",
        outcome=OK,
    )
    assert verdict_of([*EVENTS, late]).stale


def test_a_tick_that_was_doubled_is_caught() -> None:
    assert verdict_of(ticks=(*FINAL.ticks, Tick(SCHEDULE, 5, 5))).ticks


def test_a_tick_that_was_missed_is_caught() -> None:
    assert verdict_of(due=(*FINAL.due, (SCHEDULE, 6))).ticks
