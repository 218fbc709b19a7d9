"""Putting jobs: what was put is what is claimed, in order, as the type it was put as, and once."""

import asyncio
import dataclasses
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pydantic
import pytest

import rowmq
from rowmq import DeliveryType, State, errors
from rowmq.queue.ids import Ids
from rowmq.store.queues import IDS_A_BLOCK
from tests.choices import async_only
from tests.conftest import Connect
from tests.consuming import eventually
from tests.databases import Database
from tests.flavours import plain
from tests.unit.drivers.test_pool import exit_code, fork

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)
EVERY_BYTE = bytes(range(256))


@dataclasses.dataclass
class Email:
    to: str
    copies: int = 1


@dataclasses.dataclass
class Sms:
    number: str


class Invoice(pydantic.BaseModel):
    customer: str
    amounts: list[int]


def count(database: Database, table: str) -> int:
    """How many rows a table has, for others to see."""
    ((rows,),) = database.execute(f"SELECT COUNT(*) FROM rowmq_{table}")
    return int(rows)


def sizes(database: Database) -> tuple[int, int]:
    """How many jobs there are, and how many of them can be claimed some time."""
    return count(database, "jobs"), count(database, "ready")


async def claimed(queue: Any, limit: int = 100) -> list[Any]:
    """The payloads of what is due, in the order in which it is claimed."""
    return [job.payload for job in await queue.try_poll_many(limit)]


# --- a job as it was put --------------------------------------------------------------------------


async def test_a_put_gives_the_job_as_it_will_be_claimed(mq: Any) -> None:
    q = mq.queue("emails")
    before = datetime.now(UTC)
    put = await q.put({"to": "ada"}, priority=3, key="k", headers={"träger": "😀 '\"\\%"})
    job = await q.try_poll()
    for field in ("id", "payload", "key", "ordering_key", "headers", "priority", "kind"):
        assert getattr(put, field) == getattr(job, field)
    assert plain(put).queue == plain(job).queue == q.name == "emails"
    assert (put.payload, put.key, put.kind) == ({"to": "ada"}, "k", "")
    assert (put.priority, put.ordering_key, put.headers) == (3, None, {"träger": "😀 '\"\\%"})
    assert (put.state, job.state) == (State.PENDING, State.PROCESSING)
    assert put.due_at == job.due_at == job.created_at
    assert abs(put.due_at - before) < timedelta(seconds=10)
    assert (job.attempt, job.delivery_type) == (1, DeliveryType.FIRST_DELIVERY)
    assert (job.error, job.finished_at) == (None, None)


async def test_a_job_that_was_only_put_cannot_be_settled(mq: Any) -> None:
    q = mq.queue("q")
    put = await q.put(1)
    for settle in (put.ack, put.nack, put.reject, put.release):
        with pytest.raises(errors.NotClaimed, match="try_poll"):
            await settle()
    with pytest.raises(errors.NotClaimed, match="try_poll"):
        await put.extend(5)
    with pytest.raises(errors.NotClaimed, match="hold"):
        _ = put.tx
    await (await q.try_poll()).ack()


async def test_a_put_is_durable_when_it_returns(
    connect: Connect, mq: Any, database: Database
) -> None:
    put = await mq.queue("q").put("here")
    assert sizes(database) == (1, 1)
    other = await connect(database.url)
    job = await other.queue("q").try_poll()
    assert (job.id, job.payload) == (put.id, "here")
    await job.ack()
    assert await mq.queue("q").try_poll() is None


PAYLOADS: list[Any] = [
    "", "text", "null", "😀\0", b"", EVERY_BYTE, None, True, 0, -(2**53), 1.5, [], {},
    {"a": [1, {"b": None}]}, [None], "x" * 100_000,
]  # fmt: skip


async def test_payloads_come_back_as_they_were(mq: Any) -> None:
    q = mq.queue("q")
    singly = [await q.put(payload) for payload in PAYLOADS]
    together = await q.put_many(PAYLOADS)
    assert [job.payload for job in singly] == [job.payload for job in together] == PAYLOADS
    found = await claimed(q)
    assert found == PAYLOADS * 2
    assert [type(payload) for payload in found] == [type(payload) for payload in PAYLOADS * 2]


