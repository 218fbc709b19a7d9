"""Bad input: a distinct error that says what to do, and nothing written."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import rowmq
from rowmq import Message, errors
from tests import flavours
from tests.choices import on_servers
from tests.consuming import acked, publish, stored, subscribe, take
from tests.databases import Database
from tests.unit.drivers.test_pool import exit_code, fork

BAD_NAMES = {
    "empty": "",
    "NUL": "a\0b",
    "surrogate": "a\ud800",
    "long": "x" * 256,
    "long in bytes": "😀" * 64,
    "bytes": b"name",
    "number": 7,
}


async def nothing_written(mq: Any, database: Database) -> None:
    assert await mq.topics() == []
    for table in ("partitions", "messages", "topics", "groups", "subscribers", "offsets"):
        assert database.execute(f"SELECT COUNT(*) FROM rowmq_{table}") == [(0,)]


async def subscribed(mq: Any, *args: Any, **options: Any) -> None:
    """Subscribe, and leave at once."""
    async with mq.subscribe(*args, **options):
        pass


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_bad_names(mq: Any, database: Database, name: Any) -> None:
    calls: dict[type[Exception], list[Callable[[], Any]]] = {
        errors.InvalidTopic: [
            lambda: mq.publish(name, 1),
            lambda: mq.publish_many(name, [Message(payload=1)]),
            lambda: mq.publish_many(name, []),
            lambda: mq.read(name),
            lambda: mq.configure_topic(name, max_payload_bytes=5),
            lambda: subscribed(mq, name, group="g"),
            lambda: mq.create_group(name, "g"),
            lambda: mq.drop_group(name, "g"),
            lambda: mq.groups(name),
            lambda: mq.lag(name, "g"),
            lambda: mq.seek(name, "g", to="earliest"),
            lambda: mq.dead_letters(name),
            lambda: mq.redrive(name),
            lambda: mq.redrive(name, group="g"),
            lambda: mq.purge_dead_letters(name),
            lambda: mq.gc(name),
        ],
        errors.InvalidGroup: [
            lambda: subscribed(mq, "t", group=name),
            lambda: subscribed(mq, "t", group="g", name=name),
            lambda: mq.create_group("t", name),
            lambda: mq.drop_group("t", name),
            lambda: mq.lag("t", name),
            lambda: mq.seek("t", name, to="earliest"),
            lambda: mq.dead_letters("t", group=name),
            lambda: mq.redrive("t", group=name),
            lambda: mq.purge_dead_letters("t", group=name),
        ],
        errors.InvalidKey: [
            lambda: mq.seek("t", "g", to="earliest", key=name),
            lambda: mq.seek("t", "g", to={name: 1}),
            lambda: mq.publish("t", 1, key=name),
            lambda: mq.publish_many("t", [Message(payload=0), Message(payload=1, key=name)]),
            lambda: mq.read("t", key=name),
        ],
        errors.InvalidId: [
            lambda: mq.publish("t", 1, id=name),
            lambda: mq.publish_many("t", [Message(payload=0), Message(payload=1, id=name)]),
            lambda: mq.redrive("t", group="g", ids=["good", name]),
            lambda: mq.redrive("t", ids=["good", name]),
            lambda: mq.purge_dead_letters("t", ids=[name]),
        ],
    }
    for error, ways in calls.items():
        for way in ways:
            with pytest.raises(error):
                await way()
    await nothing_written(mq, database)


async def test_no_topic(mq: Any, database: Database) -> None:
    with pytest.raises(errors.InvalidTopic):
        await mq.publish(None, 1)
    await nothing_written(mq, database)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        0,
        {"a": 1},
        {1: "a"},
        {"a": None},
        ["a"],
        "a",
        {"a": "x\0"},
        {"a": "\ud800"},
        {"a": "x" * 70_000},
    ],
    ids=str,
)
async def test_bad_headers(mq: Any, database: Database, headers: Any) -> None:
    with pytest.raises(errors.InvalidHeaders):
        await mq.publish("t", 1, headers=headers)
    await nothing_written(mq, database)


@pytest.mark.parametrize(
    "payload",
    [object(), {"a": object()}, float("nan"), [float("inf")], {(1, 2): 3}, "\ud800", lambda: None],
    ids=["object", "nested", "nan", "inf", "tuple key", "surrogate", "function"],
)
async def test_unserializable_payloads(mq: Any, database: Database, payload: Any) -> None:
    with pytest.raises(errors.PayloadNotSerializable, match="cannot be stored"):
        await mq.publish("t", payload)
    with pytest.raises(errors.PayloadNotSerializable, match="message 1:"):
        await mq.publish_many("t", [Message(payload=1), Message(payload=payload)])
    await nothing_written(mq, database)


async def test_things_that_are_no_messages(mq: Any, database: Database) -> None:
    with pytest.raises(errors.InvalidInput, match="publish_many"):
        await mq.publish("t", Message(payload=1, key="k"))
    for wrong in (Message(payload=1), {"payload": 1}, "text", None, 7):
        with pytest.raises(errors.InvalidInput, match="takes a list"):
            await mq.publish_many("t", wrong)
    with pytest.raises(errors.InvalidInput, match=r"item 1 is a dict.*rowmq\.Message"):
        await mq.publish_many("t", [Message(payload=1), {"payload": 2}])
    await nothing_written(mq, database)


async def test_naive_times(mq: Any) -> None:
    with pytest.raises(errors.NaiveDatetime, match="time zone"):
        await mq.read("t", since=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(errors.InvalidOption):
        await mq.read("t", since="yesterday")


@pytest.mark.parametrize("option", ["from_offset", "limit"])
@pytest.mark.parametrize("value", [0, -1, "1", 1.5, None, True, 2**63, 2**70])
async def test_bad_ranges(mq: Any, option: str, value: Any) -> None:
    with pytest.raises(errors.InvalidOption, match=option):
        await mq.read("t", **{option: value})


@pytest.mark.parametrize("value", [0, -1, 2**40, "5", 1.5])
async def test_bad_limits(mq: Any, database: Database, value: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="max_payload_bytes"):
        await mq.configure_topic("t", max_payload_bytes=value)
    await nothing_written(mq, database)


# --- consumer groups ----------------------------------------------------------------------------

NUMBERS = ("batch_size", "max_attempts", "max_in_flight", "max_bytes")
POSITIVE = ("visibility", "lease_duration", "heartbeat_interval", "poll_interval")
DURATIONS = (*POSITIVE, "discovery_interval", "flush_interval", "idle_timeout")
BAD_NUMBERS: tuple[Any, ...] = (0, -1, "1", 1.5, True, 2**31, [])
BAD_DURATIONS: tuple[Any, ...] = (
    -1, -0.001, timedelta(seconds=-1), "1", True, [], float("nan"), float("inf"), 1e300,
    timedelta.max,
)  # fmt: skip

BAD_OPTIONS: list[dict[str, Any]] = [
    *({name: value} for name in NUMBERS for value in BAD_NUMBERS),
    *({name: value} for name in DURATIONS for value in BAD_DURATIONS),
    *({name: value} for name in (*POSITIVE, "discovery_interval") for value in (0, 1e-9)),
    {"visibility": None},
    {"lease_duration": None},
    {"batch_size": None},
    {"heartbeat_interval": 30},
    {"heartbeat_interval": 31},
    {"lease_duration": 5, "heartbeat_interval": timedelta(seconds=5)},
    {"start": "first"},
    {"start": "Earliest"},
    {"start": None},
    {"start": 1},
    {"start": []},
    {"backoff": 5},
    {"backoff": rowmq.Constant},
    {"on_lost": "call me"},
    {"dlq_suffix": ""},
    {"dlq_suffix": None},
    {"dlq_suffix": 7},
    {"dlq_suffix": b"_dlq"},
]


async def test_bad_options_of_subscribe(mq: Any, database: Database) -> None:
    for options in BAD_OPTIONS:
        with pytest.raises(errors.InvalidOption, match=next(iter(options))) as caught:
            await subscribed(mq, "t", group="g", **options)
        assert caught.value.args, options
    for suffix in ("x" * 200, "a\0b", "\ud800"):
        with pytest.raises((errors.InvalidTopic, errors.InvalidOption)):
            await subscribed(mq, "t", group="g", dlq_suffix=suffix)
    for options in ({}, {"group": None}):
        with pytest.raises((TypeError, errors.InvalidGroup)):
            await subscribed(mq, "t", **options)
    await nothing_written(mq, database)


async def test_bad_arguments_of_administration(mq: Any, database: Database) -> None:
    for start in ("first", "", None, 1, ["earliest"]):
        with pytest.raises(errors.InvalidOption, match="'earliest' or 'latest'"):
            await mq.create_group("t", "g", start=start)
    for limit in (0, -1, "1", 1.5, None, True, 2**63):
        with pytest.raises(errors.InvalidOption, match="limit"):
            await mq.dead_letters("t", limit=limit)
    for ids in ("a single one", b"bytes", 7, object()):
        for call in (mq.redrive, mq.purge_dead_letters):
            with pytest.raises(errors.InvalidInput, match=r"\bids?\b"):
                await call("t", group="g", ids=ids)
    await nothing_written(mq, database)


BAD_TARGETS: list[Any] = [
    "first", "", None, 0, 1, 1.5, [], ["earliest"], b"earliest", date(2026, 1, 1), object(),
    {"k": 0}, {"k": -1}, {"k": "1"}, {"k": 1.0}, {"k": None}, {"k": True}, {"k": 2**63},
]  # fmt: skip


async def test_bad_targets_of_seek(mq: Any) -> None:
    await publish(mq, 3)
    await mq.create_group("t", "g")
    for to in BAD_TARGETS:
        with pytest.raises(errors.InvalidOption):
            await mq.seek("t", "g", to=to)
    with pytest.raises(errors.NaiveDatetime, match="time zone"):
        await mq.seek("t", "g", to=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(errors.InvalidOption, match="not both"):
        await mq.seek("t", "g", to={"k": 1}, key="k")
    with pytest.raises(TypeError):
        await mq.seek("t", "g")
    assert await acked(mq) == 0


@pytest.mark.parametrize("group", ["never", "dropped"])
async def test_a_group_that_is_not_there(mq: Any, database: Database, group: str) -> None:
    await publish(mq, 1)
    await mq.create_group("t", "dropped")
    await mq.drop_group("t", "dropped")
    before = stored(database)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: mq.lag("t", group),
        lambda: mq.seek("t", group, to="latest"),
        lambda: mq.seek("t", group, to={"k": 1}),
        lambda: mq.redrive("t", group=group),
    ]
    for call in calls:
        with pytest.raises(errors.UnknownGroup, match="create_group"):
            await call()
    assert await mq.dead_letters("t", group=group) == []
    assert await mq.purge_dead_letters("t", group=group) == 0
    assert await mq.drop_group("t", group) is False
    assert stored(database) == before


@pytest.fixture
async def sub(mq: Any) -> AsyncIterator[Any]:
    """A subscriber of two messages."""
    await publish(mq, 2)
    async with subscribe(mq) as found:
        yield found


async def test_bad_arguments_of_poll(mq: Any, sub: Any) -> None:
    for number in BAD_NUMBERS:
        with pytest.raises(errors.InvalidOption, match="max"):
            await sub.poll(max=number)
    for duration in BAD_DURATIONS:
        with pytest.raises(errors.InvalidOption, match="timeout"):
            await sub.poll(timeout=duration)
    assert len(await take(sub, 2)) == 2
    assert await acked(mq) == 0


async def test_bad_arguments_of_a_settle(mq: Any, database: Database, sub: Any) -> None:
    first, _ = await take(sub, 2)
    before = stored(database)
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
    assert stored(database) == before
    assert not first.settled
    await first.ack()
    assert await acked(mq) == 1


async def test_acking_what_is_no_delivery(mq: Any, database: Database, sub: Any) -> None:
    first, second = await take(sub, 2)
    before = stored(database)
    wrong: list[Any] = [first, first.message, None, 7, "text", [first, None], [first.message]]
    wrong += [[first, 1], [[first]], {"a": 1}, [sub]]
    for thing in wrong:
        with pytest.raises(errors.InvalidInput, match="ack takes"):
            await sub.ack(thing)
    assert stored(database) == before
    await sub.ack([])
    await sub.ack([first, second, first])  # each once
    assert await acked(mq) == 2


async def test_acking_the_delivery_of_another_subscriber(mq: Any, sub: Any) -> None:
    async with subscribe(mq, group="other") as other:
        first, _ = await take(sub, 2)
        with pytest.raises((errors.InvalidInput, errors.StaleLease)):
            await other.ack([first])
        assert (await acked(mq), await acked(mq, "other")) == (0, 0)
        await first.ack()
        assert (await acked(mq), await acked(mq, "other")) == (1, 0)


async def test_a_closed_subscriber(mq: Any, sub: Any) -> None:
    first, second = await take(sub, 2)
    await sub.close()
    assert sub.closed
    with pytest.raises(errors.Closed, match="subscribe again"):
        await sub.poll()
    with pytest.raises(errors.StaleLease):
        await sub.ack([first])
    with pytest.raises(errors.StaleLease):
        await second.nack()
    assert [d async for d in sub] == []
    assert sub.owned == []
    await sub.close()
    assert await acked(mq) == 0


async def test_a_subscriber_of_a_closed_client(mq: Any, sub: Any) -> None:
    first, _ = await take(sub, 2)
    await mq.close()
    assert sub.closed
    with pytest.raises(errors.Closed):
        await sub.poll()
    with pytest.raises((errors.Closed, errors.StaleLease)):
        await first.ack()
    with pytest.raises(errors.Closed):
        await subscribed(mq, "t", group="g")
    for call in (mq.groups("t"), mq.lag("t", "g"), mq.gc("t"), mq.redrive("t")):
        with pytest.raises(errors.Closed):
            await call


def test_a_subscriber_after_a_fork(database: Database) -> None:
    """It is the parent's, and stays that: the child can make one of its own."""
    with rowmq.connect(database.url) as mq:
        mq.publish_many("t", [Message(payload=n, key="k") for n in (1, 2, 3)])
        with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
            first, second, third = sub.poll(max=3)

            def child() -> None:
                with pytest.raises(errors.Closed, match="parent process"):
                    sub.poll()
                with pytest.raises((errors.Closed, errors.StaleLease)):
                    first.ack()
                with pytest.raises((errors.Closed, errors.StaleLease)):
                    second.reject()
                with pytest.raises((errors.Closed, errors.StaleLease)):
                    sub.ack([third])
                assert sub.closed
                assert list(sub) == []
                sub.close()
                assert [row.in_flight for row in mq.lag("t", "g")] == [3]
                with mq.subscribe("t", group="of the child", name="child") as own:
                    deliveries = own.poll(max=3)
                    assert [d.message.payload for d in deliveries] == [1, 2, 3]
                    own.ack(deliveries)

            assert exit_code(fork(child)) == 0
            assert [row.in_flight for row in mq.lag("t", "g")] == [3]
            assert [row.lag for row in mq.lag("t", "of the child")] == [0]
            sub.ack([first, second, third])
        assert [row.lag for row in mq.lag("t", "g")] == [0]
        assert mq.dead_letters("t") == []


