"""What offers come to, what a posting is, and what a lock holds: decided without a database."""

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.codec import Encoding
from rowmq.errors import (
    InvalidHeaders,
    InvalidOption,
    PayloadNotSerializable,
    PayloadTooLarge,
    UniqueViolation,
)
from rowmq.message import Outcome
from rowmq.store.claims import Entry, OpenLane, Permits, in_order, job_of, with_permits
from rowmq.store.jobs import repeated
from rowmq.store.lines import ReadyRow
from rowmq.store.postings import (
    KeyRow,
    Offer,
    Place,
    Posting,
    Stored,
    decide,
    in_same_line,
    posting_of,
    refuse_oversized,
)
from rowmq.store.queues import IN_FLIGHT, RATE, Lane, LaneName

CREATED, UPDATED, IGNORED = Outcome.CREATED, Outcome.UPDATED, Outcome.IGNORED
LANE = Lane(id=5, queue_id=2, payload_bytes_max=100)


def posting(payload: Any = "a", **given: Any) -> Posting:
    defaults: dict[str, Any] = {"at": 1_000, "key": "k"}
    return posting_of("q", "kind", payload, **(defaults | given))


def place(posting: Posting, job_id: int = 9, now: int = 7_000) -> Place:
    due = now + posting.delay_us if posting.at is None else posting.at
    return Place(posting, job_id, LANE, due, now)


def stored(posting: Posting, **fields: Any) -> Stored:
    """The row of a job that was put as given."""
    at = place(posting)
    row = Stored(
        id=1,
        queue_id=2,
        lane_id=5,
        due_at=at.due_at,
        data=posting.data,
        encoding=posting.encoding,
        headers=posting.headers,
        key=posting.key,
        ordering_key=posting.ordering_key,
        kind=posting.lane.kind,
        precedence=posting.lane.precedence,
    )
    return row._replace(**fields)


# --- decide ---------------------------------------------------------------------------------------


def decided(
    state: Posting | None, offers: list[tuple[Posting, bool]]
) -> tuple[Place | None, list[Outcome]]:
    places = [place(posting, job_id=10 + n) for n, (posting, _) in enumerate(offers)]
    outcomes = [IGNORED] * len(offers)
    items = [(Offer(p, can), places[n], n) for n, (p, can) in enumerate(offers)]
    final = decide(items, None if state is None else stored(state), outcomes)
    return final, outcomes


def one_by_one(
    state: Posting | None, offers: list[tuple[Posting, bool]]
) -> tuple[Posting | None, list[Outcome]]:
    """What the same offers come to, each in a transaction of its own."""
    outcomes = []
    for offered, can_update in offers:
        if state is None:
            outcomes.append(CREATED)
            state = offered
        elif can_update and (offered.at is None or offered != state):
            outcomes.append(UPDATED)
            state = offered
        else:
            outcomes.append(IGNORED)
    return state, outcomes


CONTENTS = [
    posting("a"),
    posting("b"),
    posting(b"a"),
    posting("a", at=2_000),
    posting("a", priority=1),
    posting("a", headers={"h": "v"}),
]


@given(
    st.none() | st.sampled_from(CONTENTS),
    st.lists(st.tuples(st.sampled_from(CONTENTS), st.booleans()), min_size=1, max_size=6),
)
def test_a_batch_of_one_key_is_as_if_offered_one_by_one(
    state: Posting | None, offers: list[tuple[Posting, bool]]
) -> None:
    final, outcomes = decided(state, offers)
    expected_state, expected = one_by_one(state, offers)
    assert outcomes == expected
    if final is None:
        assert expected == [IGNORED] * len(offers)
    else:
        assert final.posting == expected_state


def test_only_what_differs_is_an_update() -> None:
    for old, new in product(CONTENTS, repeat=2):
        final, outcomes = decided(old, [(new, True)])
        assert outcomes == [IGNORED if old is new else UPDATED]
        assert (final is None) == (old is new)


def test_an_offer_for_now_is_for_another_time_than_before() -> None:
    now = posting("a", at=None)
    _, outcomes = decided(posting("a", at=7_000), [(now, True)])
    assert outcomes == [UPDATED]


def test_outcomes_stand_where_their_offers_stood() -> None:
    outcomes = [IGNORED] * 5
    items = [(Offer(CONTENTS[n % 2], True), place(CONTENTS[n % 2]), n) for n in (1, 4)]
    decide(items, None, outcomes)
    assert outcomes == [IGNORED, CREATED, IGNORED, IGNORED, UPDATED]


def test_an_update_stays_in_its_line() -> None:
    new = place(posting("b"))
    assert in_same_line(new, None) is new
    assert in_same_line(new, stored(posting("a"))) is new
    lined = in_same_line(new, stored(posting("a", ordering_key="line")))
    assert lined.posting == msgspec.structs.replace(new.posting, ordering_key="line")
    assert lined.job_id == new.job_id


# --- postings -------------------------------------------------------------------------------------


def test_a_posting_is_encoded_and_higher_priorities_come_first() -> None:
    mine = posting_of("q", "k", {"a": 1}, priority=3, headers={"h": "v"}, delay_us=5)
    assert (mine.lane, mine.at, mine.delay_us) == (LaneName("q", "k", -3), None, 5)
    assert (mine.data, mine.encoding) == (b'{"a":1}', int(Encoding.JSON))
    assert (mine.headers, mine.key, mine.ordering_key) == ('{"h":"v"}', None, None)
    assert posting_of("q", "", b"").headers is None