async def test_what_has_no_type_comes_as_plain_values(mq: Any) -> None:
    q = mq.queue("q")
    await q.put(Email("ada"))
    await q.put(Invoice(customer="bob", amounts=[1, 2]))
    await q.put((1, 2))
    assert await claimed(q) == [
        {"to": "ada", "copies": 1},
        {"customer": "bob", "amounts": [1, 2]},
        [1, 2],
    ]


async def test_a_payload_of_16_megabytes(mq: Any) -> None:
    payload = random.Random(7).randbytes(16 * 1024 * 1024)
    q = mq.queue("q")
    with pytest.raises(errors.PayloadTooLarge, match=r"16,777,216 bytes.*configure\(max_payload"):
        await q.put(payload)
    await q.configure(max_payload_bytes=16 * 1024 * 1024)
    await q.put(payload)
    job = await q.try_poll()
    assert job.payload == payload
    await job.ack()
    with pytest.raises(errors.PayloadTooLarge):
        await q.put(payload + b"!")


# --- when and in which order ----------------------------------------------------------------------


async def test_the_order_is_priority_then_time_then_id(mq: Any) -> None:
    q = mq.queue("q")
    moments = [PAST + timedelta(seconds=n) for n in range(3)]
    jobs = [(p, at) for p in (-32_767, -1, 0, 5, 32_767) for at in moments for _ in range(2)]
    random.Random(4).shuffle(jobs)
    put = [await q.put(number, priority=p, at=at) for number, (p, at) in enumerate(jobs)]
    assert [job.id for job in put] == sorted(job.id for job in put)
    expected = sorted(range(len(jobs)), key=lambda n: (-jobs[n][0], jobs[n][1], n))
    singly = [(await q.try_poll()).payload for _ in range(7)]
    rest = await claimed(q, 11) + await claimed(q)
    assert singly + rest == expected


async def test_of_two_kinds_the_higher_priority_comes_first(mq: Any) -> None:
    await mq.queue("q", type=Email).put(Email("second"), at=PAST)
    await mq.queue("q", type=Sms).put(Sms("first"), priority=1)
    await mq.queue("q").put("third", at=PAST + timedelta(seconds=1))
    q = mq.queue("q")
    assert await claimed(q) == [{"number": "first"}, {"to": "second", "copies": 1}, "third"]


async def test_jobs_of_one_time_keep_their_order(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many(range(50), at=PAST)
    for number in range(50, 60):
        await q.put(number, at=PAST)
    assert await claimed(q) == list(range(60))


async def test_a_delayed_job_comes_when_it_is_due_and_not_before(mq: Any) -> None:
    q = mq.queue("q")
    now = datetime.now(UTC)
    late = await q.put("late", delay=timedelta(hours=1))
    soon = await q.put("soon", delay=1)
    assert abs(late.due_at - now - timedelta(hours=1)) < timedelta(seconds=10)
    assert await q.try_poll() is None
    assert (await q.counts())["pending"] == 2
    job = await q.poll(timeout=10)
    assert job.payload == "soon"
    assert job.due_at == soon.due_at == job.created_at + timedelta(seconds=1)
    assert datetime.now(UTC) >= soon.due_at - timedelta(milliseconds=5)
    assert await q.try_poll() is None
    await q.put("at once", delay=0)
    assert await claimed(q) == ["at once"]


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-11, minutes=-7))], ids=str)
async def test_a_time_is_kept_to_the_microsecond(mq: Any, zone: Any) -> None:
    q = mq.queue("q")
    due = datetime(2021, 12, 31, 23, 59, 59, 123457, tzinfo=UTC)
    put = await q.put("past", at=due.astimezone(zone), key="k")
    later = await q.put("future", at=(due + timedelta(days=100_000)).astimezone(zone))
    assert (put.due_at, later.due_at) == (due, due + timedelta(days=100_000))
    assert (await q.read("k")).due_at == due
    (job,) = await q.try_poll_many(10)
    assert (job.payload, job.due_at) == ("past", due)


# --- keys and lines -------------------------------------------------------------------------------


