"""The schema as text: the same every time, complete, and enough by itself."""

import re
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq.engine import store_for
from rowmq.errors import ConfigurationError, UnknownScheme
from rowmq.store.dialect import TABLES
from rowmq.store.schema import statements

DATABASES = ["postgresql", "postgres", "mysql", "mariadb", "sqlite"]
FOLDERS = ["postgres", "mysql", "sqlite"]
ROOT = Path(__file__).parents[3]

CLUSTERED = r"CREATE TABLE (\w+) \(\n((?:(?!\n\)).)*)\n\) WITHOUT ROWID"

every_database = pytest.mark.parametrize("database", DATABASES)


@every_database
def test_the_text_is_the_same_every_time(database: str) -> None:
    assert rowmq.schema_sql(database) == rowmq.schema_sql(database)
    code = f"import rowmq; print(rowmq.schema_sql({database!r}), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == rowmq.schema_sql(database)


@every_database
def test_every_table_has_the_prefix(database: str) -> None:
    sql = rowmq.schema_sql(database, prefix="other_")
    for table in TABLES:
        assert re.search(rf"CREATE (UNLOGGED )?TABLE (IF NOT EXISTS )?other_{table}\b", sql), table
    assert "rowmq_" not in sql


def test_names_of_one_database_mean_the_same() -> None:
    assert rowmq.schema_sql("postgres") == rowmq.schema_sql("postgresql")
    assert rowmq.schema_sql("mysql") == rowmq.schema_sql("mariadb")
    assert len({rowmq.schema_sql(name) for name in FOLDERS}) == 3


def test_a_schema_stands_before_every_table() -> None:
    sql = rowmq.schema_sql("postgresql", schema="queue")
    assert sql != rowmq.schema_sql("postgresql")
    assert 'CREATE SCHEMA IF NOT EXISTS "queue"' in sql
    for table in TABLES:
        assert f'"queue".rowmq_{table} (' in sql
    assert not re.search(r'(?<!"queue"\.)\browmq_messages\b', sql)


@pytest.mark.parametrize("database", ["mysql", "mariadb", "sqlite"])
def test_other_databases_have_no_schemas(database: str) -> None:
    with pytest.raises(ConfigurationError, match="PostgreSQL only"):
        rowmq.schema_sql(database, schema="queue")


@pytest.mark.parametrize("database", ["oracle", "", "SQLITE3", "sqlite://"])
def test_an_unknown_database_is_refused(database: str) -> None:
    with pytest.raises(UnknownScheme):
        rowmq.schema_sql(database)


@pytest.mark.parametrize("name", ["a;b", "A", "", "1", 'a"'])
def test_names_that_could_be_sql_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        rowmq.schema_sql("postgresql", prefix=name)
    with pytest.raises(ConfigurationError):
        rowmq.schema_sql("postgresql", schema=name)


@every_database
def test_statements_are_whole_and_balanced(database: str) -> None:
    sql = rowmq.schema_sql(database)
    found = statements(sql)
    assert len(found) > len(TABLES)
    for statement in found:
        code = re.sub(r"--[^\n]*|'[^']*'", "", statement)
        assert code.count("(") == code.count(")"), statement
        assert ";" not in code, statement
        assert re.match(r"\s*(CREATE|INSERT|ALTER)\b", code), statement
        assert "{" not in code, statement
    assert sql.rstrip().endswith(";")


@every_database
def test_the_longest_prefix_leaves_room_for_every_name(database: str) -> None:
    """PostgreSQL would cut names at 63 bytes without a word, MySQL refuses more than 64."""
    sql = rowmq.schema_sql(database, prefix="p" * 40)
    names = set(re.findall(r"\bp{40}\w+", sql))
    assert len(names) >= len(TABLES)
    assert [name for name in names if len(name) > 63] == []


@every_database
def test_own_sql_needs_no_knowledge_of_quotes(database: str) -> None:
    """Guards what `restyle_own` relies on: such text would differ from one database to another."""
    store = store_for(database, prefix="rowmq_", schema=None)
    module = sys.modules[type(store.topics).__module__]
    templates = [
        value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)
    ]
    assert templates
    for template in templates:
        assert not re.search(r"[\\#%`]", template), template


def test_the_text_makes_a_database_that_is_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(rowmq.schema_sql("sqlite", prefix="other_"))
    seen: list[Any] = []
    with rowmq.connect(f"sqlite:///{path}", prefix="other_") as mq:
        assert mq.migrate(dry_run=True) == []
        mq._driver.observers.append(lambda statement: seen.append(statement.name))
        assert mq.migrate() == []
        assert mq.publish("t", 1).offset == 1
    assert "schema.migrate" not in seen


def test_the_text_makes_what_migrating_makes(tmp_path: Path) -> None:
    by_text, by_migrating = tmp_path / "text.db", tmp_path / "migrated.db"
    with closing(sqlite3.connect(by_text)) as connection:
        connection.executescript(rowmq.schema_sql("sqlite"))
        query = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
        expected = connection.execute(query).fetchall()
    rowmq.connect(f"sqlite:///{by_migrating}").close()
    with closing(sqlite3.connect(by_migrating)) as connection:
        assert connection.execute(query).fetchall() == expected


@pytest.mark.parametrize("folder", FOLDERS)
def test_migrations_are_numbered_without_a_gap(folder: str) -> None:
    found = store_for(folder, prefix="rowmq_", schema=None).schema.migrations()
    assert [m.version for m in found] == list(range(1, len(found) + 1))


def test_every_dialect_has_the_same_migrations() -> None:
    names = [
        [(m.version, m.name) for m in store_for(f, prefix="a", schema=None).schema.migrations()]
        for f in FOLDERS
    ]
    assert names[0] == names[1] == names[2]


def test_the_package_holds_what_it_needs_at_run_time() -> None:
    assert files("rowmq").joinpath("py.typed").is_file()
    for folder in FOLDERS:
        assert files("rowmq.store").joinpath("migrations", folder, "0001_initial.sql").is_file()


def test_a_wheel_holds_every_migration_and_the_mark_of_types(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
    ]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {str(file.relative_to(source)) for file in source.rglob("*.sql")}
    assert len(wanted) >= 3
    assert wanted | {"rowmq/py.typed"} <= inside


def test_the_columns_of_a_clustered_key_come_first_on_sqlite() -> None:
    """SQLite 3.40 finds such a table damaged otherwise, when it checks the file."""
    text = store_for("sqlite", prefix="rowmq_", schema=None).schema.script()
    clustered = re.findall(CLUSTERED, text, re.DOTALL)
    assert len(clustered) > 10
    for table, body in clustered:
        columns = [line.split()[0] for line in body.splitlines() if "PRIMARY KEY (" not in line]
        keyed = re.search(r"PRIMARY KEY \((.*)\)", body)
        key = columns[:1] if keyed is None else keyed[1].split(", ")
        assert columns[: len(key)] == key, table
