"""PostgreSQL for tests: real authentication, no care for the disk."""

import functools
import signal
from typing import ClassVar

import psycopg
from psycopg import sql

from .packages import Program, locate
from .process import HOST, Server

SETTINGS = {
    "listen_addresses": HOST,
    "max_connections": "200",
    "shared_buffers": "128MB",
    # The data is thrown away, so a power cut may have it; a killed server still recovers.
    "fsync": "off",
    "full_page_writes": "off",
    # In the folder of the server, so that nothing stays in /dev/shm when it is killed.
    "dynamic_shared_memory_type": "mmap",
}


class PostgresServer(Server):
    """A PostgreSQL with a superuser `rowmq` who has to give a password."""

    name: ClassVar[str] = "postgres"
    scheme: ClassVar[str] = "postgresql"
    variable: ClassVar[str] = "ROWMQ_TEST_POSTGRES_URL"
    discard_signal: ClassVar[signal.Signals] = signal.SIGQUIT  # immediate shutdown
    # A fast shutdown, which does not wait for clients.
    halt_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(self, **settings: str) -> None:
        """Settings of the server's own go before those for tests."""
        super().__init__()
        self.settings = {**SETTINGS, **settings}

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        with psycopg.connect(self.url_for("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_for(name)

    @functools.cached_property
    def _program(self) -> Program:
        return locate(
            "postgres",
            folders=["usr/lib/postgresql/*/bin"],
            packages=["postgresql"],
        )

    def _prepare(self) -> None:
        password = self._write("password", self.password)
        self._run(
            [
                str(self._program.path.with_name("initdb")),
                f"--pgdata={self.folder / 'data'}",
                f"--username={self.user}",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
            ]
        )

    def _arguments(self) -> list[str]:
        settings = {
            **self.settings,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return ["-D", str(self.folder / "data"), *options]

    def _log_in(self) -> None:
        psycopg.connect(self.url_for("postgres"), connect_timeout=5).close()

    def _populate(self) -> None:
        self.create_database(self.database)
