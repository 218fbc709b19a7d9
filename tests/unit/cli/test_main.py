"""The command as a whole: help, exit codes, errors, and what it needs to start."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

import rowmq
from rowmq import errors
from rowmq.cli.failing import CODES, NAMES_MAX, explain, redacted, unknown
from rowmq.cli.main import ENTRIES, app
from tests.unit.cli.running import answer, command, invoke, url_of

LOOKING = [
    ["topics"], ["topics", "t"], ["groups", "t"], ["groups", "drop", "t", "g", "--yes"],
    ["lag", "t"], ["seek", "t", "g", "--to", "latest", "--yes"], ["tail", "t"], ["dlq", "t"],
    ["dlq", "show", "t", "1"], ["dlq", "redrive", "t"], ["dlq", "purge", "t", "--yes"],
    ["queues"], ["queues", "pause", "q"], ["jobs", "q"], ["jobs", "show", "q", "1"],
    ["jobs", "retry", "q", "--all"], ["jobs", "drop", "q", "k", "--yes"],
    ["jobs", "prune", "q", "--yes"], ["schedules"], ["schedules", "run", "s"], ["gc"],
    ["workers"], ["tokens"], ["tokens", "revoke", "t", "--yes"], ["audit"],
    ["audit", "prune", "--yes"], ["dashboard", "--port", "0"],
]  # fmt: skip
"""Commands that find something, or nothing, and make no database."""


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        return {name for (name,) in connection.execute(query)}


def every_command() -> Iterator[tuple[list[str], click.Command]]:
    """All commands that do something, with the words that call them."""
    context = click.Context(app, info_name="rowmq")
    for name in ENTRIES:
        found = app.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            for below, subcommand in found.commands.items():
                yield [name, below], subcommand
        else:
            yield [name], found


OTHERS = {"worker", "dashboard", "doctor", "demo", "bench"}
"""What has tests of its own."""

COMMANDS = [
    pytest.param(words, found, id=" ".join(words))
    for words, found in every_command()
    if words[0] not in OTHERS
]


# --- help -----------------------------------------------------------------------------------------


def test_version() -> None:
    assert answer(None, "--version") == f"rowmq {rowmq.__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_command_under_a_heading(flag: str) -> None:
    shown = answer(None, flag)
    lines = shown.splitlines()
    for heading in ("Messages:", "Jobs:", "Operations:"):
        assert heading in lines
    for name, entry in ENTRIES.items():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert line.endswith(entry.summary)
        assert len(line) <= 80


def test_without_a_command_the_help_is_shown_line_by_line() -> None:
    result = invoke(None)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == answer(None, "--help")


@pytest.mark.parametrize(
    ("words", "choices"),
    [(["completion"], "bash, zsh, fish"), (["sql"], "postgresql, mysql, mariadb, sqlite")],
)
def test_a_missing_choice_is_answered_with_all_of_them(words: list[str], choices: str) -> None:
    result = invoke(None, *words)
    assert result.exit_code == 2
    assert result.stderr.endswith(f". Choose from: {choices}\n")
    assert json.loads(invoke(None, *words, "--json").stderr)["message"].endswith(choices)


def test_help_tells_what_exit_codes_mean() -> None:
    shown = answer(None, "--help")
    for code, story in CODES.items():
        assert f"{code:<5}{story}" in shown


@pytest.mark.parametrize("name", [name for name in ENTRIES if name not in OTHERS])
def test_help_says_of_a_command_what_its_own_help_says(name: str) -> None:
    assert ENTRIES[name].summary in answer(None, name, "--help")


@pytest.mark.parametrize(("words", "found"), COMMANDS)
def test_a_command_explains_itself_with_an_example(words: list[str], found: Any) -> None:
    shown = answer(None, *words, "--help")
    first = (found.help or "").split("\n")[0]
    assert first.endswith(".")
    assert first in shown
    assert f"    rowmq {words[0]}" in shown or words[0] == "completion"
    assert "--json" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(("words", "found"), COMMANDS)
def test_a_command_that_needs_a_database_says_how_to_name_one(
    words: list[str], found: click.Command
) -> None:
    if not any(param.name == "url" for param in found.params):
        assert words[0] in ("sql", "completion")
        return
    needed = ["x" for p in found.params if isinstance(p, click.Argument) and p.required]
    numbers = ["1" if p.type is click.INT else "x" for p in found.params if p.required]
    given = numbers[: len(needed)] + (["--to", "latest"] if words == ["seek"] else [])
    options = [p for p in found.params if isinstance(p, click.Option) and p.required]
    given += [] if words == ["seek"] else [f"{option.opts[0]}=x" for option in options]
    result = invoke(None, *words, *given)
    assert result.exit_code == 2
    assert "ROWMQ_URL" in result.stderr
    assert "--url" in result.stderr


def test_examples_of_a_worker_leave_the_dashboard_its_port() -> None:
    assert "8080; 0<=x" in answer(None, "dashboard", "--help")
    assert "8080" not in answer(None, "worker", "--help")


def test_a_word_that_is_no_command_is_answered_with_one() -> None:
    result = invoke(None, "topic")
    assert result.exit_code == 2
    assert "Did you mean 'topics'?" in result.stderr


def test_help_needs_neither_the_commands_nor_tables_and_colours() -> None:
    code = (
        "import sys\n"
        "from rowmq.cli.main import app\n"
        "try:\n    app(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in sys.modules if name in ('rich', 'rowmq.cli.topics', 'psycopg')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "start", [[Path(sys.executable).with_name("rowmq")], command()], ids=["installed", "module"]
)
def test_the_command_runs(start: list[Any]) -> None:
    done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rowmq {rowmq.__version__}\n"


# --- what only looks makes nothing ----------------------------------------------------------------


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_what_looks_at_a_file_that_is_not_there_makes_none(
    tmp_path: Path, words: list[str]
) -> None:
    result = invoke(url_of(tmp_path), *words)
    assert result.exit_code == 3
    assert "there is no file" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = invoke(url_of(tmp_path / "typo"), "topics")
    assert result.exit_code == 3
    assert f"no folder {tmp_path / 'typo'} for it" in result.stderr
    assert "migrate" not in result.stderr


@pytest.mark.parametrize("words", [["topics"], ["queues"], ["gc"]], ids=" ".join)
def test_what_looks_at_a_file_of_another_program_makes_no_tables(
    tmp_path: Path, words: list[str]
) -> None:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (n integer)")
    result = invoke(url_of(tmp_path), *words)
    assert result.exit_code == 1
    assert "SchemaMissing" in result.stderr
    assert tables(path) == {"theirs"}


# --- sql and migrate ------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_sql_prints_the_schema_and_nothing_else(database: str) -> None:
    assert answer(None, "sql", database) == rowmq.schema_sql(database)
    shown = answer(None, "sql", database, "--prefix", "other_")
    assert shown == rowmq.schema_sql(database, prefix="other_")
    shown = answer(None, "sql", database, "--json")
    assert json.loads(shown) == {"database": database, "sql": rowmq.schema_sql(database)}


@pytest.mark.parametrize("database", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_sql_drops_every_table_that_it_makes(database: str) -> None:
    made = len(re.findall(r"CREATE (?:UNLOGGED )?TABLE ", rowmq.schema_sql(database)))
    shown = answer(None, "sql", database, "--drop", "--prefix", "other_").splitlines()
    assert len(shown) == made > 20
    assert all(line.startswith("DROP TABLE IF EXISTS ") for line in shown)
    assert "other_migrations" in shown[-1]
    assert json.loads(answer(None, "sql", database, "--drop", "--json"))["sql"].count("DROP")


def test_sql_takes_a_schema() -> None:
    shown = answer(None, "sql", "postgresql", "--schema", "queue")
    assert shown == rowmq.schema_sql("postgresql", schema="queue")


def test_sql_refuses_a_database_it_does_not_know() -> None:
    result = invoke(None, "sql", "oracle")
    assert result.exit_code == 2
    assert "postgresql" in result.stderr


def test_migrate_makes_the_tables_and_says_so(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    assert answer(None, "migrate", "--url", url) == "applied 0001 initial\n"
    assert "rowmq_messages" in tables(tmp_path / "queue.db")
    assert answer(None, "migrate", "--url", url) == "up to date\n"


def test_migrate_can_answer_in_json(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    (applied,) = json.loads(answer(None, "migrate", "--url", url, "--json"))
    assert (applied["version"], applied["name"]) == (1, "initial")
    assert json.loads(answer(None, "migrate", "--url", url, "--json")) == []


def test_a_dry_run_prints_the_sql_and_changes_nothing(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    shown = answer(None, "migrate", "--url", url, "--dry-run")
    assert shown.rstrip() == rowmq.schema_sql("sqlite").rstrip()
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_on_tables_that_are_up_to_date(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    answer(None, "migrate", "--url", url)
    assert answer(None, "migrate", "--url", url, "--dry-run") == "-- up to date\n"


def test_settings_may_come_from_the_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        command("migrate"),
        env={"ROWMQ_URL": url_of(tmp_path), "ROWMQ_PREFIX": "other_"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "applied 0001 initial\n"
    assert "other_messages" in tables(tmp_path / "queue.db")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["migrate", "--url", "oracle://user:hunter2@host/db"], "UnknownScheme"),
        (["migrate", "--url", "user:hunter2@host/db"], "UnknownScheme"),
        (["migrate", "--url", "sqlite://queue.db"], "InvalidURL"),
        (["topics", "--url", "postgresql://[user:hunter2@host/db"], "InvalidURL"),
        (["migrate", "--url", "mysql://user:hunter2@host"], "InvalidURL"),
        (["migrate", "--url", f"sqlite:///{__file__}"], "NotADatabase"),
        (["migrate", "--url", "sqlite://", "--prefix", "A;B"], "ConfigurationError"),
        (["sql", "sqlite", "--schema", "queue"], "ConfigurationError"),
        (["topics", "--url", "postgresql://user:hunter2@127.0.0.1:1/db"], "DatabaseUnreachable"),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_1(arguments: list[str], error: str) -> None:
    result = invoke(None, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {error}: ")
    assert len(result.stderr.splitlines()) == 1
    assert "hunter2" not in result.output
    told = json.loads(invoke(None, *arguments, "--json").stderr)
    assert told["error"] == error
    assert set(told) == {"error", "message"}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("kind", [RuntimeError, errors.DatabaseError, click.UsageError])
def test_no_error_acts_on_a_terminal(
    capsys: pytest.CaptureFixture[str], kind: type[Exception], *, as_json: bool
) -> None:
    explain(kind("a\nERROR b\x1b[2J\x9b\u202e"), as_json=as_json)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.removesuffix("\n").isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ["migrate", "postgresql://user:hunter2@host/db"],
        ["topics", "a", "postgresql://user:hunter2@host/db"],
        ["postgresql://user:hunter2@host/db"],
        ["lag", "t", "--interval", "postgresql://user:hunter2@host/db"],
        ["lag", "t", "--interval", "postgresql://user:hun/ter2@host/db"],
    ],
)
def test_a_password_is_not_repeated_wherever_it_was_written(arguments: list[str]) -> None:
    for more in ([], ["--json"]):
        result = invoke("sqlite://", *arguments, *more)
        assert result.exit_code == 2
        assert "ter2" not in result.output
        assert "***@host" in result.stderr


EXAMPLES = {
    "no database is named": (["topics"], "postgresql://user:password@host/database"),
    "no host": (
        ["topics", "--url", "postgresql://[user:hunter2@host/db"],
        "postgresql://user:password@host:port/database",
    ),
    "an unknown scheme": (
        ["topics", "--url", "oracle://user:hunter2@host/db"],
        "postgresql://user:password@host/database",
    ),
    "no database in it": (
        ["topics", "--url", "mysql://user:hunter2@host"],
        "mysql://user:password@host:3306/database",
    ),
}


@pytest.mark.parametrize(("arguments", "example"), EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_of_a_url_can_be_read(arguments: list[str], example: str) -> None:
    for more in ([], ["--json"]):
        result = invoke(None, *arguments, *more)
        assert example in result.stderr
        assert "hunter2" not in result.output


@pytest.mark.parametrize("host", ["hosts", "host.example.com", "host-2", "localhost"])
def test_a_password_that_is_that_of_an_example_is_hidden_elsewhere(host: str) -> None:
    assert redacted(f"postgresql://user:password@{host}/db") == f"postgresql://user:***@{host}/db"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:hunter2@host/db",
        "postgresql://ann:password-hunter2@host/db",
        "postgresql://user:password@host:hunter2@db/x",
        "postgresql://user:password@host/hunter2@db/x",
        "postgresql://user:password@hosthunter2@db/x",
        "postgresql://user:password@host/database,mysql://ann:hunter2@db/x",
        "as in postgresql://user:password@host/database, not mysql://ann:hunter2@db/x",
        "not mysql://ann:hunter2@db/x, but postgresql://user:password@host/database",
    ],
)
def test_what_looks_like_an_example_hides_no_password(text: str) -> None:
    assert "hunter2" not in redacted(text)
    assert "***@" in redacted(text)


@pytest.mark.parametrize("name", ["--key", "--id", "--header"])
def test_an_option_is_not_taken_for_the_value_of_another(tmp_path: Path, name: str) -> None:
    url = url_of(tmp_path)
    result = invoke(None, "publish", "orders", "1", name, "--url", url)
    assert result.exit_code == 2
    assert f"option '{name}' needs a value, and '--url' is an option" in result.stderr
    assert f"write {name}=--url" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_looks_like_an_option_can_be_given(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    assert "key --url," in answer(url, "publish", "t", "1", "--key=--url")
    assert "key --else," in answer(url, "publish", "t", "1", "--key", "--else")
    shown = answer(url, "publish", "t", "--key", "k", "--", "--key", "--url")
    assert len(shown.splitlines()) == 2
    result = invoke(url, "tail", "t", "-n", "--key")
    assert "write -n--key" in result.stderr


MISSPELT = {
    "topic": (["topics", "ordes"], "there is no topic 'ordes': did you mean 'orders'?"),
    "topic of a group": (["groups", "drop", "ordes", "billing"], "no topic 'ordes': did you mean"),
    "topic of a lag": (["lag", "ordes", "billing"], "no topic 'ordes': did you mean 'orders'?"),
    "topic of letters": (["dlq", "show", "ordes", "1"], "no topic 'ordes': did you mean 'orders'?"),
    "group": (["lag", "orders", "biling"], "no group 'biling': did you mean 'billing'?"),
    "queue": (["queues", "emials"], "there is no queue 'emials': did you mean 'emails'?"),
    "queue of a job": (["jobs", "show", "emials", "1"], "no queue 'emials': did you mean 'emails'"),
    "queue of a key": (["jobs", "drop", "emials", "k"], "no queue 'emials': did you mean 'emails'"),
    "no topic like it": (["topics", "zzz"], "there is no topic 'zzz': rowmq topics lists them"),
    "no group like it": (["lag", "orders", "zzz"], "'zzz': rowmq groups orders lists them"),
    "no queue like it": (["queues", "zzz"], "there is no queue 'zzz': rowmq queues lists them"),
}


@pytest.mark.parametrize(("words", "said"), MISSPELT.values(), ids=MISSPELT)
def test_a_name_that_was_misspelt_is_answered_with_one(
    tmp_path: Path, words: list[str], said: str
) -> None:
    url = url_of(tmp_path)
    answer(url, "publish", "orders", "1")
    answer(url, "groups", "create", "orders", "billing")
    answer(url, "jobs", "put", "emails", "1")
    result = invoke(url, *words)
    assert (result.exit_code, result.stdout) == (3, "")
    assert said in result.stderr


def test_names_are_looked_through_up_to_a_limit() -> None:
    names = iter(f"{n}" for n in range(10 * NAMES_MAX))
    error = unknown("there is no topic 'x'", "x", names, listed_by="rowmq topics")
    assert str(error).endswith("rowmq topics lists them")
    assert next(names) == str(NAMES_MAX)


def test_wrong_usage_is_json_too(tmp_path: Path) -> None:
    result = invoke(url_of(tmp_path), "tail", "t", "-n", "x", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stderr)["error"] == "UsageError"


def test_what_an_error_quotes_acts_on_no_terminal(tmp_path: Path) -> None:
    answer(url_of(tmp_path), "migrate")
    for words in (["topics", "\x1b[31m\u202e"], ["groups", "\x9b2J"], ["queues", "pause", "\x07"]):
        result = invoke(url_of(tmp_path), *words)
        assert result.exit_code == 3
        assert result.stderr.strip().isprintable()


def test_a_payload_that_says_json_is_a_payload(tmp_path: Path) -> None:
    shown = answer(url_of(tmp_path), "publish", "t", "--key", "k", "--", "--json")
    assert shown.startswith("published: t (new), key k, offset 1")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_is_shown_escapes(tmp_path: Path, encoding: str) -> None:
    url = url_of(tmp_path)
    answer(url, "publish", "t", '{"name": "Ж"}')
    env = {"ROWMQ_URL": url, "PYTHONIOENCODING": encoding}
    for more in ([], ["--json"]):
        done = subprocess.run(
            command("tail", "t", "--no-follow", *more), env=env, capture_output=True, check=True
        )
        assert rb"\u0416" in done.stdout


def test_arguments_that_are_no_text_are_refused(tmp_path: Path) -> None:
    answer(url_of(tmp_path), "migrate")
    calls: list[list[str | bytes]] = [
        ["publish", "t", b"\xff"],
        ["publish", "t", "1", "--key", b"\xff"],
    ]
    for words in calls:
        done = subprocess.run(
            [*command(), *words],
            env={"ROWMQ_URL": url_of(tmp_path)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        assert done.stderr.count(b"\n") == 1
