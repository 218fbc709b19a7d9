"""Fixtures for every test: a database, a flavour of client, and both together."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from tests import flavours
from tests.databases import NAMES, Database, Databases

Connect = Callable[..., Awaitable[Any]]

# PyMySQL reads all authorities that the machine trusts for each connection, which takes longer than
# most tests. They vouch for none of our servers.
os.environ["SSL_CERT_FILE"] = os.devnull

# A JVM that ends soon is not worth a second compilation, nor several collectors.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Tests start hundreds of programs, which would all have to compile what they import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A commit of SQLite's waits for the disk, which is of no use to who throws the file away.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own there
MEMORY_BYTES_MIN = 4 * 2**30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shell that starts the tests in the background has them ignore SIGINT, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What Hypothesis remembers from run to run is not for the tree.
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "rowmq-hypothesis")

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of Spark come first: they are then all given to one of several processes, and only the
    last tests of a process are ever taken over by others. So there is one JVM, and it starts early.
    """
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    """Whoever looks for garbage need not look through ten thousand tests each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    found = Databases(tmp_path_factory.mktemp("databases"))
    with found.stack:
        yield found


@pytest.fixture(params=NAMES)
def database(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    """Each database in turn, migrated and empty."""
    found = databases.get(request.param)
    yield found
    databases.give_back(found)


@pytest.fixture
def empty_database(database: Database, databases: Databases) -> Iterator[Database]:
    """Each database in turn, without RowMQ's tables."""
    created = database.create()
    yield created
    created.drop()
    databases.give_back(created)


@pytest.fixture(params=flavours.FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """Sync and async in turn."""
    return str(request.param)


@pytest.fixture
async def connect(flavour: str, request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Connects clients of the flavour and closes them after the test, before its database goes."""
    for name in {"database", "empty_database"} & set(request.fixturenames):
        request.getfixturevalue(name)
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
