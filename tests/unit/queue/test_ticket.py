"""A claimed job is settled once: of many who try, one has its ticket."""

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rowmq import Constant, ExponentialBackoff, NoRetry, RetryStrategy
from rowmq.errors import AlreadySettled, StaleLease
from rowmq.queue.claiming import Claimed
from rowmq.queue.ticket import (
    Bearer,
    Ticket,
    Tickets,
    Wanted,
    conclude,
    give_up,
    take_all,
    wanted_of,
)
from rowmq.store.claims import ClaimedJob, Entry, OpenLane
from rowmq.store.settles import Kind, put_back, stale

LANE = OpenLane(3, 2, "emails", "Email", 0, limited=False, first_due=None)


def ticket(
    position: int = 0,
    *,
    attempts: int = 0,
    retry: RetryStrategy | None = None,
    permit: int = 0,
    **fields: Any,
) -> Ticket:
    entry = Entry(100 + position, LANE.id, 1_000, attempts, attempts + 1, permit)
    plain: dict[str, Any] = {"key": None, "ordering_key": None}
    job = ClaimedJob(entry, position, 500, 2, headers=None, payload=b"", **(plain | fields))
    return Ticket(Claimed(job, LANE, token=77), retry or Constant(5))


def acks(tickets: Sequence[Ticket]) -> list[Wanted]:
    return [wanted_of(item, Kind.ACK) for item in tickets]


def test_a_ticket_can_be_shown_also_once_it_is_taken() -> None:
    item = ticket()
    assert "lock 77, free" in repr(item)
    assert item.take()
    assert "lock 77, taken" in repr(wanted_of(item, Kind.ACK))


# --- what is wanted -------------------------------------------------------------------------------


def test_a_settle_names_its_place_in_the_lock() -> None:
    mine = ticket(4, key="k", ordering_key="line")
    settle = mine.settle(Kind.REJECT, error="no")
    assert (settle.kind, settle.token, settle.position) == (Kind.REJECT, 77, 4)
    assert (settle.queue, settle.queue_id, settle.job_kind) == ("emails", 2, "Email")
    assert (settle.key, settle.ordering_key, settle.error) == ("k", "line", "no")
    assert settle.entry.job_id == 104
    assert settle.identity == (2, "k", "Email")


@pytest.mark.parametrize(
    ("fields", "plain"),
    [({}, True), ({"key": "k"}, False), ({"ordering_key": "o"}, False), ({"permit": 1}, False)],
)
def test_only_an_ack_of_a_job_by_itself_is_plain(fields: dict[str, Any], plain: bool) -> None:
    mine = ticket(**fields)
    assert mine.settle(Kind.ACK).plain is plain
    for kind in set(Kind) - {Kind.ACK}:
        assert not mine.settle(kind).plain


def test_a_nack_waits_as_the_strategy_says_or_as_it_is_told() -> None:
    backoff = ExponentialBackoff(initial=1, multiplier=2, jitter=0, max_attempts=5)
    third = ticket(attempts=2, retry=backoff)
    settle = wanted_of(third, Kind.NACK, error="why").settle
    assert (settle.kind, settle.delay_us, settle.error) == (Kind.NACK, 4_000_000, "why")
    assert wanted_of(third, Kind.NACK, delay=0).settle.delay_us == 0
    assert wanted_of(third, Kind.NACK, delay=1.5).settle.delay_us == 1_500_000


@pytest.mark.parametrize("delay", [None, 0, 60])
def test_the_last_nack_is_a_reject_whatever_its_delay(delay: float | None) -> None:
    last = ticket(attempts=2, retry=Constant(1, max_attempts=3))
    settle = wanted_of(last, Kind.NACK, delay=delay, error="why").settle
    assert (settle.kind, settle.delay_us, settle.error) == (Kind.REJECT, 0, "why")
    only = wanted_of(ticket(retry=NoRetry()), Kind.NACK, delay=delay)
    assert only.settle.kind is Kind.REJECT


@pytest.mark.parametrize("kind", [Kind.ACK, Kind.REJECT, Kind.REFUSE, Kind.RELEASE, Kind.EXTEND])
def test_the_strategy_is_asked_for_nacks_only(kind: Kind) -> None:
    settle = wanted_of(ticket(retry=NoRetry()), kind, delay=2).settle
    assert (settle.kind, settle.delay_us) == (kind, 2_000_000)


