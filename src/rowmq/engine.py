"""From a URL to an engine: a driver and the operations for one database.

Drivers are imported only when their database is asked for, and a missing one is named with the
extra that brings it. A password never leaves this module in a message.
"""

import importlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NoReturn, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from rowmq.drivers.base import AsyncDriver, Limits, SyncDriver
from rowmq.drivers.postgres import LIBPQ_OPTIONS, SHARED_OPTIONS, PostgresWatch
from rowmq.drivers.sqlite import AsyncSQLiteDriver
from rowmq.drivers.sqlite_watch import SQLiteWatch
from rowmq.drivers.watching import Watch
from rowmq.errors import InvalidOption, InvalidURL, MissingExtra, UnknownScheme
from rowmq.quoting import quoted
from rowmq.store.dialect import DEFAULT_LOCK_SECONDS, DEFAULT_PREFIX
from rowmq.store.mysql import mysql_store
from rowmq.store.postgres import PostgresDialect, postgres_store
from rowmq.store.sqlite import SQLiteDialect, sqlite_store
from rowmq.store.store import Store
from rowmq.times import Duration, to_seconds

__all__ = ["Engine", "Options", "open_async_engine", "open_engine", "store_for"]

D = TypeVar("D", SyncDriver, AsyncDriver)

SCHEMES = {
    "sqlite": "sqlite",
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
}

STORES: dict[str, Callable[..., Store]] = {
    "sqlite": sqlite_store,
    "postgres": postgres_store,
    "mysql": mysql_store,
}

DRIVERS = {"postgres": ("psycopg", "asyncpg"), "mysql": ("pymysql", "asyncmy")}

MYSQL_OPTIONS = {"unix_socket", "ssl", "ssl_ca"}

SPARE_LOCK_SECONDS = 1.0
"""How long a spare driver waits for a lock: a heartbeat has better things to do."""

UNREADABLE = (
    "the database URL cannot be read: write postgresql://user:password@host:port/database, and in "
    "a password @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25 and a space as %20"
)
UNREADABLE_PATH = (
    "the path of the SQLite URL cannot be read: it is text in UTF-8, without the NUL character; "
    "write % as %25 and a line break as %0A"
)

BOOLEANS = ("true", "1", "false", "0")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect, beside the URL."""

    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    pool_size: int = 10
    pool_timeout: Duration = 30.0
    connect_timeout: Duration = 10.0
    lock_timeout: Duration = DEFAULT_LOCK_SECONDS
    retry_for: Duration = 10.0
    prepared_statements: bool = True
    notify: bool = True
    clock: str | None = None
    """What stands for the database's clock, as SQL, in tests: see `Dialect`."""


class Engine(msgspec.Struct, Generic[D], frozen=True):
    """A driver and the operations it runs.

    `new_watch` makes what wakes subscribers up, where the database has something of the kind;
    `notify` says that it is for publishers to tell them.
    """

    driver: D
    store: Store
    spare: Callable[..., SyncDriver]
    """Opens a driver of its own connection, for what must not wait for the others."""
    new_watch: Callable[[], Watch] | None = None
    notify: bool = False

    @property
    def database(self) -> str:
        """Which database it is: sqlite, postgres or mysql."""
        return self.store.dialect.name


def open_engine(url: str, options: Options) -> Engine[SyncDriver]:
    """The engine of a URL for sync code. Nothing is connected to yet."""
    database, store, module, target = resolve(url, options)
    require(database, kind=0)
    driver: SyncDriver = module.sync_driver(target, limits_of(options))
    spare = partial(spare_driver, module, target, options, driver)
    return Engine(driver, store, spare, *waking(store, target, options))


def open_async_engine(url: str, options: Options) -> Engine[AsyncDriver]:
    """The engine of a URL for async code. Nothing is connected to yet."""
    database, store, module, target = resolve(url, options)
    require(database, kind=1)
    driver: AsyncDriver = module.async_driver(target, limits_of(options))
    inner = driver.sync if isinstance(driver, AsyncSQLiteDriver) else None
    spare = partial(spare_driver, module, target, options, inner)
    return Engine(driver, store, spare, *waking(store, target, options))


def spare_driver(
    module: ModuleType,
    target: Any,
    options: Options,
    driver: SyncDriver | None,
    *,
    lock_timeout: float = SPARE_LOCK_SECONDS,
) -> SyncDriver:
    """A driver with one connection, sync for sync and async code alike. A database in memory has
    only the one it has.
    """
    if not target and driver is not None:
        return driver
    require(module.__name__.rpartition(".")[2], kind=0)
    limits = msgspec.structs.replace(limits_of(options), pool_size=1, lock_timeout=lock_timeout)
    spare: SyncDriver = module.sync_driver(target, limits)
    return spare


def resolve(url: str, options: Options) -> tuple[str, Store, ModuleType, Any]:
    """The database of a URL, its operations, its driver's module, and what to connect to."""
    url, parts, database = split(url)
    lock_timeout = to_seconds(options.lock_timeout, name="lock_timeout")
    store = store_for(
        database,
        prefix=options.prefix,
        schema=options.schema,
        lock_timeout=lock_timeout,
        clock=options.clock,
    )
    module = importlib.import_module(f"rowmq.drivers.{database}")
    return database, store, module, TARGETS[database](url, parts)


def waking(store: Store, target: Any, options: Options) -> tuple[Callable[[], Watch] | None, bool]:
    """How subscribers are woken up, and whether publishers are to tell them."""
    dialect = store.dialect
    if isinstance(dialect, PostgresDialect) and options.notify:
        seconds = limits_of(options).connect_timeout
        return partial(PostgresWatch, target, dialect.channel, connect_timeout=seconds), True
    if isinstance(dialect, SQLiteDialect) and target:
        return partial(SQLiteWatch, target), False
    return None, False  # a database in memory has nobody else who could publish