# --- databases that cannot be had ---------------------------------------------------------------


@on_servers
async def test_a_wrong_password(database: Database, flavour: str) -> None:
    parts = urlsplit(database.url)
    wrong = f"{parts.scheme}://{parts.username}:s3cr3t-but-wrong@{parts.hostname}:{parts.port}"
    with pytest.raises(errors.AuthenticationFailed, match="user or password") as caught:
        await flavours.connect(flavour, wrong + parts.path)
    assert "s3cr3t" not in str(caught.value)


async def test_a_missing_database(database: Database, flavour: str, tmp_path: Path) -> None:
    url = urlsplit(database.url)._replace(path="/no_such_database_here").geturl()
    if database.name == "sqlite":
        url = f"sqlite:///{tmp_path}/no/such/directory/queue.db"
    with pytest.raises(errors.DatabaseUnreachable, match=r"create it|directory"):
        await flavours.connect(flavour, url)


@on_servers
async def test_an_unreachable_server(database: Database, flavour: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    parts = urlsplit(database.url)
    url = f"{parts.scheme}://rowmq:s3cr3t@127.0.0.1:{port}{parts.path}"
    with pytest.raises(errors.DatabaseUnreachable, match="is it running") as caught:
        await flavours.connect(flavour, url)
    assert "s3cr3t" not in str(caught.value)


@on_servers
async def test_a_server_that_never_answers(database: Database, flavour: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        parts = urlsplit(database.url)
        url = f"{parts.scheme}://rowmq:x@127.0.0.1:{silent.getsockname()[1]}{parts.path}"
        with pytest.raises(errors.DatabaseUnreachable):
            await flavours.connect(flavour, url, connect_timeout=1)  # psycopg takes two


async def test_a_file_that_is_no_database(flavour: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("This is not the database you are looking for. " * 100)
    with pytest.raises(errors.NotADatabase, match="not an SQLite database"):
        await flavours.connect(flavour, f"sqlite:///{path}")
    assert path.read_text().startswith("This is not")


async def test_a_directory_is_no_database(flavour: str, tmp_path: Path) -> None:
    with pytest.raises(errors.DatabaseUnreachable, match="cannot be opened"):
        await flavours.connect(flavour, f"sqlite:///{tmp_path}")


@pytest.mark.parametrize("url", ["", "queue.db", "oracle://x/y", "http://x", "sqlite"])
async def test_unknown_schemes(flavour: str, url: str) -> None:
    with pytest.raises(errors.UnknownScheme, match=r"sqlite:///queue\.db"):
        await flavours.connect(flavour, url)


async def test_a_closed_client(mq: Any) -> None:
    await mq.publish("t", 1)
    await mq.close()
    for call in (mq.publish("t", 1), mq.publish_many("t", [Message(payload=1)]), mq.topics()):
        with pytest.raises(errors.Closed):
            await call
    await mq.close()
