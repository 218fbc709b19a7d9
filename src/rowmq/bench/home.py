"""Where a run works: databases of its own, which are dropped when it ends.

So a benchmark can be pointed at any server, and touches nothing that is there already.
"""

import contextlib
import logging
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from rowmq.bench.link import Link, open_link
from rowmq.engine import split, sqlite_path
from rowmq.errors import ConfigurationError, DatabaseUnreachable, RowMQError

__all__ = ["Home", "open_home"]

log = logging.getLogger("rowmq")


class Home:
    """A database to measure in: a server's, which all subjects share, or a folder with a file for
    each.
    """

    def __init__(self, url: str, folder: Path | None = None) -> None:
        self._url = url
        self._folder = folder
        self.link: Link = open_link(self.url_of("rowmq"))

    @property
    def database(self) -> str:
        return self.link.database

    def url_of(self, subject: str) -> str:
        """Where a subject has its tables."""
        if self._folder is None:
            return self._url
        return f"sqlite:///{quote(str(self._folder / f'{subject}.db'))}"

    def link_of(self, subject: str) -> Link:
        """The connection by which a subject's database is looked after."""
        return self.link if self._folder is None else open_link(self.url_of(subject))


@contextlib.contextmanager
def open_home(url: str) -> Iterator[Home]:
    """A database beside the one that a URL names."""
    address, parts, kind = split(url)
    if kind == "sqlite":
        beside = sqlite_path(address, parts)
        with own_folder(Path(beside).parent if beside else None) as folder:
            home = Home(url, folder)
            try:
                yield home
            finally:
                home.link.close()
        return
    name = f"rowmq_bench_{secrets.token_hex(4)}"
    outside = connected(url)
    try:
        create(outside, name)
        try:
            home = Home(parts._replace(path=f"/{name}").geturl())
            try:
                yield home
            finally:
                home.link.close()
        finally:
            drop(outside, name)
    finally:
        outside.close()


def connected(url: str) -> Link:
    try:
        return open_link(url)
    except RowMQError:
        raise
    except Exception as error:
        told = str(error).strip().splitlines()
        raise DatabaseUnreachable(
            f"the server of --url cannot be reached ({told[0] if told else repr(error)}); is the "
            f"address right, does it run, and has it that database?"
        ) from error


@contextlib.contextmanager
def own_folder(parent: Path | None) -> Iterator[Path]:
    if parent is not None and not parent.is_dir():
        raise ConfigurationError(f"there is no folder {parent}: make it, or correct the URL")
    with tempfile.TemporaryDirectory(prefix="rowmq-bench-", dir=parent) as folder:
        yield Path(folder)


def create(link: Link, name: str) -> None:
    try:
        link.execute(f"CREATE DATABASE {name}")
    except Exception as error:
        raise ConfigurationError(
            f"the benchmark works in a database of its own, which could not be made ({error}); "
            f"give the URL of a user who may create databases"
        ) from error


def drop(link: Link, name: str) -> None:
    """Leave nothing behind; if that fails, what was measured is not lost over it."""
    force = " WITH (FORCE)" if link.database == "postgresql" else ""
    try:
        link.execute(f"DROP DATABASE {name}{force}")
    except Exception as error:  # noqa: BLE001 - told
        log.warning("the database %s could not be dropped: drop it yourself (%s)", name, error)
