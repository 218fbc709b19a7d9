"""PostgreSQL for tests: real authentication, no care for the disk."""

import base64
import functools
import hashlib
import hmac
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
    # A fifth of the default: until then, those who wait for each other do so in vain.
    "deadlock_timeout": "200ms",
    # What runs once is not worth compiling, however many rows it is about.
    "jit": "off",
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
        with psycopg.connect(self.url_for("postgres"), autocommit=True) as connection:
            user, password = sql.Identifier(self.user), sql.Literal(verifier(self.password))
            connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(user, password))
        self.create_database(self.database)


def verifier(password: str) -> str:
    """A password as PostgreSQL stores it, stretched once instead of 4,096 times.

    The stretching is the client's work at every login, and thousands of tests log in.
    """
    salt = b"of no secret"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    parts = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*parts)
