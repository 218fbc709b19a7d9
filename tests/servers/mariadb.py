"""MariaDB for tests: as shipped where it can be seen, without care for the disk where it cannot."""

import functools
from pathlib import Path
from typing import ClassVar

import pymysql

from .account import server_account
from .errors import ServerError
from .packages import Program, locate
from .process import HOST, Server

# The names begin with mysql_ up to 10.x and with mariadb_ from 11 on; the order matters. Left out
# are the help texts and the test database.
SYSTEM_TABLES = [
    "m*_system_tables.sql",
    "m*_performance_tables.sql",
    "m*_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "m*_sys_schema.sql",
]

# Not to the disk, which costs most; but out of the process, so a kill loses nothing.
QUICK = (
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--debug-no-sync",
)
DURABLE = ("--innodb-flush-log-at-trx-commit=1",)


class MariaDBServer(Server):
    """A MariaDB with a user `rowmq` who may do everything and has to give a password."""

    name: ClassVar[str] = "mariadb"
    scheme: ClassVar[str] = "mariadb"
    variable: ClassVar[str] = "ROWMQ_TEST_MARIADB_URL"

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        quoted = name.replace("`", "``")
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{quoted}`")
        return self.url_for(name)

    @functools.cached_property
    def _program(self) -> Program:
        return locate("mariadbd", folders=["usr/sbin"], packages=["mariadb-server-core"])

    @property
    def _prefix(self) -> Path:
        """`/usr`, or its counterpart below an unpacked root."""
        return self._program.path.parent.parent

    @property
    def _share(self) -> Path:
        for folder in (self._prefix / "share/mariadb", self._prefix / "share/mysql"):
            if any(folder.glob(SYSTEM_TABLES[0])):
                return folder
        raise ServerError(f"{self._program.path} has no system tables in {self._prefix / 'share'}")

    def _prepare(self) -> None:
        # What mariadb-install-db does; it comes without a program that it needs.
        for name in ("data", "plugins"):
            self._create_subfolder(name)
        self._run(
            [str(self._program.path), *self._arguments(), "--bootstrap"],
            input_text=self._bootstrap_statements(),
        )

    def _bootstrap_statements(self) -> str:
        scripts = [path for name in SYSTEM_TABLES for path in self._share.glob(name)]
        return "\n".join(
            [
                "CREATE DATABASE mysql;",  # the reader takes one statement a line
                "USE mysql;",
                # Keeps out the accounts without a password.
                "SET @auth_root_socket = 'root';",
                *(script.read_text(encoding="utf-8") for script in scripts),
                "FLUSH PRIVILEGES;",
                f"CREATE DATABASE {self.database};",
                f"CREATE USER '{self.user}'@'{HOST}' IDENTIFIED BY '{self.password}';",
                f"GRANT ALL ON *.* TO '{self.user}'@'{HOST}' WITH GRANT OPTION;",
                "",
            ]
        )

    def __init__(self, *, durable: bool = False) -> None:
        """One that is durable flushes every commit to the disk."""
        super().__init__()
        self.durable = durable

    def _arguments(self) -> list[str]:
        return ["--no-defaults", *self._places(), *self._settings()]

    def _places(self) -> list[str]:
        return [
            f"--basedir={self._prefix}",
            f"--lc-messages-dir={self._share}",
            f"--character-sets-dir={self._share / 'charsets'}",
            # An empty one: plugins that are installed may be of another version.
            f"--plugin-dir={self.folder / 'plugins'}",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
        ]

    def _settings(self) -> list[str]:
        return [
            f"--bind-address={HOST}",
            f"--port={self.port}",
            "--skip-name-resolve",  # the grant is for an address
            "--skip-log-bin",
            "--max-connections=300",
            "--max-allowed-packet=64M",
            "--innodb-buffer-pool-size=256M",
            *(DURABLE if self.durable else QUICK),
        ]

    def _create_subfolder(self, name: str) -> None:
        path = self.folder / name
        path.mkdir()
        server_account().owns(path)

    def _log_in(self) -> None:
        self._connect().close()

    def _connect(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            host=HOST,
            port=self.port,
            user=self.user,
            password=self.password,
            database=self.database,
            connect_timeout=5,
            read_timeout=30,  # the timeout above does not cover the greeting
        )
