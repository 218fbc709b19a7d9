"""Every rule catches what it is there for: a good history, broken in one way after the other."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.simulation import rules
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


FIRST, SECOND = GOOD.final.messages
MAIL, FAILED_MAIL, REPORT = GOOD.final.jobs
IN_TWO, IN_TWO_AFTER, IN_MAIL = GOOD.final.effects

BROKEN: list[tuple[rules.Rule, str, Break]] = [
    (rules.nothing_is_lost, "m2 was published", left(messages=(FIRST,))),
    (
        rules.nothing_is_lost,
        "m2 is at",
        left(messages=(FIRST, Stored(P, 3, "m2")), progress=(Progress(ONE, 0, 3),)),
    ),
    (rules.nothing_is_lost, "j1 was put", left(jobs=(FAILED_MAIL, REPORT))),
    (rules.nothing_is_lost, "j3 was put", left(jobs=(MAIL, REPORT))),
    (
        rules.nothing_is_invented,
        "m9 is at",
        left(messages=(FIRST, SECOND, Stored(P, 3, "m9"))),
    ),
    (
        rules.nothing_is_invented,
        "nobody put j4",
        left(jobs=(*GOOD.final.jobs, Job("mail", 9, "j4", "completed"))),
    ),
    (
        rules.nothing_is_invented,
        "m2 is there 2 times",
        left(messages=(FIRST, SECOND, Stored(P, 3, "m2"))),
    ),
    (
        rules.nothing_is_invented,
        "j1 is there 2 times",
        left(jobs=(*GOOD.final.jobs, Job("mail", 9, "j1", "completed"))),
    ),
    (
        rules.nothing_is_invented,
        "m9 was delivered",
        happened(Delivered(actor="b", began=18, ended=19, place=ONE, offset=9, mark="m9", epoch=2)),
    ),
    (
        rules.nothing_is_invented,
        "job 9 of mail was claimed",
        happened(
            Claimed(
                actor="v",
                began=60,
                ended=61,
                queue="mail",
                job=9,
                mark="?",
                token=95,
                now=1,
                until=2,
            )
        ),
    ),
    (rules.everything_is_handled_at_least_once, "never delivered to two", never(24)),
    (
        rules.everything_is_handled_at_least_once,
        "never done with by one",
        left(progress=(Progress(ONE, 0, 1), Progress(TWO, 0, 2))),
    ),
    (
        rules.everything_is_handled_at_least_once,
        "one has no place",
        all_of(
            left(messages=(FIRST, SECOND, Stored(Partition("orders", "other"), 1, "m3"))),
        ),
    ),
    (rules.everything_is_handled_at_least_once, "job 2 of mail was never claimed", never(50)),
    (
        rules.everything_is_handled_at_least_once,
        "it is pending",
        left(jobs=(MAIL, FAILED_MAIL._replace(state="pending"), REPORT)),
    ),
    (rules.nobody_owns_what_another_owns, "a and b had the same lease", changed(12, epoch=1)),
    (
        rules.nobody_owns_what_another_owns,
        "a was given m2",
        happened(
            Delivered(
                actor="a", began=15, ended=15, place=ONE, offset=2, mark="m2", epoch=1, attempt=3
            )
        ),
    ),
    (rules.nobody_owns_what_another_owns, "v claimed job 1", changed(44, now=1199)),
    (rules.nobody_owns_what_another_owns, "v claimed job 1", changed(44, began=40, now=1000)),
    (
        rules.what_comes_too_late_changes_nothing,
        "ack of Place",
        changed(14, outcome=OK),
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "was given it after that",
        happened(
            Delivered(
                actor="b", began=18, ended=19, place=ONE, offset=1, mark="m1", epoch=2, attempt=2
            )
        ),
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "ack of Place",
        all_of(
            happened(
                Delivered(
                    actor="c",
                    began=25,
                    ended=25,
                    place=TWO,
                    offset=2,
                    mark="m2",
                    epoch=1,
                    attempt=2,
                )
            ),
            changed(24, ended=24),
        ),
    ),
    (rules.what_comes_too_late_changes_nothing, "ack of job 1 by w", changed(46, outcome=OK)),
    (
        rules.what_comes_too_late_changes_nothing,
        "extend of job 1 by w",
        changed(46, outcome=OK, kind="extend"),
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "claimed it after that",
        happened(
            Claimed(
                actor="w",
                began=60,
                ended=61,
                queue="mail",
                job=1,
                mark="j1",
                token=95,
                now=1400,
                until=1500,
            )
        ),
    ),
    (
        rules.order_is_kept,
        "m1 was published",
        all_of(
            changed(1, offset=2),
            changed(4, offset=1),
            left(messages=(Stored(P, 1, "m2"), Stored(P, 2, "m1"))),
        ),
    ),
    (
        rules.order_is_kept,
        "m2 was delivered",
        all_of(
            never(8),
            happened(
                Delivered(actor="a", began=8, ended=8, place=ONE, offset=2, mark="m2", epoch=1),
                Delivered(actor="a", began=9, ended=9, place=ONE, offset=1, mark="m1", epoch=1),
            ),
        ),
    ),
    (rules.order_is_kept, "before offset 1 was done", changed(22, began=28, ended=29)),
    (
        rules.order_is_kept,
        "m2 took effect before m1",
        left(effects=(IN_TWO_AFTER, IN_TWO, IN_MAIL)),
    ),
    (rules.only_what_was_acked_is_passed_over, "m2 is done for one", changed(16, outcome=FAILED)),
    (rules.only_what_was_acked_is_passed_over, "m2 is done for one", changed(16, kind="nack")),
    (rules.only_what_was_acked_is_passed_over, "job 1 of mail is completed", never(48)),
    (rules.groups_are_apart, "only one settled it", never(26)),
    (
        rules.a_tick_is_one_job,
        "2 jobs for 600",
        left(ticks=(*GOOD.final.ticks, Tick("nightly", 600, 4))),
    ),
    (rules.a_tick_is_one_job, "no job for 600", left(ticks=())),
    (
        rules.a_tick_is_one_job,
        "which was not due",
        left(ticks=(*GOOD.final.ticks, Tick("nightly", 1200, 4))),
    ),
    (
        rules.effects_are_there_exactly_once,
        "m1 took effect 2 times",
        left(effects=(IN_TWO, IN_TWO, IN_TWO_AFTER, IN_MAIL)),
    ),
    (
        rules.effects_are_there_exactly_once,
        "m2 is acked by two",
        left(effects=(IN_TWO, IN_MAIL)),
    ),
    (
        rules.effects_are_there_exactly_once,
        "j3 has an effect of mail",
        left(effects=(*GOOD.final.effects, Effect("mail", "j3"))),
    ),
    (
        rules.counts_add_up,
        "mail has",
        left(counts={"mail": {"completed": 2}, "reports": {"completed": 1}}),
    ),
    (rules.counts_add_up, "one has 0 of orders", left(lags={("orders", "one"): 1})),
]


def test_a_good_history_breaks_no_rule() -> None:
    assert rules.check(GOOD) == []


@pytest.mark.parametrize(
    ("rule", "story", "broken"),
    BROKEN,
    ids=[f"{rule.__name__}-{story}".replace(" ", "_") for rule, story, _ in BROKEN],
)
def test_each_rule_catches_what_breaks_it(rule: rules.Rule, story: str, broken: Break) -> None:
    stories = list(rule(broken(GOOD)))
    assert any(story in told for told in stories), stories


def test_every_rule_is_asked_and_broken_by_something() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(rules.RULES)
    found = {violation.rule for _, _, broken in BROKEN for violation in rules.check(broken(GOOD))}
    assert len(found) == len(rules.RULES)


def test_a_nack_that_was_tried_twice_is_not_refused() -> None:
    assert rules.check(changed(46, outcome=OK, kind="nack")(GOOD)) == []


def test_claims_whose_order_nobody_knows_may_have_been_one_after_the_other() -> None:
    """Of two claims that were under way at once, one was made when the other had been let go."""
    claim = Claimed(
        actor="u",
        began=52,
        ended=60,
        queue="reports",
        job=3,
        mark="t1",
        token=95,
        now=1230,
        until=1330,
    )
    assert rules.check(happened(claim)(GOOD)) != []
    let_go = all_of(
        changed(56, kind="release"),
        happened(
            claim,
            JobSettled(
                actor="u",
                began=61,
                ended=62,
                queue="reports",
                job=3,
                token=95,
                kind="ack",
                outcome=OK,
            ),
        ),
    )
    assert rules.check(let_go(GOOD)) == []


def test_what_nobody_knows_is_allowed() -> None:
    """A publish, a settle and an ack whose answers never came may have happened, or not."""
    assert (
        rules.check(all_of(changed(16, outcome=UNKNOWN), changed(48, outcome=UNKNOWN))(GOOD)) == []
    )
    there = left(
        messages=(*GOOD.final.messages, Stored(P, 3, "m3")),
        progress=(Progress(ONE, 0, 2), Progress(TWO, 0, 2)),
        lags={("orders", "one"): 1, ("orders", "two"): 1},
    )
    told = rules.check(there(GOOD))
    assert {violation.rule for violation in told} == {"everything is handled at least once"}
