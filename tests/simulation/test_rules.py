"""Every rule catches what it is there for: a good history, broken in one way after the other."""

from typing import Any

import pytest

from tests.simulation import job_rules, rules
from tests.simulation.good import (
    FAILED,
    GOOD,
    OK,
    ONE,
    TICKING,
    TWO,
    UNKNOWN,
    Break,
    P,
    all_of,
    changed,
    happened,
    left,
    never,
    told,
)
from tests.simulation.history import (
    Claimed,
    Delivered,
    Effect,
    Event,
    Job,
    JobSettled,
    Letter,
    Partition,
    Place,
    Progress,
    Pruned,
    Put,
    Redriven,
    Settled,
    Sought,
    Stored,
    Tick,
)

FIRST, SECOND = GOOD.final.messages
MAIL, FAILED_MAIL, REPORT = GOOD.final.jobs
IN_TWO, IN_TWO_AFTER, IN_MAIL = GOOD.final.effects

Q = Partition("orders", "q")


def given(place: Place, offset: int, began: int, **what: Any) -> Delivered:
    """A delivery more."""
    how: dict[str, Any] = {"actor": "b", "ended": began, "mark": f"m{offset}", "epoch": 1}
    return Delivered(began=began, place=place, offset=offset, **(how | what))


def ack_of(place: Place, offset: int, began: int, **what: Any) -> Settled:
    how: dict[str, Any] = {"actor": "b", "ended": began + 1, "epoch": 2, "kind": "ack"}
    return Settled(began=began, place=place, offset=offset, outcome=OK, **(how | what))


def set_back(place: Place, offset: int, began: int) -> Sought:
    return Sought(actor="o", began=began, ended=began, place=place, offset=offset, outcome=OK)


def given_back(began: int) -> Redriven:
    return Redriven(actor="o", began=began, ended=began, topic="orders", group="one", outcome=OK)


def pruned(began: int) -> Pruned:
    return Pruned(actor="o", began=began, ended=began, queue="mail", outcome=OK)


def again(place: Place, offset: int, began: int) -> list[Event]:
    """A group is set back, and all from there on is given and acked once more."""
    events: list[Event] = [set_back(place, offset, began)]
    for number in range(offset, 3):
        at = began + 10 * number
        events += [
            given(place, number, at, epoch=2),
            ack_of(place, number, at + 1),
        ]
    return events


