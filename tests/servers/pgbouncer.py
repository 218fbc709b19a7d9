"""PgBouncer for tests: transaction pooling, with fewer server connections than clients.

The one idea: with only two server connections, neighbours in a test really get each other's
session, so whatever a client keeps in its session beyond the transaction shows.
"""

import functools
import signal
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import psycopg

from .packages import Program, locate
from .process import HOST, Server


class PgBouncer(Server):
    """A pooler before a PostgreSQL, with the user, password and databases of that server."""

    name: ClassVar[str] = "pgbouncer"
    scheme: ClassVar[str] = "postgresql"
    variable: ClassVar[str] = "ROWMQ_TEST_PGBOUNCER_URL"
    # Newer ones wait for their clients at SIGTERM, and there is no data to be careful with.
    halt_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, postgres_url: str) -> None:
        super().__init__()
        upstream = urlsplit(postgres_url)
        self.user = unquote(upstream.username or "")
        self.password = unquote(upstream.password or "")
        self.database = unquote(upstream.path.lstrip("/"))
        self._upstream = f"host={upstream.hostname} port={upstream.port or 5432}"

    @functools.cached_property
    def _program(self) -> Program:
        return locate("pgbouncer", folders=["usr/sbin"], packages=["pgbouncer"])

    @property
    def _settings_path(self) -> Path:
        return self.folder / "pgbouncer.ini"

    def _prepare(self) -> None:
        # Passwords in the clear: only they can be used towards both sides under SCRAM.
        users = self._write("users", f"{_quoted(self.user)} {_quoted(self.password)}\n")
        self._write(
            self._settings_path.name,
            f"""
[databases]
* = {self._upstream}

[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
admin_users = {self.user}
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
""",
        )

    def _arguments(self) -> list[str]:
        return [str(self._settings_path)]

    def _log_in(self) -> None:
        # The console, so that a pooler can start before its server, or without it.
        psycopg.connect(self.url_for("pgbouncer"), connect_timeout=5).close()


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