async def test_a_key_has_one_live_job(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put(1, key="k")
    taken = pytest.raises(errors.KeyTaken, match=r"'q'.*'k'.*offer_or_update.*offer_if_not_exists")
    with taken:
        await q.put(2, key="k")
    job = await q.try_poll()
    with taken:  # it is being worked on
        await q.put(2, key="k")
    await job.nack(delay=60)
    with taken:  # it is to be tried again
        await q.put(2, key="k", delay=5, priority=9)
    assert sizes(database) == (1, 1)
    await mq.queue("another").put(2, key="k")
    await q.put(2, key="K")
    await q.put(2, key="k ")
    assert count(database, "job_keys") == 4


async def test_a_key_is_free_when_its_job_is_done_with(mq: Any) -> None:
    q = mq.queue("q")
    for number, end in enumerate(("ack", "reject", "drop")):
        put = await q.put(number, key="k")
        if end == "drop":
            assert await q.drop("k")
        else:
            job = await q.try_poll()
            assert job.id == put.id
            await getattr(job, end)()
        assert not await q.contains("k")
    await q.put("again", key="k")
    assert await claimed(q) == ["again"]


async def test_jobs_of_one_ordering_key_come_one_at_a_time(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many(["a1", "a2"], ordering_key="a")
    await q.put("a0", ordering_key="a", priority=1)
    await q.put("b1", ordering_key="b")
    await q.put("free")
    seen = []
    while jobs := await q.try_poll_many(10):
        seen.append([(job.payload, job.ordering_key) for job in jobs])
        await q.ack(jobs)
    assert seen == [
        [("a0", "a"), ("b1", "b"), ("free", None)],
        [("a1", "a")],
        [("a2", "a")],
    ]


# --- many -----------------------------------------------------------------------------------------


async def test_put_many_gives_each_job_in_order(mq: Any) -> None:
    q = mq.queue("q")
    jobs = await q.put_many(
        (n for n in range(3)), at=PAST, priority=2, headers={"h": "v"}, ordering_key="line"
    )
    assert [(j.payload, j.due_at, j.priority, j.headers) for j in jobs] == [
        (n, PAST, 2, {"h": "v"}) for n in range(3)
    ]
    delayed = await q.put_many(["x", "y"], delay=60)
    assert delayed[0].due_at == delayed[1].due_at > datetime.now(UTC) + timedelta(seconds=30)


async def test_put_many_of_nothing_is_nothing(mq: Any, database: Database) -> None:
    assert await mq.queue("q").put_many([]) == []
    assert await mq.queue("q").put_many(iter(())) == []
    assert [count(database, table) for table in ("queues", "lanes", "job_ids")] == [0, 0, 0]


async def test_put_many_is_all_or_none(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.configure(max_payload_bytes=100)
    with pytest.raises(errors.PayloadTooLarge, match="101 bytes"):
        await q.put_many([b"x", b"x" * 101, b"x"])
    with pytest.raises(errors.PayloadNotSerializable, match="payload 2:"):
        await q.put_many([1, 2, object()])
    assert sizes(database) == (0, 0)
    assert await q.try_poll() is None


async def test_more_jobs_than_a_block_of_ids(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    first = await q.put("first")
    jobs = await q.put_many(range(2 * IDS_A_BLOCK + 10))
    last = await q.put("last")
    ids = [job.id for job in (first, *jobs, last)]
    assert len(set(ids)) == len(ids) == count(database, "jobs")
    assert ids == sorted(ids)
    assert await claimed(q, 10_000) == ["first", *range(2 * IDS_A_BLOCK + 10), "last"]


async def test_concurrent_puts_are_all_there_once(connect: Connect, database: Database) -> None:
    clients = [await connect(database.url) for _ in range(2)]
    handles = [client.queue("q", kind=kind) for client in clients for kind in ("a", "b")]

    async def produce(producer: int) -> list[tuple[int, Any]]:
        done = []
        for turn in range(15):
            job = await handles[producer % 4].put([producer, turn], priority=turn % 3)
            done.append((job.id, tuple(job.payload)))
        return done

    puts = [put for done in await asyncio.gather(*map(produce, range(16))) for put in done]
    assert len({id for id, _ in puts}) == 16 * 15
    jobs = await clients[0].queue("q").try_poll_many(1000)
    assert sorted((job.id, tuple(job.payload)) for job in jobs) == sorted(puts)
    assert sizes(database) == (16 * 15, 0)


async def test_puts_that_share_a_transaction_keep_what_is_their_own(mq: Any) -> None:
    queue = mq.queue("emails")
    hows: list[dict[str, Any]] = [
        {},
        {"headers": {"a": "b"}},
        {"priority": 3},
        {"at": PAST},
        {"delay": 600},
        {"at": FUTURE, "headers": {"c": "d"}, "priority": -3},
    ]
    payloads = [b"bytes", "text", {"n": 1}, None, b"", 7]
    calls = [(payload, how) for payload in payloads for how in hows]
    await queue.put(0)  # makes its lane
    jobs = await asyncio.gather(*(queue.put(payload, **how) for payload, how in calls))
    stored = {job.id: job for job in await queue.live(limit=100)}
    for job, (payload, how) in zip(jobs, calls, strict=True):
        found = stored[job.id]
        assert (found.payload, found.headers) == (payload, how.get("headers", {}))
        assert (found.priority, found.due_at) == (how.get("priority", 0), job.due_at)
        assert "at" not in how or job.due_at == how["at"]


async def test_a_put_that_is_refused_takes_no_other_with_it(mq: Any, database: Database) -> None:
    """Concurrent puts share a transaction, and still each has its own outcome."""
    q = mq.queue("q")
    await q.configure(max_payload_bytes=100)
    outcomes = await asyncio.gather(
        *(q.put(b"x" * (101 if n % 7 == 0 else 99)) for n in range(40)), return_exceptions=True
    )
    refused = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    assert refused == list(range(0, 40, 7))
    assert all(isinstance(outcomes[n], errors.PayloadTooLarge) for n in refused)
    assert sizes(database) == (40 - len(refused), 40 - len(refused))


def test_ids_are_not_shared_across_a_fork(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        q = mq.queue("q")
        q.put("parent")

        def child() -> None:
            q.put("child")
            q.put_many(["child"] * 5)

        assert exit_code(fork(child)) == 0
        q.put_many(["parent"] * 5)
        jobs = q.try_poll_many(100)
        assert sorted(job.payload for job in jobs) == ["child"] * 6 + ["parent"] * 6


@async_only  # threads cannot be cancelled
async def test_a_cancelled_put_is_there_or_is_not(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("before")
    for turns in range(12):
        task = asyncio.ensure_future(q.put("perhaps", key=f"k{turns % 2}" if turns % 3 else None))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await q.put("after", key="after")
    # A server may commit later what was cancelled while it was under way.
    await eventually(lambda: len(set(sizes(database))) == 1)
    found = await claimed(q)
    assert found[0] == "before"
    assert found.count("after") == 1


# --- in transactions ------------------------------------------------------------------------------


async def test_a_put_is_part_of_its_transaction(mq: Any, database: Database) -> None:
    await mq.queue("q").configure(max_payload_bytes=100)
    async with mq.transaction() as tx:
        q = tx.queue("q")
        job = await q.put("kept", key="k", headers={"a": "b"})
        await mq.queue("q").put_many(["also"], connection=tx)
        with pytest.raises(errors.KeyTaken):
            await q.put("refused", key="k")
        with pytest.raises(errors.PayloadTooLarge):
            await q.put(b"x" * 101, key="too large")
        assert sizes(database) == (0, 0)
    assert sizes(database) == (2, 2)
    first, second = await mq.queue("q").try_poll_many(10)
    assert (first.id, first.payload, first.headers) == (job.id, "kept", {"a": "b"})
    assert second.payload == "also"


async def test_a_rollback_takes_its_puts_with_it(mq: Any, database: Database) -> None:
    async def put_and_undo() -> None:
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                q = tx.queue("q", type=Email)
                await q.put(Email("nobody"), key="k", ordering_key="line", priority=1)
                await q.put_many([Email("nobody")] * 3)
                raise ZeroDivisionError

    q = mq.queue("q", type=Email)
    await put_and_undo()
    assert sizes(database) == (0, 0)
    assert await mq.queues() == []
    await q.put(Email("ada"), ordering_key="line")
    await put_and_undo()
    assert sizes(database) == (1, 1)
    assert not await q.contains("k")
    assert await claimed(q) == [Email("ada")]


async def test_an_id_is_given_once_also_after_a_rollback(
    connect: Connect, mq: Any, database: Database
) -> None:
    """The ids of a transaction that is undone come from a block that others may be given."""
    ids: list[int] = []
    others = [await connect(database.url) for _ in range(2)]
    for turn in range(3):
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                await tx.queue("q").put("undone")
                raise ZeroDivisionError
        async with mq.transaction() as tx:
            ids += [job.id for job in await tx.queue("q").put_many([turn] * 3)]
        for client in (mq, *others):
            ids.append((await client.queue("q").put(turn)).id)
    assert len(set(ids)) == len(ids) == count(database, "jobs") == 18
    assert len(await mq.queue("q").try_poll_many(100)) == 18


async def test_ids_of_a_transaction_are_for_no_other_thread(
    connect: Connect, mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes an id at the very moment when a transaction has reserved some, and is undone."""
    taken: list[int] = []
    add = Ids.add

    def add_and_take(self: Ids, block: range) -> None:
        add(self, block)
        taken.extend(self.take(1))

    with monkeypatch.context() as rival, pytest.raises(ZeroDivisionError):
        rival.setattr(Ids, "add", add_and_take)
        async with mq.transaction() as tx:
            await tx.queue("q").put("undone")
            raise ZeroDivisionError
    other = await connect(database.url)
    jobs = await other.queue("q").put_many(range(IDS_A_BLOCK))
    assert {job.id for job in jobs}.isdisjoint(taken)


# --- kinds ----------------------------------------------------------------------------------------


TYPES: dict[str, tuple[Any, list[Any]]] = {
    "Email": (Email, [Email("ada"), Email("😀", 7)]),
    "Invoice": (Invoice, [Invoice(customer="ada", amounts=[]), Invoice(customer="b", amounts=[1])]),
    "str": (str, ["", "text", '{"to": 1}', "null"]),
    "bytes": (bytes, [b"", EVERY_BYTE]),
    "datetime": (datetime, [PAST]),
    "dict[str, int]": (dict[str, int], [{}, {"a": 1}]),
    "int | None": (int | None, [None, 5]),
}


async def test_payloads_come_as_their_type(mq: Any) -> None:
    for kind, (type, payloads) in TYPES.items():
        q = mq.queue("q", type=type)
        put = [await q.put(payload, key=f"k{n}") for n, payload in enumerate(payloads)]
        assert [job.payload for job in put] == payloads
        assert (await q.read("k0")).payload == payloads[0]
        jobs = await q.try_poll_many(10)
        assert [job.payload for job in jobs] == payloads
        assert {job.kind for job in (*put, *jobs)} == {kind}
        await q.ack(jobs)
        assert [job.payload for job in await q.archive()] == payloads[::-1]


async def test_two_types_share_a_queue_and_not_their_jobs(mq: Any) -> None:
    emails, texts, every = mq.queue("q", type=Email), mq.queue("q", type=Sms), mq.queue("q")
    await emails.put(Email("ada"), key="k")
    await texts.put(Sms("123"), key="k")
    await texts.put(Sms("456"))
    assert [(await q.counts())["pending"] for q in (emails, texts, every)] == [1, 2, 3]
    assert [(await q.read("k")).payload for q in (emails, texts)] == [Email("ada"), Sms("123")]
    job = await emails.try_poll()
    assert (job.payload, job.kind) == (Email("ada"), "Email")
    assert await emails.try_poll() is None
    await job.ack()
    assert not await emails.contains("k")
    assert await texts.contains("k")
    assert await every.contains("k")
    assert await claimed(texts) == [Sms("123"), Sms("456")]
    assert [info.kinds for info in await mq.queues()] == [("Email", "Sms")]


async def test_a_handle_without_a_type_sees_every_kind(mq: Any) -> None:
    await mq.queue("q", type=Email).put(Email("ada"), at=PAST)
    await mq.queue("q", kind="other").put("x", at=PAST + timedelta(seconds=1))
    await mq.queue("q").put(1)
    jobs = await mq.queue("q").try_poll_many(10)
    assert [(job.kind, job.payload) for job in jobs] == [
        ("Email", {"to": "ada", "copies": 1}), ("other", "x"), ("", 1),
    ]  # fmt: skip


async def test_a_handle_with_a_type_sees_its_own_and_what_has_none(mq: Any) -> None:
    await mq.queue("q").put({"to": "untyped"}, at=PAST, key="k")
    await mq.queue("q", type=Sms).put(Sms("123"), at=PAST)
    emails = mq.queue("q", type=Email)
    await emails.put(Email("own"))
    assert (await emails.read("k")).payload == Email("untyped")
    jobs = await emails.try_poll_many(10)
    assert [(job.kind, job.payload) for job in jobs] == [
        ("", Email("untyped")), ("Email", Email("own")),
    ]  # fmt: skip
    assert await emails.counts() == {
        "pending": 0, "processing": 2, "retryable": 0, "completed": 0, "failed": 0,
    }  # fmt: skip
    assert (await mq.queue("q").counts())["pending"] == 1


async def test_a_kind_may_be_named_apart_from_its_type(mq: Any) -> None:
    await mq.queue("q", type=Email, kind="mail.v2").put(Email("ada"))
    assert await mq.queue("q", type=Email).try_poll() is None
    assert (await mq.queue("q", kind="mail.v2").try_poll()).kind == "mail.v2"


async def test_what_does_not_parse_has_failed_and_blocks_nobody(
    mq: Any, caplog: pytest.LogCaptureFixture
) -> None:
    emails = mq.queue("q", type=Email)
    wrong: list[Any] = [{"to": 7}, "no json", b"\xff", {"copies": 1}, [1]]
    raw = mq.queue("q", kind="Email")
    bad = [await raw.put(payload, at=PAST, key=f"k{n}") for n, payload in enumerate(wrong)]
    await raw.put({"to": "ada"}, at=PAST)
    await emails.put(Email("bob"))
    assert await claimed(emails) == [Email("ada"), Email("bob")]
    failed = await emails.failed()
    assert sorted(job.id for job in failed) == sorted(job.id for job in bad)
    by_id = {job.id: job for job in failed}
    assert [by_id[job.id].payload for job in bad] == wrong  # as plain values, to look at
    for job in failed:
        assert job.error is not None
        assert job.error.startswith("the payload does not parse as Email: ")
        assert (job.state, job.attempts) == (State.FAILED, 0)
        assert job.finished_at is not None
        assert not await emails.contains(job.key)
    assert "Expected `str`, got `int`" in by_id[bad[0].id].error
    warned = [record.getMessage() for record in caplog.records if record.name == "rowmq"]
    assert sum(message.startswith("job ") for message in warned) == len(wrong)
    assert await emails.try_poll() is None


async def test_what_does_not_parse_is_passed_over_one_by_one(mq: Any) -> None:
    raw, emails = mq.queue("q", kind="Email"), mq.queue("q", type=Email)
    await raw.put_many(["bad"] * 3, at=PAST)
    await raw.put("bad", ordering_key="line", at=PAST)
    await raw.put({"to": "next in line"}, ordering_key="line", at=PAST + timedelta(seconds=1))
    job = await emails.poll(timeout=10)
    assert job.payload == Email("next in line")
    assert (await emails.counts())["failed"] == 4
    await raw.put("bad")
    assert await emails.try_poll() is None
    await raw.put("bad")
    async with emails.hold() as held:
        assert held is None
    assert (await emails.counts())["failed"] == 6


async def test_what_did_not_parse_can_be_tried_again_as_another_type(mq: Any) -> None:
    await mq.queue("q", kind="Email").put({"number": "123"})
    emails = mq.queue("q", type=Email)
    assert await emails.try_poll() is None
    (failed,) = await emails.failed()
    assert await emails.retry([failed.id]) == 1
    job = await mq.queue("q", type=Sms, kind="Email").try_poll()
    assert (job.id, job.payload, job.attempt) == (failed.id, Sms("123"), 1)


class Picky(pydantic.BaseModel):
    value: int

    @pydantic.field_validator("value")
    @classmethod
    def explode(cls, value: int) -> int:
        if value == 13:
            raise RuntimeError("bad luck")
        return value


async def test_a_type_whose_own_code_raises_blocks_nobody(mq: Any) -> None:
    await mq.queue("q", kind="Picky").put_many([{"value": 13}, {"value": 1}])
    q = mq.queue("q", type=Picky)
    assert await claimed(q) == [Picky(value=1)]
    (failed,) = await q.failed()
    assert failed.error == "RuntimeError: bad luck"
    assert failed.payload == {"value": 13}