def in_line(mark: str, *, put: int, claimed: int) -> list[Event]:
    """A job of a line that is claimed, and acked."""
    job: dict[str, Any] = {"actor": "u", "queue": "mail", "job": 5, "token": 99}
    return [
        Put(actor="p", began=put, ended=put + 1, queue="mail", mark=mark, outcome=OK, line="l"),
        Claimed(began=claimed, ended=claimed, mark=mark, now=1000, until=1100, **job),
        JobSettled(began=90, ended=91, kind="ack", outcome=OK, **job),
    ]


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
    # --- what can be known of those who were not answered, moved on, or were put otherwise ---
    (
        rules.nothing_is_lost,
        "j2 was put",
        changed(34, replaces=False),
    ),
    (rules.nothing_is_lost, "m1 was published", left(messages=(SECOND,), begins={P: 1})),
    (
        rules.nothing_is_lost,
        "j3 was put",
        all_of(left(jobs=(MAIL, REPORT)), happened(pruned(70))),
    ),
    (rules.nothing_is_invented, "job 1 of mail was claimed as j3", changed(40, mark="j3")),
    (rules.nothing_is_invented, "which nobody put", changed(40, mark="j9")),
    (rules.nothing_is_invented, "which was put otherwise", changed(50, key="y")),
    (rules.nothing_is_invented, "which is job 1", changed(44, job=2)),
    (rules.nothing_is_invented, "m9 is a dead letter", left(letters=(Letter(ONE, 1, "m9"),))),
    (
        rules.nothing_is_invented,
        "m9 was delivered from",
        all_of(left(messages=(SECOND,), begins={P: 2}), changed(20, mark="m9")),
    ),
    (
        rules.nothing_is_invented,
        "m9 is at",
        all_of(
            left(messages=(FIRST, SECOND), begins={P: 0, Q: 2}),
            happened(given(ONE._replace(partition=Q), 1, 18, mark="m9")),
        ),
    ),
    (
        rules.everything_is_handled_at_least_once,
        "m1 was never delivered to two",
        all_of(left(messages=(SECOND,), begins={P: 2}), never(20)),
    ),
    (
        rules.everything_is_handled_at_least_once,
        "m1 was not delivered to one again",
        happened(set_back(ONE, 1, 18)),
    ),
    (
        rules.nobody_owns_what_another_owns,
        "m2 was given to b twice",
        all_of(
            TICKING,
            changed(12, number=1, until=1100),
            happened(given(ONE, 2, 14, epoch=2, number=2)),
        ),
    ),
    (
        rules.nobody_owns_what_another_owns,
        "v claimed job 1",
        told(clocks=tuple([1000] * 100)),  # once it may have shown 1200, but not by then
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "ack of Place",
        all_of(  # it was released in between: so that is not to be seen by the attempts
            changed(24, ended=24, number=1),
            changed(26, number=1),
            happened(given(TWO, 2, 25, actor="c", number=2)),
        ),
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "the group was set back by then",
        all_of(
            changed(24, ended=24, number=1),
            changed(26, number=1),
            happened(set_back(TWO, 2, 25)),
        ),
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "given it after that",
        all_of(  # what was given back before it was settled is no excuse
            happened(given_back(5), given(ONE, 1, 18, epoch=2)),
        ),
    ),
    (
        rules.what_comes_too_late_changes_nothing,
        "ack of job 1 by w was refused",
        told(clocks=tuple([1000] * 100)),
    ),
    (
        rules.order_is_kept,
        "m2 was handed out",
        all_of(
            never(8),
            happened(
                given(ONE, 2, 8, ended=9, number=1),
                given(ONE, 1, 8, ended=9, number=2),
            ),
        ),
    ),
    (
        rules.order_is_kept,
        "m2 was delivered to Place",
        happened(set_back(TWO, 1, 28), given(TWO, 2, 30, epoch=2)),
    ),
    (
        rules.only_what_was_acked_is_passed_over,
        "m2 is done for one",
        changed(16, kind="reject"),  # and is no dead letter
    ),
    (
        rules.order_is_kept,
        "m2 took effect before m1",
        all_of(  # once more than the group was set back
            happened(*again(TWO, 1, 28)),
            left(effects=(IN_TWO_AFTER, IN_TWO, IN_TWO_AFTER, IN_TWO, IN_MAIL)),
        ),
    ),
    (
        rules.only_what_was_acked_is_passed_over,
        "m2 is a dead letter of one, which never rejected it",
        left(progress=(Progress(ONE, 0, 2, dead=frozenset({2})), Progress(TWO, 0, 2))),
    ),
    (
        rules.only_what_was_acked_is_passed_over,
        "is a dead letter 2 times",
        all_of(changed(16, kind="reject"), left(letters=(Letter(ONE, 2, "m2"),) * 2)),
    ),
    (rules.only_what_was_acked_is_passed_over, "nobody rejected it", changed(52, kind="nack")),
    (
        rules.only_what_was_acked_is_passed_over,
        "ack of job 1 by v counted, and it is failed",
        left(jobs=(MAIL._replace(state="failed"), FAILED_MAIL, REPORT)),
    ),
    (
        rules.only_what_was_acked_is_passed_over,
        "ack of job 1 by v counted, and it is gone",
        left(jobs=(FAILED_MAIL, REPORT)),
    ),
    (
        rules.effects_are_there_exactly_once,
        "m2 took effect for two, which never acked it",
        changed(26, outcome=FAILED),
    ),
    (
        rules.effects_are_there_exactly_once,
        "m1 was acked 2 times by two",
        happened(*again(TWO, 1, 28)),
    ),
    (
        rules.effects_are_there_exactly_once,
        "m1 took effect 3 times",
        all_of(
            happened(*again(TWO, 1, 28)),
            left(effects=(IN_TWO, IN_TWO_AFTER, IN_MAIL, IN_TWO, IN_TWO)),
        ),
    ),
    (rules.nothing_is_left_behind, "1 keys are left", left(rests={"keys": 1})),
    (job_rules.a_key_has_one_live_job, "j3 was made", changed(34, replaces=False)),
    (job_rules.a_key_has_one_live_job, "j4 was ignored", changed(36, ignored=True, key="y")),
    (
        job_rules.lines_are_kept,
        "j5 was claimed before j1 of its line",
        all_of(changed(30, line="l"), happened(*in_line("j5", put=38, claimed=43))),
    ),
    (
        job_rules.lines_are_kept,
        "j5 was claimed before j1, which was put before it",
        all_of(changed(30, line="l"), happened(*in_line("j5", put=38, claimed=39))),
    ),
    (
        job_rules.lines_are_kept,
        "j5 was claimed before j1 of its line",
        all_of(
            changed(30, line="l"),
            happened(*in_line("j5", put=38, claimed=43)),
            changed(46, kind="release", outcome=OK),
        ),
    ),
    (
        job_rules.limits_are_kept,
        "2 jobs of mail were claimed at 46",
        all_of(TICKING, told(limits={"mail": 1}), changed(50, began=46, ended=46)),
    ),
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


