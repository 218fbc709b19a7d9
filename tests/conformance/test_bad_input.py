"""Bad input: a distinct error that says what to do, and nothing written."""

import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rowmq import Message, errors
from tests import flavours
from tests.choices import on_servers
from tests.databases import Database

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
    for table in ("partitions", "messages", "topics"):
        assert database.execute(f"SELECT COUNT(*) FROM rowmq_{table}") == [(0,)]


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_bad_names(mq: Any, database: Database, name: Any) -> None:
    calls: dict[type[Exception], list[Callable[[], Any]]] = {
        errors.InvalidTopic: [
            lambda: mq.publish(name, 1),
            lambda: mq.publish_many(name, [Message(payload=1)]),
            lambda: mq.publish_many(name, []),
            lambda: mq.read(name),
            lambda: mq.configure_topic(name, max_payload_bytes=5),
        ],
        errors.InvalidKey: [
            lambda: mq.publish("t", 1, key=name),
            lambda: mq.publish_many("t", [Message(payload=0), Message(payload=1, key=name)]),
            lambda: mq.read("t", key=name),
        ],
        errors.InvalidId: [
            lambda: mq.publish("t", 1, id=name),
            lambda: mq.publish_many("t", [Message(payload=0), Message(payload=1, id=name)]),
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
            await flavours.connect(flavour, url, connect_timeout=2)


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
