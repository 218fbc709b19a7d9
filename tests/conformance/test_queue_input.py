"""Bad input to queues: an error that says what to do, and nothing written; good input, however odd,
is stored as it is.
"""

import math
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import ScheduledMessage, State, errors
from tests.choices import async_only
from tests.conformance.callers.kinds import nothing_of_ours
from tests.conformance.test_bad_input import BAD_DURATIONS, BAD_NAMES
from tests.conformance.test_queue_put import FUTURE, PAST, Email, claimed, sizes
from tests.databases import Database

Call = Callable[[], Awaitable[Any]]

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
CONFIRM = "Yes, please, I know what I'm doing!"


async def refused(error: type[Exception], calls: dict[str, Call], match: str = "") -> None:
    """Each call raises the error, of RowMQ's own, and says why."""
    assert issubclass(error, errors.RowMQError)
    for name, call in calls.items():
        with pytest.raises(error) as caught:
            pytest.fail(f"{name} was taken and gave {await call()!r}")
        assert match in str(caught.value), name
        assert len(str(caught.value)) > 20, name


def puts(q: Any, **option: Any) -> dict[str, Call]:
    """Every way to add a job, with an option that all of them have."""
    return {
        f"put {option}": lambda: q.put(1, **option),
        f"put_many {option}": lambda: q.put_many([1, 2], **option),
    }


def offers(q: Any, **option: Any) -> dict[str, Call]:
    return {
        f"offer_or_update {option}": lambda: q.offer_or_update("k", 1, **option),
        f"offer_if_not_exists {option}": lambda: q.offer_if_not_exists("k", 1, **option),
        f"offer_batch {option}": lambda: q.offer_batch(
            [ScheduledMessage("good", 1), ScheduledMessage("k", 1, **option)]
        ),
    }


# --- names ----------------------------------------------------------------------------------------


async def test_bad_names_of_queues_and_kinds(mq: Any, database: Database) -> None:
    for name in (*BAD_NAMES.values(), None, ["q"]):
        with pytest.raises(errors.InvalidQueue, match="a queue m"):
            mq.queue(name)
        with pytest.raises(errors.InvalidQueue, match="a queue m"):
            mq.poller("good", name)
        if name is not None:  # which is no kind
            with pytest.raises(errors.InvalidQueue, match="a kind m"):
                mq.queue("q", kind=name)
        async with mq.transaction() as tx:
            with pytest.raises(errors.InvalidQueue):
                tx.queue(name)
    assert nothing_of_ours(database)


def with_key(q: Any, key: Any) -> dict[str, Call]:
    return {
        f"offer_or_update {key!r}": lambda: q.offer_or_update(key, 1),
        f"offer_if_not_exists {key!r}": lambda: q.offer_if_not_exists(key, 1),
        f"offer_batch {key!r}": lambda: q.offer_batch([ScheduledMessage(key, 1)]),
        f"read {key!r}": lambda: q.read(key),
        f"contains {key!r}": lambda: q.contains(key),
        f"drop {key!r}": lambda: q.drop(key),
    }


