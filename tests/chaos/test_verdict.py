"""The verdict of a trial catches what was lost, doubled, reordered, too late, and not ticked; and
trials of which nobody noticed anything.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chaos.cast import ROOT, Player
from tests.chaos.load import AUDIT, BILLING, LEDGER, MAIL, OUTBOX, PARCELS, SCHEDULE, TICKS, TOPIC
from tests.chaos.record import Offered
from tests.chaos.remains import PERIOD_US, due
from tests.chaos.verdict import (
    SLOWER,
    WAITS_SECONDS,
    Verdict,
    course_violations,
    history_of,
    judge,
)
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
        at = 100 * id
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
    put, claimed = 110, 115
    early = changed({"began": put, "ended": put}, EVENTS, Put, mark=LINE[1])
    early = changed({"began": claimed, "ended": claimed}, early, Claimed, mark=LINE[1])
    assert verdict_of(early).good
    late = {"began": 120, "ended": 120}
    verdict = verdict_of(changed(late, early, JobSettled, job=1))
    assert (verdict.out_of_order, verdict.lost) == (1, 0)


def test_a_job_that_overtook_one_that_was_put_just_before_it_is_caught() -> None:
    """Nothing is allowed for the clock of a database, however coarse."""
    early = changed({"began": 102, "ended": 102}, EVENTS, Put, mark=LINE[1])
    early = changed({"began": 103, "ended": 103}, early, Claimed, mark=LINE[1])
    assert verdict_of(early).out_of_order == 1
    at_once = changed({"ended": 103}, early, Put, mark=LINE[0])
    assert verdict_of(at_once).good  # they were put at the same time


def test_an_ack_that_did_not_count_makes_no_way_for_the_next_of_a_line() -> None:
    """What came of it nobody was told. But the job was claimed again, so it was not done."""
    early = changed({"began": 110, "ended": 110}, EVENTS, Put, mark=LINE[1])
    early = changed({"began": 115, "ended": 115}, early, Claimed, mark=LINE[1])
    early = changed({"outcome": UNKNOWN}, early, JobSettled, job=1)
    assert verdict_of(early).good
    which: dict[str, Any] = {"actor": "w", "queue": PARCELS, "job": 1, "token": 9}
    again = [
        Claimed(began=150, ended=151, mark=LINE[0], now=151, until=251, **which),
        JobSettled(began=152, ended=153, kind="ack", outcome=OK, **which),
    ]
    assert verdict_of([*early, *again]).out_of_order == 1


@pytest.mark.parametrize("group", [AUDIT, LEDGER])
def test_an_owner_who_gets_them_out_of_order_is_caught(group: str) -> None:
    """Also where it is not known when a handler's messages were fetched."""
    told = changed({"began": 0}, EVENTS, Delivered, place=Place(group, P))
    assert verdict_of(told).good
    first, second = (
        e for e in told if isinstance(e, Delivered) and e.place.group == group
    )  # as they were written down
    swapped = [{id(first): second, id(second): first}.get(id(event), event) for event in told]
    assert verdict_of(swapped).out_of_order == 1
    again = swapped
    for kind in (Delivered, Settled):
        again = changed({"attempt": 2}, again, kind, place=Place(group, P), offset=1)
    assert verdict_of(again).good  # it had been given out before


def offer(mark: str, at: int, answer: str | None, outcome: Outcome = OK) -> Offered:
    return Offered(
        actor="p",
        began=at,
        ended=at,
        queue=MAIL,
        mark=mark,
        key="x",
        outcome=outcome,
        answer=answer,
    )


def test_an_offer_that_is_gone_with_nothing_in_its_place_is_caught() -> None:
    """The next one made a new job: so there was none, and nobody has done it."""
    others = [e for e in EVENTS if not (isinstance(e, Put) and e.mark == "j1")]
    for later, lost in (("CREATED", 1), ("UPDATED", 0), (None, 0)):
        outcome = UNKNOWN if later is None else OK
        told = [*others, offer("j0", 280, "CREATED"), offer("j1", 290, later, outcome)]
        assert verdict_of(told).lost == lost, later


def test_what_is_given_up_is_caught() -> None:
    failed = (FINAL.jobs[0]._replace(state="failed"), *FINAL.jobs[1:])
    assert verdict_of(jobs=failed).lost == 1
    dead = FINAL.progress[1]._replace(dead=frozenset({2}))
    assert verdict_of(progress=(FINAL.progress[0], dead, FINAL.progress[2])).lost == 1


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


def test_ticks_are_due_from_the_schedules_first_to_its_last_whatever_is_there() -> None:
    installed, fired = 7 * PERIOD_US + 5, 11 * PERIOD_US
    all_of_them = [8, 9, 10, 11]
    for there in (all_of_them, [9, 10], [11], []):
        ticks = tuple(Tick(SCHEDULE, n * PERIOD_US, n) for n in there)
        found = due(ticks, installed, fired)
        assert found == tuple((SCHEDULE, n * PERIOD_US) for n in all_of_them)
    assert due((), installed, installed) == ()
    early = (Tick(SCHEDULE, 12 * PERIOD_US, 12),)
    assert (SCHEDULE, 12 * PERIOD_US) in due(early, installed, fired)


# --- the course of a trial ------------------------------------------------------------------------


def course(**other: Any) -> list[str]:
    """What is wrong with a course that was good but for something."""
    good: dict[str, Any] = {"hits": 1, "flowed_after": 1.0, "recovered_after": 2.0}
    verdict = Verdict(fault="kill", database="sqlite", **good | {"done_after": 2.0} | other)
    return [violation.rule for violation in course_violations(verdict)]


def test_a_fault_that_hit_nobody_is_caught() -> None:
    assert course() == []
    assert course(hits=0) == ["the fault hits somebody"]
    assert list(course_violations(Verdict(fault="none", database="sqlite"), hits=False)) == []


@pytest.mark.parametrize("what", ["recovered_after", "done_after"])
def test_who_goes_on_too_late_is_caught(what: str) -> None:
    limit = WAITS_SECONDS + SLOWER
    assert course(**{what: limit - 0.1}) == []
    assert course(**{what: limit + 0.1}) == ["it goes on in time"]
    assert course(**{what: limit + 0.1}, flowed_after=1.1) == []  # the machine was slow before
    assert course(**{what: limit + 0.1}, lasted=1.0) == []  # there was more to do


def test_who_leaves_without_being_asked_is_caught(tmp_path: Path) -> None:
    player = Player("load", "load-1", tmp_path, "sqlite://")  # which does nothing, and ends well
    assert player.process.wait() == 0
    assert player.failed() is not None
    player.asked = True
    assert player.failed() is None


def test_a_fault_that_cannot_happen_is_no_good_trial() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--fault", "restart", "--database", "sqlite"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"None of these faults" in done.stderr
