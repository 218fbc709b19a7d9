"""The schema: numbered SQL files per dialect, applied in order and once.

`check` compares what a database has with what this library knows; `migrate` brings it up to date,
safely with any number of processes doing so at once; `script` is the same as text, for review or
for the migrations of Alembic and Django. A version's file never changes once it is released.
"""

import re
from importlib.resources import files

from rowmq.errors import Locked, SchemaError, SchemaMissing, SchemaTooNew, SchemaTooOld
from rowmq.message import Migration
from rowmq.store.dialect import DEFAULT_PREFIX, Dialect
from rowmq.store.statement import Operation, Statement

__all__ = ["Schema"]

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Schema:
    """The operations on the schema, for one dialect."""

    exists_sql: str
    """Counts the table of a given name: 0 or 1."""

    lock_sql: str | None = None
    """Keeps other migrating processes out; gives 0 or NULL if that failed."""

    unlock_sql: str | None = None
    """Lets them in again, where the end of the transaction does not."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def migrations(self) -> list[Migration]:
        """Every migration this library knows, in order, as SQL for this database.

        Each is complete: applied by hand, it also records that it was.
        """
        folder = files("rowmq.store").joinpath("migrations", self.dialect.name)
        found = []
        for file in folder.iterdir():
            if match := _FILE.fullmatch(file.name):
                sql = self._complete(int(match[1]), match[2], file.read_text(encoding="utf-8"))
                found.append(Migration(version=int(match[1]), name=match[2], sql=sql))
        return sorted(found, key=lambda migration: migration.version)

    def _complete(self, version: int, name: str, body: str) -> str:
        before = self.preamble() + CREATE_MIGRATIONS if version == 1 else ""
        record = RECORD.format(version=version, name=name)
        title = f"-- RowMQ {version:04} {name}\n\n"
        return title + self.dialect.fill(before + body + record)

    def script(self) -> str:
        """All SQL from nothing to the newest version, the same text every time."""
        return "\n".join(migration.sql for migration in self.migrations())

    def preamble(self) -> str:
        """What must be there before the first table."""
        return ""

    def exists_params(self) -> tuple[str | None, ...]:
        """The migrations table as `exists_sql` asks for it."""
        return (f"{self.dialect.prefix}migrations",)

    def version(self, *, sole: bool = True) -> Operation[int]:
        """The version the database has; 0 if it has none."""
        sql = self.dialect.sql(self.exists_sql)
        exists = yield Statement("schema.exists", sql, self.exists_params(), sole=sole)
        if not exists.rows[0][0]:
            return 0
        result = yield Statement("schema.version", self.dialect.sql(VERSION), sole=sole)
        return int(result.rows[0][0])

    def check(self) -> Operation[SchemaError | None]:
        """What is wrong with the database's schema; None if it is the one this library wants."""
        version = yield from self.version()
        latest = self.migrations()[-1].version
        if version == latest:
            return None
        if version > latest:
            return too_new(version, latest)
        if version == 0:
            return SchemaMissing(
                f"there are no RowMQ tables with the prefix {self.dialect.prefix!r} here; run "
                f"`{self._command}`, or call mq.migrate(), or apply what `rowmq sql` prints"
            )
        return SchemaTooOld(
            f"the tables are at version {version} and this RowMQ works with {latest}; run "
            f"`{self._command}`, or call mq.migrate(), or apply what it prints with --dry-run"
        )

    @property
    def _command(self) -> str:
        """What brings these tables up to date."""
        dialect = self.dialect
        prefix = "" if dialect.prefix == DEFAULT_PREFIX else f" --prefix {dialect.prefix}"
        schema = "" if dialect.schema is None else f" --schema {dialect.schema}"
        return f"rowmq migrate{prefix}{schema}"

    def pending(self, *, sole: bool = True) -> Operation[list[Migration]]:
        """The migrations that the database lacks."""
        version = yield from self.version(sole=sole)
        known = self.migrations()
        if version > known[-1].version:
            raise too_new(version, known[-1].version)
        return [migration for migration in known if migration.version > version]

    def born_at(self) -> Operation[int]:
        """When these tables were made: what tells a database from others."""
        sql = self.dialect.sql("SELECT MIN(applied_at) FROM {migrations}")
        result = yield Statement("schema.born_at", sql, sole=True)
        return int(result.rows[0][0])

    def migrate(self) -> Operation[list[Migration]]:
        """Apply the pending migrations and return them."""
        if self.lock_sql is not None:
            locked = yield Statement("schema.lock", self.dialect.fill(self.lock_sql))
            if locked.rows[0][0] in (0, None):
                raise Locked("another process has been migrating for five minutes; try again later")
        try:
            applied = yield from self._apply()
        except Exception:
            yield from self._unlock()
            raise
        yield from self._unlock()
        return applied

    def _unlock(self) -> Operation[None]:
        if self.unlock_sql is not None:
            yield Statement("schema.unlock", self.dialect.fill(self.unlock_sql))

    def _apply(self) -> Operation[list[Migration]]:
        # Not by themselves: what is pending must be found out under the lock that keeps others out.
        pending = yield from self.pending(sole=False)
        unneeded = yield from self.unneeded()
        for migration in pending:
            for sql in statements(migration.sql):
                if strip_comments(sql) != unneeded:
                    yield Statement("schema.migrate", sql)
        return pending

    def unneeded(self) -> Operation[str]:
        """A statement of the preamble that has nothing to do, and may be forbidden."""
        yield from ()
        return ""


CREATE_MIGRATIONS = """\
CREATE TABLE IF NOT EXISTS {migrations} (
    version    integer NOT NULL PRIMARY KEY,
    name       varchar(100) NOT NULL,
    applied_at bigint NOT NULL
);

"""

RECORD = """
INSERT INTO {{migrations}} (version, name, applied_at) VALUES ({version}, '{name}', {{now}});
"""

VERSION = "SELECT COALESCE(MAX(version), 0) FROM {migrations}"


def too_new(version: int, latest: int) -> SchemaTooNew:
    return SchemaTooNew(
        f"the tables are at version {version} and this RowMQ only knows {latest}: a newer RowMQ "
        f"migrated them; upgrade this one (pip install --upgrade rowmq)"
    )


def statements(script: str) -> list[str]:
    """The statements of a script, which each end with a semicolon at a line's end."""
    parts = re.split(r";[ \t]*(?:\n|$)", script)
    return [part.strip() for part in parts if strip_comments(part)]


def strip_comments(sql: str) -> str:
    """What is left of SQL without its comment lines."""
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip()
