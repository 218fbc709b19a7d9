"""The command: what it prints, what it changes, and what it says when it cannot."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import rowmq
from rowmq.cli.main import app, main

runner = CliRunner()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROWMQ_URL", "ROWMQ_PREFIX", "ROWMQ_SCHEMA"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> str:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {name for (name,) in connection.execute(query)}


def test_version() -> None:
    assert run("--version") == f"rowmq {rowmq.__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command(flag: str) -> None:
    shown = run(flag)
    for command in ("demo", "migrate", "sql"):
        assert command in shown


@pytest.mark.parametrize("database", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_sql_prints_the_schema_and_nothing_else(database: str) -> None:
    assert run("sql", database) == rowmq.schema_sql(database)
    shown = run("sql", database, "--prefix", "other_")
    assert shown == rowmq.schema_sql(database, prefix="other_")


def test_sql_takes_a_schema() -> None:
    shown = run("sql", "postgresql", "--schema", "queue")
    assert shown == rowmq.schema_sql("postgresql", schema="queue")


def test_sql_refuses_a_database_it_does_not_know() -> None:
    result = runner.invoke(app, ["sql", "oracle"])
    assert result.exit_code == 2
    assert "postgresql" in result.stderr


def test_migrate_makes_the_tables_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    assert run("migrate", "--url", url) == "applied 0001 initial\n"
    assert "rowmq_messages" in tables(tmp_path / "queue.db")
    assert run("migrate", "--url", url) == "up to date\n"


def test_migrate_can_answer_in_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    (applied,) = json.loads(run("migrate", "--url", url, "--json"))
    assert (applied["version"], applied["name"]) == (1, "initial")
    assert json.loads(run("migrate", "--url", url, "--json")) == []


def test_a_dry_run_prints_the_sql_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    url = f"sqlite:///{path}"
    assert run("migrate", "--url", url, "--dry-run").rstrip() == rowmq.schema_sql("sqlite").rstrip()
    assert not path.exists() or tables(path) == set()


def test_a_dry_run_on_tables_that_are_up_to_date(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    run("migrate", "--url", url)
    assert run("migrate", "--url", url, "--dry-run") == "-- up to date\n"


def test_the_url_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMQ_URL", f"sqlite:///{tmp_path / 'queue.db'}")
    monkeypatch.setenv("ROWMQ_PREFIX", "other_")
    run("migrate")
    assert "other_messages" in tables(tmp_path / "queue.db")


def test_a_url_must_be_given() -> None:
    result = runner.invoke(app, ["migrate"])
    assert result.exit_code == 2
    assert "--url" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["migrate", "--url", "oracle://user:hunter2@host/db"], "UnknownScheme"),
        (["migrate", "--url", "user:hunter2@host/db"], "UnknownScheme"),
        (["migrate", "--url", "sqlite://queue.db"], "InvalidURL"),
        (["migrate", "--url", "mysql://user:hunter2@host"], "InvalidURL"),
        (["migrate", "--url", f"sqlite:///{__file__}"], "NotADatabase"),
        (["migrate", "--url", "sqlite://", "--prefix", "A;B"], "ConfigurationError"),
        (["sql", "sqlite", "--schema", "queue"], "ConfigurationError"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_1(
    arguments: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["rowmq", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert shown.out == ""
    assert shown.err.startswith(f"error: {error}: ")
    assert len(shown.err.splitlines()) == 1
    assert "hunter2" not in shown.err


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("rowmq")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rowmq {rowmq.__version__}\n"