async def test_bad_keys(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for key in BAD_NAMES.values():
        calls = with_key(q, key) | puts(q, ordering_key=key)
        await refused(errors.InvalidKey, calls, match=" key m")
        with pytest.raises(errors.InvalidKey, match=" key m"):
            await q.put(1, key=key)
    with pytest.raises(errors.InvalidKey, match="message 1: a key must not be empty"):
        await q.offer_batch([ScheduledMessage("good", 1), ScheduledMessage("", 1)])
    assert nothing_of_ours(database)


async def test_a_key_is_needed_where_jobs_are_found_by_it(mq: Any, database: Database) -> None:
    await refused(errors.InvalidInput, with_key(mq.queue("q"), None), match="key")
    assert nothing_of_ours(database)


ODD = [
    "%", "_", "100%_a", "100%_A", "it's", 'it"s', "`; DROP TABLE rowmq_jobs; --", "a b", "a b ",
    " a b", "a  b", "A B", "😀", "back\\slash", "new\nline", "é", "e\u0301", "ß", "SS", "?", "$1",
    ":n", "%s", "{jobs}", "null", "\x01", "\u200b",
]  # fmt: skip


FEW = ["100%_a", "100%_A", "it's", 'it"s', "a b", "a b ", "😀", "back\\slash"]


async def test_odd_names_are_taken_as_they_are(mq: Any, database: Database) -> None:
    """Each is a queue, a kind, a key, a line and a header of its own."""
    for name in FEW:
        q = mq.queue(name, kind=name)
        put = await q.put(name, key=name, ordering_key=name, headers={name: name}, at=PAST)
        assert (put.key, put.kind, put.ordering_key) == (name, name, name)
    assert [info.name for info in await mq.queues()] == sorted(FEW, key=str.encode)
    for name in FEW:
        q = mq.queue(name)
        assert await q.contains(name)
        assert (await q.read(name)).headers == {name: name}
        assert await q.offer_if_not_exists(name, "another kind", FUTURE) is rowmq.Outcome.CREATED
        (job,) = await q.try_poll_many(10)
        assert (job.payload, job.key, job.kind) == (name, name, name)
        assert (job.ordering_key, job.headers) == (name, {name: name})
        await job.ack()
    assert sizes(database)[1] == len(FEW)


async def test_odd_keys_of_one_queue_are_apart(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    batch = [ScheduledMessage(name, name, PAST) for name in ODD]
    assert {outcome for _, outcome in await q.offer_batch(batch)} == {rowmq.Outcome.CREATED}
    assert sizes(database) == (len(ODD), len(ODD))
    assert await q.drop("100%_a")
    assert not await q.drop("100%_")
    assert await q.contains("100%_A")
    jobs = await q.try_poll_many(100)
    assert {job.key: job.payload for job in jobs} == {n: n for n in ODD if n != "100%_a"}


async def test_the_longest_names(mq: Any) -> None:
    q = mq.queue("q" * 196 + "😀", kind="k" * 200)
    await q.put(1, key="😀" * 63 + "abc", ordering_key="x" * 255)
    (job,) = await q.try_poll_many(10)
    assert (job.key, job.ordering_key) == ("😀" * 63 + "abc", "x" * 255)
    await job.reject(error="e" * 100_000)
    assert len((await q.failed())[0].error) > 1_000


# --- payloads and headers -------------------------------------------------------------------------

BAD_PAYLOADS: list[Any] = [
    object(), {"a": [object()]}, math.nan, [math.inf], {(1, 2): 3}, "\ud800", lambda: None, Email,
]  # fmt: skip


def with_payload(q: Any, payload: Any) -> dict[str, Call]:
    batch = [ScheduledMessage("good", 1), ScheduledMessage("k", payload)]
    return {
        "put": lambda: q.put(payload),
        "put with key": lambda: q.put(payload, key="k"),
        "put in line": lambda: q.put(payload, ordering_key="k"),
        "put_many": lambda: q.put_many([1, payload]),
        "offer_or_update": lambda: q.offer_or_update("k", payload),
        "offer_if_not_exists": lambda: q.offer_if_not_exists("k", payload),
        "offer_batch": lambda: q.offer_batch(batch),
    }


async def test_payloads_that_cannot_be_stored(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for payload in BAD_PAYLOADS:
        calls = with_payload(q, payload)
        await refused(errors.PayloadNotSerializable, calls, match="cannot be stored")
    with pytest.raises(errors.PayloadNotSerializable, match="payload 1: "):
        await q.put_many([1, object()])
    with pytest.raises(errors.PayloadNotSerializable, match="message 1: "):
        await q.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", object())])
    assert nothing_of_ours(database)


BAD_HEADERS: list[Any] = [
    [], 0, "", {"a": 1}, {1: "a"}, {"a": None}, ["a"], "a", {"a": "x\0"}, {"a": "\ud800"},
    {"a": "x" * 70_000},
]  # fmt: skip


async def test_bad_headers(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for headers in BAD_HEADERS:
        await refused(errors.InvalidHeaders, puts(q, headers=headers) | offers(q, headers=headers))
    assert nothing_of_ours(database)


async def test_payloads_over_the_limit(mq: Any, database: Database) -> None:
    q = mq.queue("q", type=Email)
    await q.configure(max_payload_bytes=20)
    large = Email("x" * 100)
    calls = with_payload(q, large)
    await refused(errors.PayloadTooLarge, calls, match="configure(max_payload_bytes=...)")
    assert sizes(database) == (0, 0)
    await mq.queue("another").put(large)
    with pytest.raises(errors.PayloadTooLarge, match="1,048,577 bytes"):
        await mq.queue("another").put(b"x" * (1024 * 1024 + 1))


async def test_things_that_are_no_batch(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for wrong in (None, 7, "text", b"bytes", bytearray(b"b"), memoryview(b"b"), {"a": 1}, object()):
        with pytest.raises(errors.InvalidInput, match="put_many takes a list"):
            await q.put_many(wrong)
    message = ScheduledMessage("k", 1)
    for thing in (None, 7, message, "text", {"k": 1}, [message, {"key": "k"}], [None], [("k", 1)]):
        with pytest.raises(errors.InvalidInput, match="ScheduledMessage"):
            await q.offer_batch(thing)
    assert nothing_of_ours(database)


# --- times, delays, priorities, switches ----------------------------------------------------------


async def test_times_that_name_no_moment(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await refused(
        errors.NaiveDatetime,
        puts(q, at=NAIVE) | offers(q, at=NAIVE) | {"archive": lambda: q.archive(since=NAIVE)},
        match="time zone",
    )
    no_times: list[Any] = ["tomorrow", 5, 1.5, date(2026, 1, 1), timedelta(1), True, []]
    for at in no_times:
        await refused(errors.InvalidOption, puts(q, at=at) | offers(q, at=at), match="datetime")
        with pytest.raises(errors.InvalidOption, match="datetime"):
            await q.failed(since=at)
    assert nothing_of_ours(database)


async def test_times_that_no_calendar_has(mq: Any, database: Database) -> None:
    """In UTC they are before year 1, or after year 9999: they could be stored and never read."""
    q = mq.queue("q")
    earliest = datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))
    latest = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
    for at in (earliest, latest):
        await refused(errors.InvalidInput, puts(q, at=at) | offers(q, at=at))
    assert nothing_of_ours(database)


async def test_the_first_and_the_last_time(mq: Any) -> None:
    q = mq.queue("q")
    first = datetime.min.replace(tzinfo=UTC)
    last = datetime.max.replace(tzinfo=UTC)
    await q.put("last", at=last, key="last")
    await q.put("epoch", at=datetime(1970, 1, 1, tzinfo=UTC))
    await q.offer_or_update("first", "first", first)
    assert (await q.read("last")).due_at == last
    jobs = await q.try_poll_many(10)
    assert [job.payload for job in jobs] == ["first", "epoch"]
    assert jobs[0].due_at == first
    await jobs[0].release()
    assert await claimed(q) == ["first"]


async def test_bad_delays(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for delay in BAD_DURATIONS:
        await refused(errors.InvalidOption, puts(q, delay=delay), match="delay")
    await refused(errors.InvalidOption, puts(q, delay=0, at=PAST), match="delay= or at=")
    assert nothing_of_ours(database)


async def test_bad_priorities(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for priority in (32_768, -32_768, 2**70, 1.0, "1", None, True, math.inf):
        await refused(
            errors.InvalidOption,
            puts(q, priority=priority) | offers(q, priority=priority),
            match="32,767",
        )
    for flag in (1, 0, "yes", None):
        message = ScheduledMessage("k", 1, can_update=flag)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidOption, match="can_update must be True or False"):
            await q.offer_batch([message])
    assert nothing_of_ours(database)


# --- handles, claims, settles ---------------------------------------------------------------------

BAD_HANDLES: list[dict[str, Any]] = [
    *({"lock_timeout": value} for value in (*BAD_DURATIONS, 0, 1e-9, None)),
    *({"poll_interval": value} for value in (*BAD_DURATIONS, 0, None)),
    *({"max_deliveries": value} for value in (0, -1, "1", 1.5, True, 2**31)),
    *({"retry": value} for value in (5, rowmq.Constant, "constant")),
    *({"type": value} for value in (5, "Email", object(), lambda: None)),
]


@async_only
async def test_bad_options_of_a_handle(mq: Any, database: Database) -> None:
    for options in BAD_HANDLES:
        with pytest.raises(errors.InvalidOption, match=next(iter(options))):
            mq.queue("q", **options)
    long = type("X" * 201, (), {})
    with pytest.raises(errors.InvalidOption, match="kind="):
        mq.queue("q", type=long)
    with pytest.raises(errors.InvalidInput, match="takes the queues to poll"):
        mq.poller()
    assert nothing_of_ours(database)


async def test_bad_arguments_of_claims(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put(1)
    before = sizes(database)
    for limit in ("1", 1.0, None, True, [1]):
        with pytest.raises(errors.InvalidOption, match="whole number"):
            await q.try_poll_many(limit)
    for limit in (0, -1, -(2**70)):
        assert await q.try_poll_many(limit) == []
    for duration in BAD_DURATIONS:
        for claim in (q.try_poll, partial(q.try_poll_many, 1), partial(q.poll, 0)):
            with pytest.raises(errors.InvalidOption, match="lock_timeout"):
                await claim(lock_timeout=duration)
        with pytest.raises(errors.InvalidOption, match="timeout"):
            await q.poll(timeout=duration)
    with pytest.raises(errors.InvalidOption, match="at least a millisecond"):
        await q.try_poll(lock_timeout=0)
    wrong: list[dict[str, Any]] = [
        {"order": "newest"}, {"order": None}, {"max_failures": 0}, {"max_failures": 1.5},
        {"lock_timeout": -1},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(errors.InvalidOption, match=next(iter(options))):
            async with q.hold(**options):
                pass
    assert sizes(database) == before
    assert [job.payload for job in await q.try_poll_many(2**70)] == [1]


async def test_bad_arguments_of_settles(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2])
    first, second = await q.try_poll_many(2)
    before = database.execute("SELECT * FROM rowmq_locks")
    for duration in BAD_DURATIONS:
        with pytest.raises(errors.InvalidOption, match="delay"):
            await first.nack(delay=duration)
        with pytest.raises(errors.InvalidOption, match="seconds"):
            await first.extend(duration)
    for nothing in (0, 0.0, timedelta(0), None):
        with pytest.raises(errors.InvalidOption, match="seconds"):
            await first.extend(nothing)
    for error in (7, b"bytes", ["no"], ValueError):
        for settle in (first.nack, first.reject):
            with pytest.raises(errors.InvalidOption, match="error must be"):
                await settle(error=error)
    for connection in (object(), 0, "", database.url):
        with pytest.raises(errors.UnsupportedConnection):
            await first.ack(connection=connection)
    things: list[Any] = [first, None, 7, "text", [first, None], [first, 1], [[first]], {"a": 1}]
    for thing in things:
        with pytest.raises(errors.InvalidInput, match="ack takes"):
            await q.ack(thing)
    assert database.execute("SELECT * FROM rowmq_locks") == before
    assert not first.settled
    await q.ack([])
    await q.ack([first, second, first])  # each once
    assert (await q.counts())["completed"] == 2


def with_connection(q: Any, connection: Any) -> dict[str, Call]:
    batch = [ScheduledMessage("k", 1)]
    return {
        "put": lambda: q.put(1, connection=connection),
        "put with key": lambda: q.put(1, key="k", connection=connection),
        "put_many": lambda: q.put_many([1], connection=connection),
        "offer_or_update": lambda: q.offer_or_update("k", 1, connection=connection),
        "offer_if_not_exists": lambda: q.offer_if_not_exists("k", 1, connection=connection),
        "offer_batch": lambda: q.offer_batch(batch, connection=connection),
        "drop": lambda: q.drop("live", connection=connection),
        "drop_all": lambda: q.drop_all(CONFIRM, connection=connection),
        "retry": lambda: q.retry([1], connection=connection),
        "prune": lambda: q.prune(connection=connection),
        "configure": lambda: q.configure(retention=5, connection=connection),
        "pause": lambda: q.pause(connection=connection),
        "resume": lambda: q.resume(connection=connection),
    }


async def test_what_is_no_connection(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    await q.put("live", key="live")
    before = {t: database.execute(f"SELECT * FROM rowmq_{t}") for t in ("jobs", "queues", "ready")}
    no_connections: list[Any] = [object(), database.url, 0, "", [], False]
    for connection in no_connections:
        await refused(errors.UnsupportedConnection, with_connection(q, connection))
    assert {t: database.execute(f"SELECT * FROM rowmq_{t}") for t in before} == before


# --- settings and the archive ---------------------------------------------------------------------

BAD_SETTINGS: list[dict[str, Any]] = [
    *({"max_payload_bytes": value} for value in (0, -1, 2**40, "5", 1.5, True)),
    *({"max_in_flight": value} for value in (0, -1, 10_001, 1.5, "1", True, math.nan)),
    *({"rate": value} for value in (0, -1, 10_001, 0.5, "1", True)),
    *({"rate_period": value} for value in (*BAD_DURATIONS, 0)),
    *({"retention": value} for value in (0, -1, "1", True, math.nan, 1e300)),
    *({"failed_retention": value} for value in (0, -1, "1", True, math.nan, 1e300)),
    *({"keep_completed": value} for value in (0, 1, "yes")),
    *({"keep_failed": value} for value in (0, 1, "yes")),
    *({"durability": value} for value in ("", "off", "FULL", b"full", 0, True)),
]


async def test_bad_settings(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for settings in BAD_SETTINGS:
        name = next(iter(settings))
        with pytest.raises(errors.InvalidOption, match=rf"^{name}"):
            await q.configure(**settings)
    assert nothing_of_ours(database)


async def test_bad_arguments_of_the_archive(mq: Any, database: Database) -> None:
    q = mq.queue("q")
    for limit in (0, -1, "1", 1.5, None, True, 2**31):
        for call in (q.archive, q.failed):
            with pytest.raises(errors.InvalidOption, match="limit"):
                await call(limit=limit)
    no_states: list[Any] = ["pending", State.PENDING, State.PROCESSING, "done", 7, []]
    for state in no_states:
        for call in (q.archive, q.prune):
            with pytest.raises(errors.InvalidOption, match=r"State\.COMPLETED or State\.FAILED"):
                await call(state=state)
    for duration in BAD_DURATIONS:
        with pytest.raises(errors.InvalidOption, match="older_than"):
            await q.prune(older_than=duration)
    wrong: list[Any] = [7, "7", b"7", None, object(), [None], ["7"], [1.0], [True], [-1], [2**62]]
    for ids in (*wrong, [[]], [{}]):
        with pytest.raises(errors.InvalidOption, match=r"\bids?\b"):
            await q.retry(ids)
    no_ids: list[Any] = [None, "7", 1.0, -1, 2**62, [], True]
    for id in no_ids:
        with pytest.raises(errors.InvalidOption, match="job id"):
            await q.errors(id)
    assert nothing_of_ours(database)


async def test_a_queue_that_is_not_there_is_empty(mq: Any, database: Database) -> None:
    q = mq.queue("never")
    assert (await q.try_poll(), await q.read("k"), await q.poll(timeout=0)) == (None, None, None)
    assert (await q.try_poll_many(5), await q.failed(), await q.archive()) == ([], [], [])
    assert (await q.contains("k"), await q.drop("k")) == (False, False)
    assert (await q.drop_all(CONFIRM), await q.retry([1]), await q.prune()) == (0, 0, 0)
    assert (await q.errors(5), set((await q.counts()).values())) == ([], {0})
    async with q.hold() as job:
        assert job is None
    assert await mq.queues() == []
    assert nothing_of_ours(database)


async def test_queues_of_a_closed_client(mq: Any) -> None:
    q = mq.queue("q")
    await q.put_many([1, 2])
    job = await q.try_poll()
    await mq.close()
    calls: dict[str, Call] = {
        "put": lambda: q.put(1),
        "put with key": lambda: q.put(1, key="k"),
        "put_many": lambda: q.put_many([1]),
        "offer_or_update": lambda: q.offer_or_update("k", 1),
        "offer_batch": lambda: q.offer_batch([ScheduledMessage("k", 1)]),
        "try_poll": q.try_poll,
        "poll": lambda: q.poll(timeout=5),
        "ack": job.ack,
        "read": lambda: q.read("k"),
        "contains": lambda: q.contains("k"),
        "drop": lambda: q.drop("k"),
        "drop_all": lambda: q.drop_all(CONFIRM),
        "counts": q.counts,
        "archive": q.archive,
        "configure": lambda: q.configure(rate=5),
        "queues": mq.queues,
    }
    await refused(errors.Closed, calls)
    with pytest.raises(errors.Closed):
        async with q.hold():
            pass


async def test_what_a_newcomer_gets_wrong_is_explained(mq: Any) -> None:
    q = mq.queue("q")
    for wrapped in (rowmq.Message(payload=1), rowmq.ScheduledMessage("k", 1)):
        with pytest.raises(errors.InvalidInput, match="the payload itself"):
            await q.put(wrapped)
        with pytest.raises(errors.InvalidInput, match="the payload itself"):
            await q.put_many([wrapped])
    with pytest.raises(errors.InvalidOption, match="use delay="):
        await q.offer_or_update("k", 1, 30)
    with pytest.raises(errors.InvalidInput, match="by itself"):
        mq.poller(["a", "b"])
    with pytest.raises(errors.InvalidInput, match="each queue once"):
        mq.poller("a", "a")
    with pytest.raises(errors.InvalidOption, match="the class itself"):
        mq.queue("q", type="Email")
    with pytest.raises(errors.InvalidKey, match="an ordering key"):
        await q.put(1, ordering_key=7)


async def test_an_offer_may_be_for_some_time_from_now(mq: Any) -> None:
    q = mq.queue("q")
    assert await q.offer_or_update("k", 1, delay=3600) is rowmq.Outcome.CREATED
    assert await q.offer_or_update("k", 2, delay=3600) is rowmq.Outcome.UPDATED
    assert await q.try_poll() is None
    assert await q.offer_or_update("k", 3, delay=0) is rowmq.Outcome.UPDATED
    assert (await q.try_poll()).payload == 3
    with pytest.raises(errors.InvalidOption, match="not both"):
        await q.offer_if_not_exists("k", 1, datetime.now(UTC), delay=1)
