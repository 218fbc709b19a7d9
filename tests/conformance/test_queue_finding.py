"""Looking for jobs page by page, what became of one, and how much there is to do."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rowmq
from rowmq import Beginning, JobStep, State, errors
from rowmq.drivers.base import take_steps_async
from rowmq.queue.inspecting import find_first
from tests.choices import async_only
from tests.conformance.test_queue_claim import expire, past
from tests.conformance.test_queue_listing import every_state
from tests.consuming import statements
from tests.databases import Database

LONG = timedelta(days=1)

NAMES = ["100%_done", "it's", 'a "quote"', "with space/slash", "\N{PARTY POPPER}", "k" * 255]


async def found(queue: Any, **wanted: Any) -> list[Any]:
    """The payloads of all pages, two jobs to a page."""
    payloads: list[Any] = []
    after, pages = None, 0
    while True:
        page = await queue.find(**wanted, limit=2, after=after)
        assert len(page.jobs) <= 2
        payloads += [job.payload for job in page.jobs]
        after, pages = page.next, pages + 1
        assert pages < 50
        if after is None:
            return payloads


# --- find -----------------------------------------------------------------------------------------


async def test_pages_have_all_jobs_once_live_ones_first(mq: Any) -> None:
    queue, _ = await every_state(mq)
    for n in range(3):
        await queue.put(f"line {n}", ordering_key="o", at=datetime.now(UTC) + 2 * LONG)
    for state in State:
        (job,) = (await queue.find(state=state, limit=1)).jobs
        assert (job.payload, job.state) == (state.value, state)
    assert await found(queue) == [
        *("processing", "pending", "retryable", "line 0", "line 1", "line 2"),
        *("failed", "completed"),
    ]
    failed = (await queue.find(state="failed")).jobs[0]
    assert (failed.error, failed.attempts) == ("no", 1)
    assert await found(mq.queue("nothing")) == []


async def test_pages_go_on_within_the_same_time_and_over_all_lanes(mq: Any) -> None:
    queue, due = mq.queue("q"), datetime.now(UTC) + LONG
    for priority in (0, 5):
        await queue.put_many([f"{priority} {n}" for n in range(4)], at=due, priority=priority)
    await queue.put_many(["sooner"] * 3, at=due - LONG / 2)
    payloads = await found(queue)
    assert payloads[:3] == ["sooner"] * 3
    assert sorted(payloads[3:]) == [f"{priority} {n}" for priority in (0, 5) for n in range(4)]
    # What was put meanwhile, before where the next page begins, moves nothing on it.
    page = await queue.find(limit=3)
    await queue.put("new", at=past(1))
    assert (await queue.find(limit=1, after=page.next)).jobs[0].payload == payloads[3]


async def test_jobs_are_found_by_kind_key_header_and_time(mq: Any) -> None:
    queue, now = mq.queue("q"), datetime.now(UTC)
    await mq.queue("q", kind="Email").put("email", delay=60)
    for n, name in enumerate(NAMES):
        await queue.put(name, key=name, headers={name: name, "n": str(n)}, delay=3600 + n)
    assert await found(queue, kind="Email") == ["email"]
    assert await found(mq.queue("q", kind="Other"), kind="Email") == []
    for name in NAMES:
        assert await found(queue, key=name) == [name]
        assert await found(queue, header={name: name}) == [name]
    assert await found(queue, key="100%", state=State.PENDING) == []
    assert await found(queue, header={NAMES[0]: NAMES[0], "n": "1"}) == []
    assert await found(queue, until=now + timedelta(minutes=5)) == ["email"]
    second = (await queue.read(NAMES[1])).due_at
    assert await found(queue, since=second, until=second + timedelta(seconds=1)) == [NAMES[1]]


async def test_finished_jobs_are_found_by_kind_key_header_and_time(mq: Any) -> None:
    email = mq.queue("q", kind="Email")
    for n in range(3):
        await email.put(f"email {n}", key=f"k{n}", headers={"n": str(n)})
    await mq.queue("q").put("other")
    for job in await mq.queue("q").try_poll_many(4):
        await job.reject(error=f"no {job.payload}")
    queue = mq.queue("q")
    assert await found(queue, state=State.FAILED, kind="Email") == ["email 2", "email 1", "email 0"]
    assert await found(queue, key="k1") == ["email 1"]
    assert await found(queue, header={"n": "2"}) == ["email 2"]
    times = [job.finished_at for job in (await queue.find(state=State.FAILED)).jobs]
    assert await found(queue, since=times[0]) == ["other"] or times[0] == times[1]
    assert await found(queue, state=State.FAILED, until=times[-1]) == []


async def test_of_a_line_those_who_wait_are_found_in_its_order(mq: Any) -> None:
    queue = mq.queue("q")
    for line in ("b", "a"):
        for n in range(4):
            await queue.put(f"{line}{n}", ordering_key=line, priority=-n)
    heads = ["b0", "a0"]
    assert await found(queue) == [*heads, "a1", "a2", "a3", "b1", "b2", "b3"]
    assert await found(queue, state=State.PENDING, header={"no": "no"}) == []


async def test_a_page_is_not_large(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put_many(["x" * 900_000] * 12)
    page = await queue.find(limit=1000)
    assert 1 < len(page.jobs) < 12
    rest = await queue.find(limit=1000, after=page.next)
    assert (len(page.jobs) + len(rest.jobs), rest.next) == (12, None)


async def test_a_page_of_beginnings_has_room_for_all(mq: Any) -> None:
    """Of large payloads no more is read than is shown, so that a page can be renewed often."""
    queue = mq.queue("q")
    await queue.put_many(["x" * 900_000] * 11)
    await queue.put_many([{"a": "ä" * 4_000}, b"x" * 4_097, "x" * 4_096, 1])
    page = await queue.find(limit=1000, whole=False)
    assert [job.payload for job in page.jobs] == [
        *[Beginning("x" * 4_096)] * 11,
        Beginning('{"a":"' + "ä" * 2_045),
        Beginning(b"x" * 4_096),
        "x" * 4_096,
        1,
    ]
    assert page.next is None
    whole = await queue.find(limit=1)
    assert (whole.jobs[0].id, whole.jobs[0].due_at) == (page.jobs[0].id, page.jobs[0].due_at)


@pytest.mark.parametrize("after", ["", "x", "é", "W10=", "WzAsWzFdLCIiXQ==", "WzksWzEsMl0sIiJd"])
async def test_a_text_that_no_page_gave_is_refused(mq: Any, after: str) -> None:
    with pytest.raises(errors.InvalidOption, match="no cursor"):
        await mq.queue("q").find(after=after)


@pytest.mark.parametrize(
    "wanted",
    [
        {"state": "done"},
        {"limit": 0},
        {"limit": 1001},
        {"since": datetime(2026, 1, 1)},  # noqa: DTZ001 - that is what is refused
        {"key": ""},
        {"kind": 7},
        {"header": {"n": 1}},
        {"after": 7},
    ],
)
async def test_what_cannot_be_looked_for_is_refused(mq: Any, wanted: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        await mq.queue("q").find(**wanted)


async def test_a_job_is_found_by_its_id_alone(mq: Any) -> None:
    job = await mq.queue("here").put({"n": 1}, key="k")
    there = await mq.find_job(job.id)
    there = getattr(there, "target", there)
    assert (there.queue, there.payload, there.state) == ("here", {"n": 1}, State.PENDING)
    assert await mq.find_job(1) is None


async def test_a_job_that_is_tried_again_later_is_found_there(mq: Any) -> None:
    """Not by a look through all that is due later."""
    queue = mq.queue("q", retry=rowmq.Constant(interval=3600))
    await queue.put_many(["x"] * 5)
    jobs = await queue.try_poll_many(5)
    await jobs[2].nack(error="later")
    with statements(mq) as seen:
        assert (await queue.get(jobs[2].id)).state is State.RETRYABLE
    assert [s.name for s in seen if s.name == "listing.find_ready"] == ["listing.find_ready"] * 2
    assert await queue.run_now([jobs[2].id]) == 1
    assert (await queue.get(jobs[2].id)).due_at <= datetime.now(UTC) + timedelta(seconds=5)


# --- what became of a job -------------------------------------------------------------------------


async def test_a_timeline_tells_what_happened(mq: Any) -> None:
    queue = mq.queue("q", retry=rowmq.Constant(interval=0.001, max_attempts=2))
    put = await queue.put("x", delay=0.002)

    async def told() -> list[tuple[JobStep, int | None, str | None]]:
        events = await queue.timeline(put.id)
        assert [event.at for event in events] == sorted(event.at for event in events)
        return [(event.what, event.attempt, event.error) for event in events]

    begun = [(JobStep.PUT, None, None), (JobStep.DUE, None, None)]
    assert await told() == begun
    first = await queue.poll(timeout=10)
    assert await told() == [*begun, (JobStep.CLAIMED, 1, None)]
    claimed = (await queue.timeline(put.id))[-1]
    assert claimed.worker == mq._desk.owner
    await first.nack(error="not yet")
    failed = (JobStep.ATTEMPT_FAILED, 1, "not yet")
    assert set(await told()) == {*begun, failed}
    second = await queue.poll(timeout=10)
    await second.nack(error="no more")
    assert (await told())[-2:] == [(JobStep.CLAIMED, 2, None), (JobStep.FAILED, 2, "no more")]
    await queue.retry([put.id])
    third = await queue.poll(timeout=10)
    await third.ack()
    assert (await told())[-1] == (JobStep.COMPLETED, 1, None)
    assert await queue.timeline(1) == []


async def test_a_job_that_people_gave_up_was_not_claimed(mq: Any) -> None:
    queue = mq.queue("q")
    job = await queue.put("x")
    await queue.fail([job.id], error="not wanted")
    events = await queue.timeline(job.id)
    assert [event.what for event in events] == [JobStep.PUT, JobStep.FAILED]
    assert (events[-1].attempt, events[-1].error) == (None, "not wanted")


# --- how much there is to do ----------------------------------------------------------------------


async def test_counts_up_to_a_number_are_right_below_it(mq: Any) -> None:
    queue, _ = await every_state(mq)
    for n in range(4):
        await queue.put(n, ordering_key="o", delay=60)
    assert await queue.counts(up_to=10) == await queue.counts()
    assert (await queue.counts(up_to=3))["pending"] == 3
    assert (await queue.counts(up_to=3))["failed"] == 1
    assert sum((await mq.queue("nothing").counts(up_to=3)).values()) == 0


async def test_counts_of_a_kind_are_of_this_kind(mq: Any) -> None:
    for kind in ("a", "b"):
        queue = mq.queue("q", kind=kind)
        await queue.put_many([kind] * 3)
        await queue.put_many([kind] * 3, ordering_key="o", delay=60)
        first, second = await queue.try_poll_many(2)
        await first.ack()
        await second.reject()
    for queue in (mq.queue("q", kind="a"), mq.queue("q")):
        assert await queue.counts(up_to=100) == await queue.counts()


async def test_the_backlog_tells_of_every_queue(mq: Any, database: Database) -> None:
    queue, _ = await every_state(mq)
    await queue.configure(max_in_flight=7, rate=5, rate_period=2)
    await queue.pause()
    await queue.put("due", at=past(60))
    await mq.queue("empty").configure(keep_failed=False)
    empty, busy = await mq.backlog()
    assert (empty.name, sum(empty.counts.values()), empty.oldest_due_at) == ("empty", 0, None)
    assert (busy.name, busy.paused, busy.capped, busy.locks) == ("q", True, False, 1)
    assert busy.counts == await queue.counts()
    assert (busy.due, busy.oldest_due_at) == (1, (await queue.find(limit=1)).jobs[0].due_at)
    assert (busy.put_lately, busy.completed_lately, busy.failed_lately) == (6, 1, 1)
    assert (busy.max_in_flight, busy.rate, busy.rate_period) == (7, 5, timedelta(seconds=2))
    expire(database)
    assert {one.name: one.due for one in await mq.backlog()} == {"empty": 0, "q": 2}


async def test_a_backlog_that_is_long_is_capped(mq: Any) -> None:
    queue = mq.queue("q")
    await queue.put_many(range(5))
    await mq.queue("short").put_many(range(2))
    (long, short) = await mq.backlog(up_to=3)
    assert (long.capped, long.counts["pending"], long.due) == (True, 3, 3)
    assert (short.capped, short.counts["pending"], short.due) == (False, 2, 2)


@async_only
async def test_the_backlog_of_many_queues_takes_few_statements(mq: Any) -> None:
    for n in range(60):
        await mq.queue(f"q{n}").put(n, ordering_key="o")
        await mq.queue(f"q{n}").put(n, ordering_key="o")
    with statements(mq) as seen:
        assert len(await mq.backlog()) == 60
    assert len(seen) <= 12, [re.sub(r"\s+", " ", s.name) for s in seen]


# --- of several queues ----------------------------------------------------------------------------


async def first_of(mq: Any, *queues: str, **wanted: Any) -> tuple[list[tuple[str, Any]], bool]:
    cores = [mq.queue(name)._core for name in queues]
    jobs, more = await take_steps_async(find_first(cores, **wanted))
    return [(job.queue, job.payload) for job in jobs], more


@async_only
async def test_the_first_jobs_of_several_queues_come_together(mq: Any) -> None:
    due = datetime.now(UTC) + LONG
    for n in range(4):
        await mq.queue("ab"[n % 2]).put(n, at=due - n * timedelta(minutes=1))
    assert await first_of(mq, "a", "b", "none", limit=3) == (
        [("b", 3), ("a", 2), ("b", 1)], True
    )  # fmt: skip
    assert (await first_of(mq, "a", limit=3))[1] is False
    assert await first_of(mq, limit=3) == ([], False)
    for n in range(4):
        await mq.queue("ab"[n % 2]).put(n, key=f"done {n}")
        job = await mq.queue("ab"[n % 2]).try_poll()
        await job.reject(error=f"no {n}")
    found, more = await first_of(mq, "a", "b", state="failed", limit=3)
    assert (found, more) == ([("b", 3), ("a", 2), ("b", 1)], True)


@async_only
async def test_of_the_first_jobs_of_several_queues_only_beginnings_are_read(mq: Any) -> None:
    queues = [f"q{n}" for n in range(5)]
    for queue in queues:
        await mq.queue(queue).put_many(["x" * 400_000] * 3, delay=LONG)
    found, more = await first_of(mq, *queues, limit=10)
    assert ([payload for _, payload in found], more) == ([Beginning("x" * 4_096)] * 10, True)


async def test_a_job_that_was_given_up_before_its_time_is_found_when_it_is_done(mq: Any) -> None:
    queue = mq.queue("q")
    id = (await queue.put("x", delay=3600)).id
    assert await queue.fail([id]) == await queue.retry([id]) == 1
    job = await queue.try_poll()
    assert job.due_at < job.created_at + timedelta(hours=1)
    await job.ack()
    found = await queue.get(id)
    assert (found.state, found.payload) == (rowmq.State.COMPLETED, "x")
    assert (await queue.timeline(id))[-1].what == rowmq.JobStep.COMPLETED
