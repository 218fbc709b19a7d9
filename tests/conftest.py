"""Fixtures for every test: a database, a flavour of client, and both together."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import hypothesis
import pytest

from tests import flavours
from tests.databases import NAMES, Database, Databases

Connect = Callable[..., Awaitable[Any]]

# PyMySQL reads all authorities that the machine trusts for each connection, which takes longer than
# most tests. They vouch for none of our servers.
os.environ["SSL_CERT_FILE"] = os.devnull

# A shell that starts the tests in the background has them ignore SIGINT, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    found = Databases(tmp_path_factory.mktemp("databases"))
    with found.stack:
        yield found


@pytest.fixture(params=NAMES)
def database(request: pytest.FixtureRequest, databases: Databases) -> Database:
    """Each database in turn, migrated and empty."""
    return databases.get(request.param)


@pytest.fixture
def empty_database(database: Database) -> Iterator[Database]:
    """Each database in turn, without RowMQ's tables."""
    created = database.create()
    yield created
    created.drop()


@pytest.fixture(params=flavours.FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """Sync and async in turn."""
    return str(request.param)


@pytest.fixture
async def connect(flavour: str) -> AsyncIterator[Connect]:
    """Connects clients of the flavour and closes them after the test."""
    clients = []

    async def open_client(url: str, **options: Any) -> Any:
        client = await flavours.connect(flavour, url, **options)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        await client.close()


@pytest.fixture
async def mq(connect: Connect, database: Database) -> Any:
    """A client of each flavour on each database."""
    return await connect(database.url)
