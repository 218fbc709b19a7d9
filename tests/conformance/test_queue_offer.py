"""Offers: of each key one live job, whoever offers it and whatever happens to it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count as counting
from itertools import product
from typing import Any

import pytest

import rowmq
from rowmq import Outcome, ScheduledMessage, State, errors
from tests.choices import MYSQL, async_only, on_servers
from tests.conformance.callers.kinds import Held, Kind, Undo, client, transaction
from tests.conformance.test_callers import MODULES
from tests.conformance.test_faults import SESSIONS
from tests.conformance.test_queue_put import FUTURE, PAST, Email, claimed, count, sizes
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import NAMES, Database, Databases

CREATED, UPDATED, IGNORED = Outcome.CREATED, Outcome.UPDATED, Outcome.IGNORED
CONFIRM = "Yes, please, I know what I'm doing!"


def consistent(database: Database) -> int:
    """How many live jobs with keys there are, once it is clear that each is in one place.

    A key has one job; a job that is not finished is ready, waiting or claimed; nothing is left of
    those that were updated or dropped.
    """
    live = "SELECT id FROM rowmq_jobs WHERE id NOT IN (SELECT job_id FROM rowmq_completed) "
    live += "AND id NOT IN (SELECT job_id FROM rowmq_failed)"
    ids = {id for (id,) in database.execute(live)}
    keyed = [id for (id,) in database.execute("SELECT job_id FROM rowmq_job_keys")]
    assert len(set(keyed)) == len(keyed)
    with_key = database.execute(f"SELECT id FROM rowmq_jobs WHERE job_key <> '' AND id IN ({live})")
    assert {id for (id,) in with_key} == set(keyed)
    placed = [id for (id,) in database.execute("SELECT job_id FROM rowmq_ready")]
    placed += [id for (id,) in database.execute("SELECT job_id FROM rowmq_waiting")]
    assert len(set(placed)) == len(placed)
    assert set(placed) <= ids
    elsewhere = ids - set(placed)
    assert not elsewhere or count(database, "locks")
    return len(keyed)


# --- one at a time --------------------------------------------------------------------------------


async def test_an_update_replaces_all_of_a_job(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    assert await q.offer_or_update("k", "old", FUTURE) is CREATED
    first = await q.read("k")
    assert (first.payload, first.due_at, first.priority, first.headers) == ("old", FUTURE, 0, {})
    assert await q.offer_or_update("k", [1], PAST, priority=7, headers={"h": "v"}) is UPDATED
    job = await q.read("k")
    assert (job.payload, job.due_at, job.priority, job.headers) == ([1], PAST, 7, {"h": "v"})
    assert (job.state, job.key) == (State.PENDING, "k")
    assert sizes(database) == (1, 1)
    await q.put("other", priority=6)
    assert await claimed(q) == [[1], "other"]


CHANGES: list[dict[str, Any]] = [
    {"payload": "2"},
    {"payload": 1},
    {"payload": b"1"},
    {"at": PAST + timedelta(microseconds=1)},
    {"at": None},
    {"priority": 1},
    {"priority": -1},
    {"headers": {"a": "c"}},
    {"headers": None},
]


async def test_the_same_content_is_ignored_and_any_other_is_an_update(mq: Any) -> None:
    q = mq.queue("q")
    same = {"payload": "1", "at": PAST, "priority": 0, "headers": {"a": "b"}}
    for number, change in enumerate(CHANGES):
        key = f"k{number}"
        assert await q.offer_or_update(key, **same) is CREATED
        before = await q.read(key)
        assert await q.offer_or_update(key, **same) is IGNORED
        assert (await q.read(key)).id == before.id
        assert await q.offer_or_update(key, **(same | change)) is UPDATED
        assert (await q.read(key)).id != before.id


async def test_an_offer_for_now_is_due_at_once(mq: Any) -> None:
    q = mq.queue("q")
    assert await q.offer_or_update("k", "later", FUTURE) is CREATED
    assert await q.try_poll() is None
    assert await q.offer_or_update("k", "now") is UPDATED
    assert await q.offer_if_not_exists("other", "now too") is CREATED
    assert await claimed(q) == ["now", "now too"]


async def test_an_offer_if_not_exists_changes_nothing_that_exists(mq: Any) -> None:
    q = mq.queue("q")
    assert await q.offer_if_not_exists("k", "first", PAST) is CREATED
    before = await q.read("k")
    for payload in ("first", "second"):
        assert await q.offer_if_not_exists("k", payload, FUTURE, priority=3) is IGNORED
    after = await q.read("k")
    assert (after.id, after.payload, after.due_at) == (before.id, "first", PAST)
    job = await q.try_poll()
    assert await q.offer_if_not_exists("k", "third") is IGNORED
    await job.ack()


async def test_offers_meet_what_was_put(mq: Any) -> None:
    q = mq.queue("q")
    await q.put("put", key="k", at=PAST)
    assert await q.offer_if_not_exists("k", "offered", PAST) is IGNORED
    assert await q.offer_or_update("k", "put", PAST) is IGNORED
    assert await q.offer_or_update("k", "offered", PAST) is UPDATED
    with pytest.raises(errors.KeyTaken):
        await q.put("put", key="k")
    assert await claimed(q) == ["offered"]


async def test_keys_are_of_their_queue_and_kind(mq: Any, database: Database) -> None:
    handles = [
        mq.queue("q"),
        mq.queue("Q"),
        mq.queue("q", type=Email),
        mq.queue("q", kind="email"),
        mq.queue("q", kind="email "),
    ]
    assert [await q.offer_or_update("k", {"to": "ada"}, PAST) for q in handles] == [CREATED] * 5
    assert [await q.offer_or_update("k", {"to": "ada"}, PAST) for q in handles] == [IGNORED] * 5
    assert [await q.offer_or_update("k", {"to": "bob"}, PAST) for q in handles] == [UPDATED] * 5
    assert consistent(database) == 5


async def test_an_updated_job_stays_in_its_line(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for number, name in enumerate("abc"):
        await q.put(name, key=name, ordering_key="line", at=PAST + timedelta(seconds=number))
    assert await q.offer_or_update("b", "B", PAST + timedelta(seconds=1)) is UPDATED
    assert await q.offer_or_update("a", "A", PAST + timedelta(seconds=9)) is UPDATED
    assert consistent(database) == 3
    seen = []
    while job := await q.try_poll():
        assert job.ordering_key == "line"
        assert await q.try_poll() is None
        seen.append(job.payload)
        await job.ack()
    assert seen == ["B", "c", "A"]


# --- a batch --------------------------------------------------------------------------------------


def foretold(state: str | None, offers: tuple[tuple[bool, str], ...]) -> tuple[Any, list[Outcome]]:
    """What offers of one key come to, one after the other, if nobody else is there."""
    outcomes = []
    for can_update, content in offers:
        if state is None:
            outcomes.append(CREATED)
            state = content
        elif can_update and content != state:
            outcomes.append(UPDATED)
            state = content
        else:
            outcomes.append(IGNORED)
    return state, outcomes


SEQUENCES = [
    offers
    for length in (1, 2, 3)
    for offers in product(product((True, False), ("a", "b")), repeat=length)
]


async def test_a_batch_is_as_if_offered_one_by_one(mq: Any, database: Database) -> None:
    """Every sequence of up to three offers of one key, of a key that is new, pending, claimed."""
    q = mq.queue("q")
    cases = [(start, offers) for start in ("new", "pending", "claimed") for offers in SEQUENCES]
    keys = [f"{start} {n}" for n, (start, _) in enumerate(cases)]
    message = partial(ScheduledMessage, at=PAST)
    await q.offer_batch([message(key, "a") for key in keys if key.startswith("claimed")])
    old = {job.key: job for job in await q.try_poll_many(1000)}
    await q.offer_batch([message(key, "a") for key in keys if key.startswith("pending")])
    batch = [
        (key, message(key, offers[turn][1], can_update=offers[turn][0]))
        for turn in range(3)  # so that those of one key are apart
        for key, (_, offers) in zip(keys, cases, strict=True)
        if turn < len(offers)
    ]
    results = await q.offer_batch([item for _, item in batch])
    assert [item for item, _ in results] == [item for _, item in batch]
    outcomes: dict[str, list[Outcome]] = {}
    for (key, _), (_, outcome) in zip(batch, results, strict=True):
        outcomes.setdefault(key, []).append(outcome)
    contents = {job.key: job.payload for job in await q.try_poll_many(1000)}
    for key, (start, offers) in zip(keys, cases, strict=True):
        final, expected = foretold(None if start == "new" else "a", offers)
        assert outcomes[key] == expected, (start, offers)
        if start == "claimed" and UPDATED not in expected:
            assert key not in contents
            await old[key].ack()
        else:
            assert contents[key] == final, (start, offers)
        if start == "claimed" and UPDATED in expected:
            with pytest.raises(errors.StaleLease):
                await old[key].ack()
    assert consistent(database) == len(contents)


async def test_a_batch_takes_what_each_message_says(mq: Any) -> None:
    q = mq.queue("q")
    messages = [
        ScheduledMessage("a", 1, FUTURE),
        ScheduledMessage("b", 2, PAST, priority=-1),
        ScheduledMessage("c", 3, priority=5, headers={"h": "v"}),
        ScheduledMessage("d", 4, PAST, can_update=False),
    ]
    assert await q.offer_batch(iter(messages)) == [(message, CREATED) for message in messages]
    jobs = await q.try_poll_many(10)
    assert [(job.key, job.priority, job.headers) for job in jobs] == [
        ("c", 5, {"h": "v"}), ("d", 0, {}), ("b", -1, {}),
    ]  # fmt: skip


async def test_an_empty_batch_is_nothing(mq: Any, database: Database) -> None:
    assert await mq.queue("q").offer_batch([]) == []
    assert await mq.queue("q").offer_batch(()) == []
    assert [count(database, table) for table in ("queues", "lanes", "job_ids")] == [0, 0, 0]


async def test_a_batch_with_one_bad_message_changes_nothing(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.configure(max_payload_bytes=100)
    await q.offer_or_update("k", "old", PAST)
    before = await q.read("k")
    good = ScheduledMessage("k", "new", PAST)
    for bad, error in (
        (ScheduledMessage("x", b"x" * 101), errors.PayloadTooLarge),
        (ScheduledMessage("x", object()), errors.PayloadNotSerializable),
        (ScheduledMessage("", 1), errors.InvalidKey),
    ):
        with pytest.raises(error):
            await q.offer_batch([good, bad, good])
    assert (await q.read("k")).id == before.id
    assert consistent(database) == 1


@async_only
async def test_a_batch_larger_than_a_block_of_ids(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    messages = [ScheduledMessage(f"k{n}", n, PAST) for n in range(1_500)]
    assert {outcome for _, outcome in await q.offer_batch(messages)} == {CREATED}
    assert {outcome for _, outcome in await q.offer_batch(messages)} == {IGNORED}
    renewed = [ScheduledMessage(f"k{n}", -n, PAST, can_update=n % 2 == 1) for n in range(1_500)]
    outcomes = [outcome for _, outcome in await q.offer_batch(renewed)]
    assert outcomes == [IGNORED, UPDATED] * 750
    assert consistent(database) == 1_500


# --- a job that is being worked on ----------------------------------------------------------------

SETTLES: dict[str, Callable[[Any, Any], Any]] = {
    "ack": lambda _, job: job.ack(),
    "ack of many": lambda q, job: q.ack([job]),
    "nack": lambda _, job: job.nack(delay=0),
    "reject": lambda _, job: job.reject(error="no"),
    "release": lambda _, job: job.release(),
    "extend": lambda _, job: job.extend(60),
}


async def test_an_update_makes_the_lock_void(mq: Any, database: Database) -> None:
    due = PAST + timedelta(days=1)
    for name, settle in SETTLES.items():
        q = mq.queue(f"to {name}")
        await q.offer_or_update("k", "old", PAST)
        await q.offer_or_update("other", "other", PAST + timedelta(seconds=1))
        old, other = await q.try_poll_many(10)
        assert await q.offer_or_update("k", "new", due) is UPDATED
        assert (await q.counts())["processing"] == 1
        with pytest.raises(errors.StaleLease, match="updated or dropped"):
            await settle(q, old)
        job = await q.try_poll()
        assert (job.key, job.payload, job.due_at, job.attempt) == ("k", "new", due, 1)
        assert job.id != old.id
        assert await q.try_poll() is None
        with pytest.raises((errors.StaleLease, errors.AlreadySettled)):
            await settle(q, old)
        await q.ack([job, other])
        assert await q.counts() == {
            "pending": 0, "processing": 0, "retryable": 0, "completed": 2, "failed": 0,
        }  # fmt: skip
        assert {done.payload for done in await q.archive()} == {"new", "other"}
    assert consistent(database) == 0


@on_servers  # in SQLite nobody can come between
async def test_a_settle_that_is_tried_again_is_still_stale(mq: Any, database: Database) -> None:
    """After a deadlock nothing was committed: the second try must not take it for done."""
    with rowmq.connect(database.url) as rival:
        meanwhile: list[Outcome] = []

        def fail_once(statement: Any) -> None:
            if statement.name == "settles.lock" and not meanwhile:
                meanwhile.append(rival.queue("q").offer_or_update("k", "new", PAST))
                raise errors.Deadlock("a circle")

        mq._driver.observers.append(fail_once)
        q = mq.queue("q")
        for how in ("ack", "nack", "reject", "release"):
            await q.offer_or_update("k", "old", PAST)
            job = await q.try_poll()
            meanwhile.clear()
            with pytest.raises(errors.StaleLease):
                await getattr(job, how)()
            assert meanwhile == [UPDATED]
            assert (await q.read("k")).payload == "new"
    assert count(database, "completed") + count(database, "failed") == 0
    assert await claimed(q) == ["new"]


async def test_an_update_for_later_is_not_seen_before(mq: Any) -> None:
    q = mq.queue("q")
    await q.offer_or_update("k", "old")
    old = await q.try_poll()
    later = datetime.now(UTC) + timedelta(seconds=0.3)
    assert await q.offer_or_update("k", "new", later) is UPDATED
    with pytest.raises(errors.StaleLease):
        await old.nack(delay=0)
    assert await q.try_poll() is None
    job = await q.poll(timeout=10)
    assert (job.payload, job.due_at) == ("new", later)
    await job.ack()


async def test_an_offer_that_changes_nothing_leaves_the_lock_alone(mq: Any) -> None:
    q = mq.queue("q")
    await q.offer_or_update("k", "same", PAST)
    job = await q.try_poll()
    assert await q.offer_or_update("k", "same", PAST) is IGNORED
    assert await q.offer_batch([ScheduledMessage("k", "x", can_update=False)]) == [
        (ScheduledMessage("k", "x", can_update=False), IGNORED)
    ]
    await job.extend(30)
    await job.ack()


async def test_an_update_of_what_expired_comes_once(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.offer_or_update("k", "old", PAST)
    await q.offer_or_update("other", "other", PAST + timedelta(seconds=1))
    old, _ = await q.try_poll_many(2, lock_timeout=0.05)
    assert await q.offer_or_update("k", "new", PAST) is UPDATED
    ((until,),) = database.execute("SELECT locked_until FROM rowmq_locks")
    await eventually(lambda: datetime.now(UTC).timestamp() > until / 1_000_000)
    first, second = await q.try_poll_many(10)
    assert [(first.payload, first.deliveries), (second.payload, second.deliveries)] == [
        ("new", 1), ("other", 2),
    ]  # fmt: skip
    with pytest.raises(errors.StaleLease):
        await old.ack()
    await q.ack([first, second])
    assert (consistent(database), count(database, "locks")) == (0, 0)


async def test_an_update_of_what_is_to_be_tried_again_begins_anew(mq: Any) -> None:
    q = mq.queue("q")
    put = await q.put("old", key="k", at=PAST)
    await (await q.try_poll()).nack(delay=3600, error="first")
    assert (await q.read("k")).state is State.RETRYABLE
    assert await q.offer_or_update("k", "new", PAST) is UPDATED
    job = await q.try_poll()
    assert (job.payload, job.attempt, job.deliveries) == ("new", 1, 1)
    assert await q.errors(put.id) == []
    await job.ack()


async def test_a_job_that_is_dropped_while_it_is_worked_on(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("gone", key="k")
    job = await q.try_poll()
    assert await q.drop("k") is True
    assert await q.drop("k") is False
    for settle in SETTLES.values():
        with pytest.raises(errors.StaleLease, match="updated or dropped"):
            await settle(q, job)
    assert set((await q.counts()).values()) == {0}
    assert count(database, "jobs") == 0


# --- a key that is used again ---------------------------------------------------------------------


async def test_a_key_can_be_used_again(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    old = []
    for turn, end in enumerate(("ack", "reject", "ack", "drop")):
        offer = q.offer_or_update if turn % 2 else q.offer_if_not_exists
        assert await offer("k", turn, PAST) is CREATED
        job = await q.try_poll()
        old.append(job)
        await (q.drop("k") if end == "drop" else getattr(job, end)())
    assert await q.offer_or_update("k", "live", PAST) is CREATED
    for job in old:  # an old lock says nothing of the new job
        with pytest.raises((errors.AlreadySettled, errors.StaleLease)):
            await job.ack()
    assert [job.payload for job in await q.archive(state=State.COMPLETED)] == [2, 0]
    (failed,) = await q.failed()
    assert await q.retry([failed]) == 0  # its key has a live job
    assert await claimed(q) == ["live"]
    assert consistent(database) == 1


# --- read, contains, drop -------------------------------------------------------------------------


async def test_read_shows_a_live_job_as_it_stands(mq: Any) -> None:
    q = mq.queue("q")
    assert await q.read("k") is None
    assert not await q.contains("k")
    put = await q.put({"a": 1}, key="k", headers={"h": "v"}, priority=2)
    seen = await q.read("k")
    assert (seen.id, seen.payload, seen.headers, seen.priority) == (put.id, {"a": 1}, {"h": "v"}, 2)
    assert (seen.state, seen.attempts, seen.due_at) == (State.PENDING, 0, put.due_at)
    with pytest.raises(errors.NotClaimed):
        await seen.ack()
    job = await q.try_poll()  # a read claims nothing
    assert (await q.read("k")).state is State.PROCESSING
    await job.nack(delay=3600)
    seen = await q.read("k")
    assert (seen.state, seen.attempts, seen.attempt) == (State.RETRYABLE, 1, 2)
    assert seen.due_at > datetime.now(UTC) + timedelta(seconds=1800)
    assert await q.contains("k")
    assert not await q.contains("K")
    assert not await mq.queue("Q").contains("k")
    await q.drop("k")
    assert await q.read("k") is None
    assert not await q.contains("k")


async def test_what_a_handle_cannot_see_it_cannot_drop(mq: Any) -> None:
    emails, raw, every = mq.queue("q", type=Email), mq.queue("q", kind="raw"), mq.queue("q")
    await raw.put(1, key="k")
    assert await emails.read("k") is None
    assert not await emails.contains("k")
    assert not await emails.drop("k")
    await emails.put(Email("ada"), key="k")
    assert await emails.drop("k")
    assert await raw.contains("k")
    await emails.put(Email("ada"), key="k")
    assert await every.drop("k")  # of every kind
    assert not await every.contains("k")
    assert not await raw.contains("k")


async def test_a_dropped_head_lets_the_next_in_line_move_up(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for name in "abcd":
        await q.put(name, key=name, ordering_key="line", at=PAST)
    assert await q.drop("a")
    job = await q.try_poll()
    assert job.payload == "b"
    assert await q.drop("c")
    assert await q.try_poll() is None
    assert await q.drop("b")
    with pytest.raises(errors.StaleLease):
        await job.ack()
    assert await claimed(q) == ["d"]
    assert consistent(database) == 1


async def test_drop_all_wants_to_be_sure(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2])
    for wrong in (None, True, "", "yes", CONFIRM.lower(), CONFIRM + " ", CONFIRM.encode()):
        with pytest.raises(errors.InvalidInput, match="Yes, please, I know what I'm doing!"):
            await q.drop_all(confirm=wrong)
    with pytest.raises(errors.InvalidInput, match="Yes, please, I know what I'm doing!"):
        await q.drop_all()
    assert sizes(database) == (2, 2)


async def test_drop_all_leaves_only_the_archive(mq: Any, database: Database) -> None:
    q, emails = mq.queue("q"), mq.queue("q", type=Email)
    await q.put("done", at=PAST)
    await (await q.try_poll()).ack()
    await q.put("failed", at=PAST)
    await (await q.try_poll()).reject()
    await q.put("claimed", key="claimed", at=PAST)
    job = await q.try_poll()
    await q.put_many(["pending", "another"], priority=3)
    await q.put("later", key="later", at=FUTURE)
    await q.put_many(["head", "waiting", "waiting"], ordering_key="line", at=PAST)
    await q.put("retried", at=PAST, priority=9)
    await (await q.try_poll()).nack(delay=60)
    await emails.put(Email("ada"), key="email")
    await mq.queue("another").put("stays", key="later")
    assert await q.drop_all(confirm=CONFIRM) == 9
    assert await q.drop_all(CONFIRM) == 0
    with pytest.raises(errors.StaleLease):
        await job.ack()
    assert await q.counts() == {
        "pending": 0, "processing": 0, "retryable": 0, "completed": 1, "failed": 1,
    }  # fmt: skip
    assert consistent(database) == 1
    assert await q.offer_if_not_exists("claimed", "again") is CREATED
    await q.put("line", ordering_key="line")
    assert await claimed(q) == ["again", "line"]
    assert await claimed(mq.queue("another")) == ["stays"]


async def test_drop_all_drops_what_the_handle_sees(mq: Any, database: Database) -> None:
    emails = mq.queue("q", type=Email)
    await emails.put_many([Email("a"), Email("b")])
    await mq.queue("q").put("untyped")
    await mq.queue("q", kind="raw").put("raw", key="k")
    assert await emails.drop_all(CONFIRM) == 3
    assert sizes(database) == (1, 1)
    assert await mq.queue("q").contains("k")


@async_only
async def test_drop_all_of_many(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many(range(2_100))
    await q.offer_batch([ScheduledMessage(f"k{n}", n) for n in range(300)])
    await q.try_poll_many(1_000)
    assert await q.drop_all(CONFIRM) == 2_400
    assert sizes(database) == (0, 0)
    assert consistent(database) == 0


# --- in transactions ------------------------------------------------------------------------------


async def test_offers_of_a_transaction_count_when_it_commits(mq: Any, database: Database) -> None:
    await mq.queue("q").offer_or_update("claimed", "old", PAST)
    job = await mq.queue("q").try_poll()
    async with mq.transaction() as tx:
        q = tx.queue("q")
        assert await q.offer_if_not_exists("k", 1, PAST) is CREATED
        assert await q.offer_if_not_exists("k", 2, PAST) is IGNORED
        assert await q.offer_or_update("k", 1, PAST) is IGNORED
        assert await q.offer_or_update("k", 3, PAST) is UPDATED
        assert await mq.queue("q").offer_or_update("claimed", "new", PAST, connection=tx) is UPDATED
        await q.put("put", key="put", at=PAST)
        assert await q.drop("put")
        assert await q.offer_or_update("put", "offered", PAST) is CREATED
        assert consistent(database) == 1
    with pytest.raises(errors.StaleLease):
        await job.ack()
    assert sorted(map(str, await claimed(mq.queue("q")))) == ["3", "new", "offered"]
    assert consistent(database) == 3


async def test_a_rollback_brings_the_old_job_back(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.offer_batch([ScheduledMessage(key, "old", PAST) for key in ("claimed", "dropped")])
    jobs = await q.try_poll_many(10)
    await q.offer_or_update("pending", "old", PAST)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            inside = tx.queue("q")
            assert await inside.offer_or_update("claimed", "new", PAST) is UPDATED
            assert await inside.offer_or_update("pending", "new", PAST) is UPDATED
            assert await inside.offer_or_update("new", "new", PAST) is CREATED
            assert await inside.drop("dropped")
            raise ZeroDivisionError
    assert consistent(database) == 3
    assert await claimed(q) == ["old"]
    await q.ack(jobs)  # its lock is as good as before
    assert await q.offer_if_not_exists("claimed", "next", PAST) is CREATED
    assert await q.offer_if_not_exists("new", "next", PAST) is CREATED


async def leave(manager: Any, *, commits: bool) -> None:
    """End a transaction, one way or the other."""
    if commits:
        await manager.__aexit__(None, None, None)
    else:
        assert not await manager.__aexit__(Undo, Undo(), None)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_an_offer_waits_for_who_has_the_key(
    connect: Connect, database: Database, commits: bool
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    q = other.queue("q")
    await q.put("lane")
    manager = mq.transaction()
    tx = await manager.__aenter__()
    assert await tx.queue("q").offer_or_update("k", "mine", PAST) is CREATED
    waiting = asyncio.ensure_future(q.offer_if_not_exists("k", "theirs", PAST))
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    await leave(manager, commits=commits)
    assert await waiting is (IGNORED if commits else CREATED)
    assert (await q.read("k")).payload == ("mine" if commits else "theirs")
    assert consistent(database) == 1


FEW_KINDS = {"sqlite3", "sqlite3-in-async-code", "psycopg", "asyncpg", "PyMySQL", "asyncmy"}
FEW = [
    pytest.param((name, kind), id=f"{name}-{kind.name}")
    for name in NAMES
    for kind in MODULES[name].KINDS
    if kind.name in FEW_KINDS
]
ON_MYSQL = [choice for choice in FEW if choice.values[0][0] in MYSQL]  # type: ignore[index]

Calling = tuple[Database, Kind, Held]


@pytest.fixture
async def calling(request: pytest.FixtureRequest, databases: Databases) -> AsyncIterator[Calling]:
    """A database, a kind of caller, and a client of its flavour."""
    name, kind = request.param
    database = databases.get(name)
    async with client(kind.flavour, database.url) as held:
        yield database, kind, held


class Inside:
    """The calls of a queue, in a caller's transaction if there is one."""

    def __init__(self, held: Held, name: str = "q") -> None:
        self.held = held
        self.queue = held.mq.queue(name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self.held.call(
            getattr(self.queue, name), *args, **self.held.inside(options)
        )


@asynccontextmanager
async def inside(held: Held, kind: Kind, database: Database) -> AsyncIterator[Inside]:
    async with transaction(held, kind.open(database)) as opened:
        yield Inside(opened)


@pytest.mark.parametrize("calling", FEW, indirect=True)
async def test_offers_in_a_callers_transaction(calling: Calling) -> None:
    database, kind, held = calling
    q = Inside(held)
    await q.offer_or_update("claimed", "old", PAST)
    job = await q.try_poll()
    for outcome in ("rollback", "commit"):
        async with inside(held, kind, database) as mine:
            assert await mine.offer_or_update("claimed", "new", PAST) is UPDATED
            assert await mine.offer_if_not_exists("k", EVERY, PAST) is CREATED
            batch = [ScheduledMessage("k", "x", PAST, can_update=False), ScheduledMessage("l", 1)]
            assert [o for _, o in await mine.offer_batch(batch)] == [IGNORED, CREATED]
            assert (await mine.put("put", key="put", headers={"h": "😀"})).payload == "put"
            with pytest.raises(errors.KeyTaken):
                await mine.put("again", key="put")
            assert await mine.drop("l")
            if outcome == "rollback":
                raise Undo
        assert consistent(database) == (1 if outcome == "rollback" else 3)
        if outcome == "rollback":
            await held.call(job.extend, 60)
    with pytest.raises(errors.StaleLease):
        await held.call(job.ack)
    found = [(job.key, job.payload) for job in await q.try_poll_many(10)]
    assert sorted(found) == [("claimed", "new"), ("k", EVERY), ("put", "put")]


EVERY = "every 😀 '\"\\%"


@pytest.mark.parametrize("calling", ON_MYSQL, indirect=True)
async def test_a_snapshot_does_not_hide_a_live_job(calling: Calling) -> None:
    """MySQL's default is REPEATABLE READ: a caller reads as of the first statement."""
    database, kind, held = calling
    q = Inside(held)
    await q.offer_or_update("old", "old", PAST)
    async with transaction(held, kind.open(database)) as opened:
        await opened.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await opened.run("SELECT COUNT(*) FROM rowmq_jobs")
        await q.offer_or_update("new", "theirs", PAST)
        await q.offer_or_update("same", "theirs", PAST)
        await q.offer_or_update("old", "theirs", PAST)
        mine = Inside(opened)
        outcomes = [
            await mine.offer_if_not_exists("new", "mine", PAST),
            await mine.offer_or_update("same", "theirs", PAST),
            await mine.offer_or_update("old", "mine", PAST),
        ]
        with pytest.raises(errors.KeyTaken):
            await mine.put("mine", key="new")
    assert outcomes == [IGNORED, IGNORED, UPDATED]
    assert consistent(database) == 3
    found = {job.key: job.payload for job in await q.try_poll_many(10)}
    assert found == {"new": "theirs", "same": "theirs", "old": "mine"}


# --- many at once ---------------------------------------------------------------------------------


def tally(batches: list[list[tuple[Any, Outcome]]]) -> Counter[Outcome]:
    return Counter(outcome for batch in batches for _, outcome in batch)


@async_only  # threads are in the next one
async def test_ten_thousand_offers_of_a_hundred_keys(connect: Connect, database: Database) -> None:
    clients = [await connect(database.url) for _ in range(2)]

    async def produce(producer: int) -> list[list[tuple[Any, Outcome]]]:
        chance = random.Random(producer)
        q = clients[producer % 2].queue("q")
        done = []
        for turn in range(12):
            messages = [
                ScheduledMessage(
                    f"k{chance.randrange(100)}",
                    [producer, turn],
                    PAST + timedelta(seconds=chance.randrange(9)),
                    can_update=chance.random() < 0.5,
                    priority=chance.randrange(2),
                )
                for _ in range(53)
            ]
            done.append(await q.offer_batch(messages))
        return done

    done = await asyncio.gather(*(produce(number) for number in range(16)))
    outcomes = tally([batch for batches in done for batch in batches])
    assert outcomes.total() == 10_176
    assert outcomes[CREATED] == consistent(database) == 100
    assert outcomes[UPDATED] > 1000
    assert sizes(database) == (100, 100)
    jobs = await clients[0].queue("q").try_poll_many(1000)
    assert len({job.key for job in jobs}) == len(jobs) == 100


class Traffic:
    """Producers and workers of ten keys, and what they were told."""

    def __init__(self) -> None:
        self.producing = True
        self.outcomes: Counter[Outcome] = Counter()
        self.settled: Counter[str] = Counter()

    async def produce(self, q: Any, chance: random.Random) -> None:
        for turn in counting():
            if turn >= 10 and self.settled["ack"]:
                break
            key = f"k{chance.randrange(10)}"
            if turn % 3 == 0:
                batch = [ScheduledMessage(f"k{chance.randrange(10)}", turn) for _ in range(4)]
                self.outcomes.update(outcome for _, outcome in await q.offer_batch(batch))
            else:
                offer = q.offer_or_update if turn % 3 == 1 else q.offer_if_not_exists
                outcome = await offer(key, chance.random())
                self.outcomes[outcome] += 1

    async def work(self, q: Any, chance: random.Random) -> None:
        while self.producing:
            for job in await q.try_poll_many(4):
                await self.settle(job, chance.choice(("ack", "ack", "reject", "nack", "release")))
            if chance.random() < 0.2:
                dropped = await q.drop(f"k{chance.randrange(10)}")
                self.settled["drop"] += dropped
            await asyncio.sleep(0)

    async def settle(self, job: Any, how: str) -> None:
        try:
            await (job.nack(delay=0) if how == "nack" else getattr(job, how)())
        except errors.StaleLease:
            self.settled["stale"] += 1
        else:
            self.settled[how] += 1

    @property
    def live(self) -> int:
        """How many jobs there must be."""
        return self.outcomes[CREATED] - sum(self.settled[how] for how in ("ack", "reject", "drop"))


async def test_offers_while_workers_claim_and_settle(connect: Connect, database: Database) -> None:
    """What was created and is not finished is what is there: nothing is lost, nothing is twice."""
    queues = [(await connect(database.url)).queue("q") for _ in range(2)]
    traffic = Traffic()
    workers = [
        asyncio.ensure_future(traffic.work(queues[n % 2], random.Random(-n))) for n in range(3)
    ]
    await asyncio.gather(
        *(traffic.produce(queues[n % 2], random.Random(100 + n)) for n in range(16))
    )
    traffic.producing = False
    await asyncio.gather(*workers)
    assert consistent(database) == traffic.live
    assert count(database, "completed") == traffic.settled["ack"] > 0
    assert count(database, "failed") == traffic.settled["reject"]
    rest = await queues[0].try_poll_many(1000)
    assert len(rest) == len({job.key for job in rest}) == traffic.live
    await queues[0].ack(rest)
    assert consistent(database) == 0
    assert (await queues[0].counts())["processing"] == 0


async def test_many_offers_of_one_new_key_create_one_job(mq: Any, database: Database) -> None:
    for turn in range(3):
        q = mq.queue(f"q{turn}", kind="new lane")
        outcomes = await asyncio.gather(
            *(q.offer_if_not_exists("k", number, PAST) for number in range(16))
        )
        assert Counter(outcomes) == {CREATED: 1, IGNORED: 15}
        puts = await asyncio.gather(
            *(q.put(number, key="put") for number in range(8)), return_exceptions=True
        )
        assert sum(isinstance(put, errors.KeyTaken) for put in puts) == 7
    assert consistent(database) == 6


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
async def test_a_key_that_vanishes_while_it_is_waited_for(
    connect: Connect, database: Database, commits: bool
) -> None:
    mq, other = await connect(database.url), await connect(database.url)
    await mq.queue("q").offer_or_update("k", "old", PAST)
    job = await mq.queue("q").try_poll()
    manager = mq.transaction()
    tx = await manager.__aenter__()
    await job.ack(connection=tx)
    waiting = asyncio.ensure_future(other.queue("q").offer_if_not_exists("k", "new", PAST))
    await asyncio.wait({waiting}, timeout=0.1)
    assert not waiting.done()
    await leave(manager, commits=commits)
    assert await waiting is (CREATED if commits else IGNORED)
    assert await claimed(other.queue("q")) == (["new"] if commits else [])
    assert consistent(database) == 1


# --- answers that are lost ------------------------------------------------------------------------


class Losing:
    """Lets what writes jobs be committed and then fail, as when the connection breaks before the
    answer comes; and lets something happen before it is tried again.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int = 2) -> None:
        self.times = times
        self.lost = 0
        self.written = False
        self.meanwhile: Callable[[], object] = lambda: None
        for session in SESSIONS:
            for name in ("commit", "execute"):
                monkeypatch.setattr(session, name, self.wrapped(getattr(session, name)))

    def wrapped(self, method: Any) -> Any:
        async def call_async(session: Any, *args: Any) -> Any:
            result = await method(session, *args)
            self.answer(*args)
            return result

        def call(session: Any, *args: Any) -> Any:
            result = method(session, *args)
            self.answer(*args)
            return result

        return call_async if asyncio.iscoroutinefunction(method) else call

    def answer(self, statement: Any = None) -> None:
        """After a statement, or after a commit."""
        if statement is not None and statement.name in WRITING:
            self.written = True
        committed = statement is None or statement.sole
        if committed and self.written and self.lost < self.times:
            self.written = False
            self.lost += 1
            self.meanwhile()
            raise ConnectionResetError("the answer was lost")


WRITING = ("jobs.put", "jobs.insert", "jobs.take_keys", "jobs.find")


@on_servers  # there is no connection to lose
async def test_a_put_whose_answer_is_lost_doubles_nothing(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = await connect(database.url)
    q = mq.queue("q")
    await q.put("before", at=PAST)
    losing = Losing(monkeypatch)
    puts: list[Callable[[], Any]] = [
        lambda: q.put("plain", at=PAST),
        lambda: q.put("later", delay=3600),
        lambda: q.put("keyed", key="k"),
        lambda: q.put("lined", ordering_key="line"),
        lambda: mq.queue("q", kind="new").put("lane", priority=3),
        lambda: q.put_many(["many"] * 50),
    ]
    ids = []
    for number, put in enumerate(puts):
        losing.lost = 0
        done = await put()
        assert losing.lost == 2, number
        ids += [job.id for job in (done if isinstance(done, list) else [done])]
    assert len(set(ids)) == len(ids) == 55
    assert sizes(database) == (56, 56)
    found = Counter(await claimed(q, 1000))
    assert found == {"before": 1, "plain": 1, "keyed": 1, "lined": 1, "lane": 1, "many": 50}


@on_servers
async def test_an_offer_whose_answer_is_lost_has_its_outcome(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq = await connect(database.url)
    q = mq.queue("q")
    await q.offer_or_update("old", "old", PAST)
    job = await q.try_poll()
    losing = Losing(monkeypatch)
    batch: list[ScheduledMessage[Any]] = [
        *(ScheduledMessage("b", n, PAST, can_update=n != 1) for n in range(3)),
        ScheduledMessage("old", "new", PAST),
        ScheduledMessage("k", 2, PAST),
    ]
    offers: list[tuple[list[ScheduledMessage[Any]], list[Outcome]]] = [
        ([ScheduledMessage("k", 1, PAST)], [CREATED]),
        ([ScheduledMessage("old", "new", PAST)], [UPDATED]),
        ([ScheduledMessage("old", "new", PAST)], [IGNORED]),
        (batch, [CREATED, IGNORED, UPDATED, IGNORED, UPDATED]),
    ]
    for messages, outcomes in offers:
        losing.lost = 0
        assert [outcome for _, outcome in await q.offer_batch(messages)] == outcomes
        assert losing.lost == 2
    assert consistent(database) == 3
    with pytest.raises(errors.StaleLease):
        await job.ack()
    found = {job.key: job.payload for job in await q.try_poll_many(10)}
    assert found == {"old": "new", "k": 2, "b": 2}


@on_servers
async def test_jobs_that_are_done_before_their_put_is_repeated(
    connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker may be quicker than the second try, and the queue may keep nothing of it."""
    mq = await connect(database.url, retry_for=2)
    q = mq.queue("q")
    await q.configure(keep_completed=False)
    await q.put(0, at=PAST)
    await (await q.try_poll()).ack()
    with rowmq.connect(database.url) as rival:
        worker = rival.queue("q")

        def ack_one() -> None:
            job = worker.try_poll()
            assert job is not None
            job.ack()

        losing = Losing(monkeypatch, times=1)
        losing.meanwhile = ack_one
        jobs = await q.put_many([1, 2, 3], at=PAST)
        assert losing.lost == 1
        assert len(jobs) == 3
    assert await claimed(q) == [2, 3]