def test_what_was_nacked_is_due_again_and_what_was_released_is_as_before() -> None:
    mine = ticket(attempts=2)
    entry = mine.claimed.job.entry
    nacked = put_back(wanted_of(mine, Kind.NACK, delay=3).settle, now=10_000)
    assert (nacked.due_at, nacked.attempts, nacked.deliveries) == (3_010_000, 3, 3)
    released = put_back(wanted_of(mine, Kind.RELEASE).settle, now=10_000)
    assert released == entry.ready._replace(deliveries=2)


@pytest.mark.parametrize(
    ("kind", "fields", "changes"),
    [
        (Kind.ACK, {}, False),
        (Kind.REJECT, {"key": "k"}, False),
        (Kind.EXTEND, {}, False),
        (Kind.NACK, {}, True),
        (Kind.RELEASE, {}, True),
        (Kind.ACK, {"ordering_key": "o"}, True),
        (Kind.ACK, {"permit": 4}, True),
    ],
)
def test_who_looks_for_jobs_is_told_if_there_may_be_more(
    kind: Kind, fields: dict[str, Any], changes: bool
) -> None:
    assert wanted_of(ticket(**fields), kind).changes_order is changes


# --- who has it -----------------------------------------------------------------------------------


def test_a_ticket_is_taken_once() -> None:
    mine = ticket()
    assert not mine.taken
    assert mine.take()
    assert mine.taken
    assert not mine.take()
    mine.give_back()
    assert mine.take()


def test_of_many_threads_one_has_the_ticket() -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            mine = ticket()
            assert sum(pool.map(lambda _, it=mine: it.take(), range(8))) == 1


def test_tickets_are_taken_all_or_none() -> None:
    tickets = [ticket(n) for n in range(3)]
    tickets[1].take()
    with pytest.raises(AlreadySettled, match=r"job 101 of queue 'emails'.*first settle stands"):
        take_all(acks(tickets))
    assert [item.taken for item in tickets] == [False, True, False]
    tickets[1].give_back()
    take_all(acks(tickets))
    assert all(item.taken for item in tickets)


def test_an_extension_keeps_nobody_from_settling() -> None:
    mine = ticket()
    extension = [wanted_of(mine, Kind.EXTEND, delay=5)]
    take_all(extension)
    assert not mine.taken
    take_all(acks([mine]))
    conclude(extension, [None], committed=True)
    assert mine.taken
    with pytest.raises(AlreadySettled):
        take_all(extension)


# --- what became of it ----------------------------------------------------------------------------


def test_what_is_settled_stays_taken_and_what_was_refused_does_not() -> None:
    tickets = [ticket(n) for n in range(2)]
    wanted = acks(tickets)
    take_all(wanted)
    refusal = stale(wanted[1].settle)
    conclude(wanted, [None, refusal], committed=True)
    assert [item.taken for item in tickets] == [True, False]
    assert [item.tentative for item in tickets] == [False, False]


def test_what_is_settled_in_an_open_transaction_is_tentative() -> None:
    mine = ticket()
    wanted = acks([mine])
    take_all(wanted)
    conclude(wanted, [None], committed=False)
    assert (mine.taken, mine.tentative) == (False, True)  # a rollback must not lose it


def test_what_nobody_knows_of_can_be_tried_again() -> None:
    tickets = [ticket(n) for n in range(2)]
    wanted = acks(tickets)
    take_all(wanted)
    give_up(wanted, doubted=True)
    assert not any(item.taken for item in tickets)
    take_all(wanted)


def test_errors_say_which_job_and_what_to_do() -> None:
    error = stale(ticket().settle(Kind.NACK))
    assert isinstance(error, StaleLease)
    for word in ("job 100", "'emails'", "nack", "lock_timeout", "extend()"):
        assert word in str(error)


# --- who has a ticket -----------------------------------------------------------------------------


def test_a_place_in_a_lock_has_one_ticket_for_as_long_as_somebody_has_it() -> None:
    tickets = Tickets()
    first, second = Bearer(ticket()), Bearer(ticket())
    assert tickets.get(77, 0) is None
    assert tickets.know(first) is first
    assert tickets.know(second) is first
    assert tickets.get(77, 0) is first
    del first
    gc.collect()
    assert tickets.get(77, 0) is None
    assert tickets.know(second) is second