FIVE = Job("mail", 5, "j5", "completed")
FIVE_IS_DONE = left(
    jobs=(*GOOD.final.jobs, FIVE),
    effects=(*GOOD.final.effects, Effect("mail", "j5")),
    counts={},
)

GOOD_TOO: list[Break] = [
    TICKING,
    # Garbage collection has taken the first message, and pruning the job that was acked.
    all_of(
        left(
            messages=(SECOND,),
            begins={P: 2},
            jobs=(FAILED_MAIL, REPORT),
            counts={"mail": {"failed": 1}, "reports": {"completed": 1}},
        ),
        happened(pruned(70)),
    ),
    # A publish does not hear that it was done, stands still until the message is collected, and
    # publishes it again: there is nothing any more by which to know that.
    all_of(
        changed(4, ended=99, offset=3),
        happened(
            given(ONE, 3, 60, mark="m2", epoch=2),
            ack_of(ONE, 3, 62),
            given(TWO, 3, 64, mark="m2", actor="c"),
            ack_of(TWO, 3, 66, actor="c", epoch=1),
        ),
        left(
            messages=(Stored(P, 3, "m2"),),
            begins={P: 3},
            progress=(Progress(ONE, 0, 3), Progress(TWO, 0, 3)),
            effects=(IN_TWO, IN_TWO_AFTER, IN_TWO_AFTER, IN_MAIL),
        ),
    ),
    # One group rejects a message, and is given it back.
    all_of(
        changed(16, kind="reject"),
        happened(
            given_back(70),
            given(ONE, 2, 71, epoch=2, attempt=3),
            ack_of(ONE, 2, 72, attempt=3),
        ),
    ),
    # Or not.
    all_of(
        changed(16, kind="reject"),
        left(
            progress=(Progress(ONE, 0, 2, dead=frozenset({2})), Progress(TWO, 0, 2)),
            letters=(Letter(ONE, 2, "m2"),),
        ),
    ),
    # The other group is set back, and its handlers write once more.
    all_of(
        happened(*again(TWO, 1, 28)),
        left(effects=(*GOOD.final.effects[:2], IN_MAIL, IN_TWO, IN_TWO_AFTER)),
    ),
    # One job of a line after the other, and no more than a limit allows.
    all_of(
        TICKING,
        told(limits={"mail": 1}),
        changed(30, line="l"),
        happened(*in_line("j5", put=38, claimed=60)),
        FIVE_IS_DONE,
    ),
    # One that is put when the clock was set back comes before one that was released.
    all_of(
        told(clocks=tuple([1300] * 32 + [1000] * 60 + [1200] * 8)),
        changed(30, line="l"),
        changed(42, kind="release"),
        changed(44, began=92, ended=93),
        changed(48, began=94, ended=95),
        happened(*in_line("j5", put=38, claimed=60)),
        FIVE_IS_DONE,
    ),
]


@pytest.mark.parametrize("changed", GOOD_TOO)
def test_other_good_histories_break_no_rule(changed: Break) -> None:
    assert rules.check(changed(GOOD)) == []


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