def store_for(database: str, **options: Any) -> Store:
    """The operations for a database by its name, or the scheme of its URLs."""
    known = SCHEMES.get(database)
    if known is None:
        refuse_scheme(database)
    return STORES[known](**options)


def split(url: str) -> tuple[str, SplitResult, str]:
    """A URL without spaces around it, its parts, and the database it is for."""
    if not isinstance(url, str):
        raise InvalidURL(f"a database URL must be a str, not {type(url).__name__}")
    url = url.strip()
    scheme, separator, _ = url.partition("://")
    name = scheme.lower().split("+")[0]  # SQLAlchemy's form, as in mysql+pymysql, will do
    database = SCHEMES.get(name)
    if database is None or not separator:
        # Without a scheme, what stands there may be anything, also a password.
        refuse_scheme(name if separator and name.isalnum() else "")
    try:
        check_text(url)
        parts = urlsplit(url)
        if database != "sqlite":
            check_server(url, parts)
    except ValueError:
        # Python's message would quote what may be part of a password.
        raise InvalidURL(UNREADABLE_PATH if database == "sqlite" else UNREADABLE) from None
    return url, parts, database


def check_text(url: str) -> None:
    """Raise ValueError for what no driver takes, or takes for something else. Python leaves line
    breaks out of a URL, and reads bytes that are no text as some other character.
    """
    plain = unquote(url, errors="strict").encode()  # where a lone surrogate shows
    if b"\0" in plain or CONTROL.search(url):
        raise ValueError


CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_server(url: str, parts: SplitResult) -> None:
    """Raise ValueError for what comes of a password that is not escaped."""
    parts.port  # noqa: B018 - a port that is no number shows only here
    if (
        parts.fragment
        or parts.netloc.count("@") > 1
        or ("@" in parts.path and "@" not in parts.netloc)
        or re.search(r"%(?![0-9a-fA-F]{2})|\s", url)
    ):
        raise ValueError


def option_called(name: str, parts: SplitResult) -> str:
    """An unknown option, for an error: by its name, unless that may be a part of a password."""
    return "unknown option" if "@" in parts.query else f"unknown option {quoted(name)}"


def refuse_scheme(scheme: str) -> NoReturn:
    problem = f"RowMQ does not know the database {quoted(scheme)}" if scheme else "this is no URL"
    raise UnknownScheme(
        f"{problem}: URLs look like sqlite:///queue.db, "
        f"postgresql://user:password@host/database, mysql://... or mariadb://..."
    )


def limits_of(options: Options) -> Limits:
    size = options.pool_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidOption(f"pool_size must be 1 or more, not {quoted(size)}")
    return Limits(
        pool_size=size,
        pool_timeout=to_seconds(options.pool_timeout, name="pool_timeout"),
        connect_timeout=to_seconds(options.connect_timeout, name="connect_timeout"),
        lock_timeout=to_seconds(options.lock_timeout, name="lock_timeout"),
        retry_for=to_seconds(options.retry_for, name="retry_for"),
        prepared_statements=options.prepared_statements,
    )


def sqlite_path(_: str, parts: SplitResult) -> str:
    """The file of a URL, absolute, as the directory may change; empty for memory."""
    if parts.netloc:
        raise InvalidURL(
            "the SQLite URL has a host: write sqlite:///queue.db for a file in this directory, "
            "sqlite:////var/lib/queue.db for an absolute path, sqlite:// for memory"
        )
    if parts.query or parts.fragment:
        raise InvalidURL("an SQLite URL takes no options; in a path, write ? as %3F and # as %23")
    path = unquote(parts.path.removeprefix("/"))
    if parts.path == "/":
        raise InvalidURL("the SQLite URL names no file: write sqlite:///queue.db, or sqlite://")
    return str(Path(path).absolute()) if path not in ("", ":memory:") else ""


def postgres_url(url: str, parts: SplitResult) -> str:
    """The URL as libpq understands it, which asyncpg's driver then adapts."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - SHARED_OPTIONS - LIBPQ_OPTIONS)
    if unknown:
        raise InvalidURL(
            f"{option_called(unknown[0], parts)} in the URL; libpq's options are known"
        )
    return "postgresql" + url[len(parts.scheme) :]


def mysql_options(_: str, parts: SplitResult) -> dict[str, Any]:
    """The options of a URL for both drivers."""
    database = unquote(parts.path.removeprefix("/"))
    if not database:
        raise InvalidURL(
            "the URL names no database: write mysql://user:password@host:3306/database"
        )
    extra = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(extra) - MYSQL_OPTIONS)
    if unknown:
        known = ", ".join(sorted(MYSQL_OPTIONS))
        raise InvalidURL(f"{option_called(unknown[0], parts)} in the URL; known are {known}")
    # Whatever else it said would be taken for no, and the connection be made in the clear.
    if extra.get("ssl", "1") not in BOOLEANS:
        raise InvalidURL("the option ssl in the URL must be true or false")
    empty = [name for name, value in extra.items() if not value]
    if empty:
        raise InvalidURL(f"the option {empty[0]} in the URL has no value")
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        **extra,
    }


def require(database: str, *, kind: int) -> None:
    """Import the sync (0) or async (1) driver of a database, or say which extra brings it."""
    if database not in DRIVERS:
        return
    module = DRIVERS[database][kind]
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"the driver {module!r} cannot be imported ({str(error).splitlines()[0]}); "
            f"run: pip install 'rowmq[{database}]'"
        ) from error


TARGETS: dict[str, Callable[[str, SplitResult], Any]] = {
    "sqlite": sqlite_path,
    "postgres": postgres_url,
    "mysql": mysql_options,
}