def test_only_a_job_without_key_and_line_is_plain() -> None:
    assert posting_of("q", "", 1).plain
    assert not posting_of("q", "", 1, key="k").plain
    assert not posting_of("q", "", 1, ordering_key="o").plain


def test_the_size_counts_payload_and_headers() -> None:
    small, large = posting_of("q", "", b""), posting_of("q", "", b"x" * 500, headers={"h": "v"})
    assert 0 < small.size < 500
    assert large.size == small.size + 500 + len('{"h":"v"}')


@pytest.mark.parametrize("priority", [32_768, -32_768, 1.0, "1", None, True])
def test_priorities_out_of_range(priority: Any) -> None:
    with pytest.raises(InvalidOption, match="priority must be a whole number from -32,767"):
        posting_of("q", "", 1, priority=priority)


def test_bad_payloads_and_headers() -> None:
    with pytest.raises(PayloadNotSerializable):
        posting_of("q", "", object())
    with pytest.raises(InvalidHeaders):
        posting_of("q", "", 1, headers={"a": 1})  # type: ignore[dict-item]


def test_the_first_payload_over_its_queues_limit_is_refused() -> None:
    fits, over = posting(b"x" * 100), posting(b"x" * 101)
    lanes = {fits.lane: LANE}
    refuse_oversized([fits, fits], lanes)
    with pytest.raises(PayloadTooLarge, match=r"101 bytes.*'q', 100 bytes.*configure"):
        refuse_oversized([fits, over], lanes)


def test_where_a_posting_stands() -> None:
    at = place(posting("a", at=1_000, ordering_key="line", priority=2), job_id=9)
    assert at.key == KeyRow(2, "k", "kind", 9, 5, 1_000)
    assert at.key.identity == (2, "k", "kind")
    assert at.key.ready == (5, 1_000, 9)
    assert (at.member.line, at.member.order) == ((2, "line"), (-2, 1_000, 9))
    assert at.member.ready == ReadyRow(5, 1_000, 9)


def test_ids_that_are_there_already_are_looked_for_again() -> None:
    assert "look again" in str(repeated(UniqueViolation("a row with this key exists")))


# --- what a lock holds ----------------------------------------------------------------------------


def lane(id: int, queue_id: int, precedence: int = 0) -> OpenLane:
    return OpenLane(id, queue_id, f"q{queue_id}", "", precedence, limited=False, first_due=0)


def test_a_claim_counts_the_delivery_and_can_be_put_back() -> None:
    row = ReadyRow(5, 1_000, 9, attempts=2, deliveries=3)
    (entry,) = with_permits([row], [lane(5, 2)], {})
    assert entry == Entry(9, 5, 1_000, 2, 4, permit=0)
    assert entry.ready == row._replace(deliveries=4)


def test_jobs_of_a_limited_queue_have_a_permit_each() -> None:
    lanes = [lane(5, 2), lane(6, 2), lane(7, 3)]
    rows = [ReadyRow(id, 1_000, 10 + n) for n, id in enumerate((5, 7, 6, 5))]
    permits = {2: Permits(0, {IN_FLIGHT: [4, 8, 9], RATE: [1, 2, 3]})}
    entries = with_permits(rows, lanes, permits)
    assert [(e.job_id, e.permit) for e in entries] == [(10, 4), (11, 0), (12, 8), (13, 9)]
    rated = {2: Permits(0, {RATE: [1, 2, 3]})}
    assert [e.permit for e in with_permits(rows, lanes, rated)] == [0] * 4


def test_there_is_room_for_what_every_limit_allows() -> None:
    assert Permits(0, {IN_FLIGHT: [1, 2, 3]}).room == 3
    assert Permits(0, {IN_FLIGHT: [1, 2, 3], RATE: [7]}).room == 1
    assert Permits(0, {IN_FLIGHT: [], RATE: [7]}).room == 0


def test_jobs_of_several_lanes_are_in_the_order_of_claims() -> None:
    lanes = [lane(5, 2, precedence=0), lane(6, 2, precedence=-1), lane(7, 3, precedence=0)]
    rows = [
        ReadyRow(5, 20, 3), ReadyRow(5, 10, 9), ReadyRow(7, 10, 8), ReadyRow(6, 30, 1),
        ReadyRow(6, 30, 2),
    ]  # fmt: skip
    assert [row.job_id for row in in_order(rows, lanes, newest=False)] == [1, 2, 8, 9, 3]
    assert [row.job_id for row in in_order(rows, lanes, newest=True)] == [2, 1, 3, 9, 8]


def test_a_claimed_job_is_read_from_its_row() -> None:
    entry = Entry(9, 5, 1_000, 0, 1)
    row = (9, 500, 1_000, 2, b"k", None, bytearray(b'{"h":"v"}'), memoryview(b"[1]"))
    job = job_of(entry, 3, row)
    assert (job.entry, job.position, job.created_at) == (entry, 3, 500)
    assert (job.key, job.ordering_key, job.headers) == ("k", None, '{"h":"v"}')
    assert (job.encoding, job.payload) == (2, b"[1]")
