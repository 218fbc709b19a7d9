"""What figures mean to the doctor, and how it is told: no database is needed to see that."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rowmq
from rowmq import Checkup, Finding, Level, Thresholds, errors
from rowmq.cli.failing import Code
from rowmq.cli.main import app
from rowmq.doctor import file, server, settings, tables, transactions, work
from rowmq.doctor.case import Case
from rowmq.doctor.checks import CHECKS, EXAMINATIONS
from rowmq.doctor.examining import FINDINGS_MAX, is_denied, not_seen, worst
from rowmq.doctor.server import Beat
from rowmq.doctor.thresholds import threshold_defaults
from rowmq.doctor.wording import count, duration, shortened, size
from rowmq.engine import store_for
from rowmq.message import Migration, WorkerInfo
from rowmq.store.doctor import ROWS_MAX
from rowmq.store.doctor_facts import GroupState, Identity, SchemaState
from rowmq.store.doctor_mysql import MySQLTable, number_of
from rowmq.store.doctor_postgres import Capacity, Setting, Slot
from rowmq.store.doctor_schema import blueprint_of
from rowmq.store.doctor_sqlite import SQLiteState

POSTGRES = Identity("PostgreSQL", "16.2", (16, 2), "ann", "shop", "db:5432")
MARIADB = Identity("MariaDB", "10.11.6-MariaDB", (10, 11, 6), "ann@%", "shop", "db:3306")
SQLITE = Identity("SQLite", "3.45.0", (3, 45, 0), "", "/var/queue.db", "this machine")
DATABASES = {"PostgreSQL": "postgres", "MariaDB": "mysql", "MySQL": "mysql", "SQLite": "sqlite"}

NOW = datetime(2026, 1, 15, tzinfo=UTC).timestamp()
MIB = 1024 * 1024


def case(who: Identity = POSTGRES, **thresholds: Any) -> Case:
    return Case(
        check="c",
        thresholds=Thresholds(**thresholds),
        dialect=store_for(DATABASES[who.product]).dialect,
        identity=who,
        driver="driver 1.0",
    )


def beat(difference: float = 0.0, *, round_trip: float = 0.002) -> Beat:
    return Beat(round_trip=round_trip, theirs=NOW + difference, ours=NOW)


def levels(findings: Any) -> list[str]:
    return [finding.level.value for finding in findings]


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "round_trip", "level"),
    [
        (0.0, 0.001, "ok"),
        (4.9, 0.001, "ok"),
        (5.1, 0.001, "warning"),
        (-5.1, 0.001, "warning"),
        (5.1, 1.0, "ok"),  # an answer that took so long may be the whole difference
    ],
)
def test_a_clock_that_differs_is_a_warning(
    difference: float, round_trip: float, level: str
) -> None:
    (found,) = server.judge_clock(beat(difference, round_trip=round_trip), case())
    assert found.level == level
    assert found.details["difference_seconds"] == pytest.approx(difference, abs=1e-3)
    assert found.details["error_seconds"] == pytest.approx(round_trip / 2)


def test_a_clock_is_said_to_be_ahead_or_behind() -> None:
    (ahead,) = server.judge_clock(beat(90), case())
    assert ahead.summary == "the database's clock is 90 s ahead of this machine's"
    (behind,) = server.judge_clock(beat(-7200), case())
    assert behind.summary == "the database's clock is 2 h behind this machine's"
    (fine,) = server.judge_clock(beat(90), case(clock_difference=100))
    assert fine.level == "ok"


@pytest.mark.parametrize(
    ("product", "number", "level"),
    [
        ("PostgreSQL", (11, 22), "problem"),
        ("PostgreSQL", (12, 1), "note"),
        ("PostgreSQL", (16, 2), "ok"),
        ("PostgreSQL", (99, 0), "ok"),
        ("MySQL", (5, 7, 44), "problem"),
        ("MySQL", (8, 0, 0), "problem"),
        ("MySQL", (8, 0, 36), "ok"),
        ("MariaDB", (10, 5, 23), "problem"),
        ("MariaDB", (10, 6, 0), "ok"),
        ("SQLite", (3, 34, 1), "problem"),
        ("SQLite", (3, 35, 0), "ok"),
    ],
)
def test_a_server_that_is_too_old_is_a_problem(
    product: str, number: tuple[int, ...], level: str
) -> None:
    who = Identity(product, ".".join(map(str, number)), number, "", "", "")
    assert levels(server.judge_version(beat(), case(who))) == [level]


def test_a_standby_is_a_problem() -> None:
    found = list(server.judge_version(beat(), case(POSTGRES._replace(standby=True))))
    assert levels(found) == ["problem", "ok"]
    assert "primary" in found[0].advice


def test_a_slow_connection_is_a_note() -> None:
    (found,) = server.judge_connection(beat(round_trip=0.25), case())
    assert (found.level, found.details["round_trip_ms"]) == ("note", 250)
    (found,) = server.judge_connection(beat(), case())
    assert found.summary == "postgresql://ann@db:5432/shop answers in 2 ms"


@pytest.mark.parametrize(
    ("version", "number"),
    [
        ("10.11.6-MariaDB-0+deb12u1", (10, 11, 6)),
        ("5.5.5-10.6.12-MariaDB", (10, 6, 12)),
        ("8.0.36", (8, 0, 36)),
        ("9.7.4-2", (9, 7, 4)),
    ],
)
def test_versions_of_mysql_and_mariadb_are_read(version: str, number: tuple[int, ...]) -> None:
    assert number_of(version) == number


# --- settings -------------------------------------------------------------------------------------

SOUND = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "sync_binlog": "1",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
    "read_only": "OFF",
    "wait_timeout": "28800",
    "max_connections": "100",
    "threads_connected": "10",
}


@pytest.mark.parametrize(
    ("changed", "level"),
    [
        ({}, "ok"),
        ({"innodb_flush_log_at_trx_commit": "2"}, "warning"),
        ({"innodb_doublewrite": "OFF"}, "warning"),
        ({"innodb_doublewrite": "DETECT_AND_RECOVER"}, "ok"),
        ({"sync_binlog": "0"}, "note"),
        ({"sync_binlog": "0", "log_bin": "OFF"}, "ok"),
        ({"binlog_format": "STATEMENT"}, "problem"),
        ({"binlog_format": "STATEMENT", "log_bin": "OFF"}, "ok"),
        ({"binlog_format": "MIXED"}, "ok"),
        ({"read_only": "ON"}, "problem"),
        ({"super_read_only": "1"}, "problem"),
        ({"wait_timeout": "10"}, "note"),
    ],
)
def test_settings_of_mysql(changed: dict[str, str], level: str) -> None:
    first, connections = settings.judge_mysql_settings(SOUND | changed, case(MARIADB))
    assert first.level == level
    assert connections.level == "ok"
    assert (first.level == "ok") or all(name in first.summary for name in list(changed)[:1])


def test_a_server_that_is_nearly_full_is_a_warning() -> None:
    values = SOUND | {"threads_connected": "81"}
    *_, found = settings.judge_mysql_settings(values, case(MARIADB))
    assert (found.level, found.details["connections"]) == ("warning", 81)
    *_, found = settings.judge_mysql_settings(values, case(MARIADB, connections=0.9))
    assert found.level == "ok"


@pytest.mark.parametrize(
    ("packet", "payload", "level"),
    [
        (64 * MIB, None, "ok"),
        (MIB, None, "warning"),
        (MIB + 64 * 1024, None, "note"),
        (16 * MIB, 20 * MIB, "warning"),
        (40 * MIB, 20 * MIB, "note"),
    ],
)
def test_a_packet_must_hold_the_largest_payload(
    packet: int, payload: int | None, level: str
) -> None:
    (found,) = settings.judge_packet((packet, payload), case(MARIADB))
    assert found.level == level
    if level != "ok":
        advised = int(found.advice.split("max_allowed_packet = ")[1].split(",")[0])
        assert levels(settings.judge_packet((advised, payload), case(MARIADB))) == ["ok"]


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("fsync", "off", "problem"),
        ("autovacuum", "off", "problem"),
        ("track_counts", "off", "problem"),
        ("synchronous_commit", "off", "warning"),
        ("synchronous_commit", "local", "ok"),
        ("statement_timeout", "30000", "warning"),
        ("statement_timeout", "31000", "ok"),
        ("lock_timeout", "999", "note"),
        ("lock_timeout", "1000", "ok"),
        ("idle_in_transaction_session_timeout", "0", "note"),
        ("idle_in_transaction_session_timeout", "59000", "note"),
        ("idle_in_transaction_session_timeout", "600000", "ok"),
    ],
)
def test_settings_of_postgres(name: str, value: str, level: str) -> None:
    (found,) = settings.judge_postgres_settings({name: Setting(value, "user")}, case())
    assert found.level == level
    assert found.level == "ok" or name in found.summary


@pytest.mark.parametrize(
    ("age", "level"), [(10, "ok"), (1_000_000_001, "warning"), (1_700_000_000, "problem")]
)
def test_transaction_ids_that_run_out(age: int, level: str) -> None:
    for ages in ((age, 0), (0, age)):
        found = list(settings.judge_capacity(Capacity(5, 100, *ages, []), case()))
        assert sorted(levels(found)) == sorted(["ok", level])


def test_an_engine_without_transactions_is_a_problem() -> None:
    good = MySQLTable("rowmq_jobs", "InnoDB", 0, 0, 0, ())
    named = MySQLTable("rowmq_migrations", "InnoDB", 0, 0, 0, ("name",))
    assert levels(settings.judge_engines([good, named], case(MARIADB))) == ["ok"]
    bad = good._replace(engine="MyISAM", text_columns=("queue",))
    assert levels(settings.judge_engines([good, bad], case(MARIADB))) == ["problem", "problem"]


# --- the file of SQLite ---------------------------------------------------------------------------

WELL = SQLiteState("/var/queue.db", "wal", 2, 4096, 100, 0)
LOCAL = file.FileFacts(409_600, 0, "ext4")


def test_a_file_on_a_network_is_a_problem() -> None:
    assert levels(file.judge_file((WELL, LOCAL), case(SQLITE))) == ["ok"]
    remote = LOCAL._replace(file_system="nfs4")
    assert levels(file.judge_file((WELL, remote), case(SQLITE))) == ["problem"]
    unknown = LOCAL._replace(file_system=None)
    assert levels(file.judge_file((WELL, unknown), case(SQLITE))) == ["ok"]


def test_a_file_that_is_not_kept_safe_is_a_warning() -> None:
    for state in (WELL._replace(journal_mode="delete"), WELL._replace(synchronous=1)):
        assert levels(file.judge_file((state, LOCAL), case(SQLITE))) == ["warning"]


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    (tmp_path / "a share").mkdir()
    database = tmp_path / "a share" / "queue.db"
    database.write_bytes(b"x" * 10)
    Path(f"{database}-wal").write_bytes(b"x" * 5)
    mounts = tmp_path / "mounts"
    share = str(tmp_path.resolve() / "a share").replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {share} nfs4 rw 0 0\nbroken\n")
    assert file.look_at_file(str(database), str(mounts)) == (10, 5, "nfs4")
    assert file.look_at_file(str(tmp_path / "none"), str(mounts)) == (0, 0, "ext4")
    assert file.look_at_file(str(database), str(tmp_path / "none")).file_system is None


def test_free_pages_are_noted_only_if_they_are_many() -> None:
    for pages, free, level in ((100, 90, "ok"), (100_000, 60_000, "note"), (100_000, 40_000, "ok")):
        state = WELL._replace(pages=pages, free_pages=free)
        assert levels(file.judge_free_pages(state, case(SQLITE))) == [level]


# --- tables ---------------------------------------------------------------------------------------


def test_tables_that_want_a_migration_are_a_problem() -> None:
    old = SchemaState(1, 3, errors.SchemaTooOld("old"))
    (found,) = tables.judge_schema(old, case())
    assert found.level == "problem"
    assert found.advice.startswith("run: rowmq migrate")
    assert (found.details["version"], found.details["wanted"]) == (1, 3)


def test_empty_space_of_mysql_is_noted_only_if_it_is_much() -> None:
    for free, level in ((MIB, "ok"), (100 * MIB, "note")):
        table = MySQLTable("rowmq_jobs", "InnoDB", 1, 50 * MIB, free, ())
        assert levels(tables.judge_mysql_tables([table], case(MARIADB))) == [level]


def test_migrations_are_read_whatever_they_do() -> None:
    sql = """
        -- RowMQ 0002 more; this is a comment
        CREATE TABLE a (id bigint PRIMARY KEY, x varchar(10), y decimal(1, 2), UNIQUE (x, y));
        CREATE UNIQUE INDEX a_by_y ON a (y);
        CREATE INDEX IF NOT EXISTS a_by_x ON a (x);
        ALTER TABLE a ADD COLUMN z bigint, ADD KEY a_by_z (z), DROP COLUMN x;
        ALTER TABLE a ADD w bigint NOT NULL DEFAULT 0;
        DROP INDEX a_by_x;
        INSERT INTO a (id) VALUES (1);
        CREATE TABLE b (id bigint);
        DROP TABLE b;
        """
    found = blueprint_of([Migration(version=2, name="more", sql=sql)])
    assert found.columns == {"a": ["id", "y", "z", "w"]}
    assert [(key.name, key.columns, key.unique) for key in found.keys] == [
        (None, ("id",), True),
        (None, ("x", "y"), True),
        ("a_by_y", ("y",), True),
        ("a_by_z", ("z",), False),
    ]
    assert found.keys[1].statement == "ALTER TABLE a ADD UNIQUE (x, y)"
    assert found.keys[3].statement == "ALTER TABLE a ADD KEY a_by_z (z)"


@pytest.mark.parametrize("database", ["postgres", "mysql", "sqlite"])
def test_every_table_of_the_migrations_is_read(database: str) -> None:
    store = store_for(database)
    found = blueprint_of(store.schema.migrations())
    examination = EXAMINATIONS[database](store.dialect, store.schema)
    assert set(found.columns) == set(examination.tables())
    indexed = {key.table for key in found.keys}
    assert indexed == set(found.columns)


# --- transactions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("SELECT 1", "SELECT ?"),
        ("SELECT * FROM t WHERE id = 42 AND a1 = $1", "SELECT * FROM t WHERE id = ? AND a1 = $1"),
        ("UPDATE u SET p = 'hunter2' WHERE n = 'it''s'", "UPDATE u SET p = ? WHERE n = ?"),
        ("SET x = 'a secret that was cut o", "SET x = ?"),
        ("SELECT $$secret$$, $q$more$q$", "SELECT ?, ?"),
        ("SELECT 'x', \"column\" FROM t", 'SELECT ?, "column" FROM t'),
        ("SELECT 'C:\\', 'secret'", "SELECT ?"),
        ("SELECT E'it\\'s', 'secret'", "SELECT E?"),
        ("SELECT x -- \\", "SELECT x"),
        ("SELECT -- don't\n 'secret'", "SELECT ?"),
        ("SELECT /* don't */ 'secret', 'a--b', 'secret'", "SELECT ?, ?, ?"),
        ("SELECT\n  x\n  FROM t", "SELECT x FROM t"),
        (None, None),
        ("", None),
    ],
)
def test_a_statement_is_shown_without_its_values(statement: str | None, shown: str | None) -> None:
    assert shortened(statement) == shown


def test_what_mysql_takes_for_a_string_is_not_shown() -> None:
    assert shortened('SET PASSWORD = "secret"', mysql=True) == "SET PASSWORD = ?"
    assert shortened('SET PASSWORD = "secr', mysql=True) == "SET PASSWORD = ?"
    assert shortened("SELECT `a`, 0x4142", mysql=True) == "SELECT `a`, ?"
    assert shortened("SELECT # don't\n 'secret'", mysql=True) == "SELECT ?"


def test_a_statement_is_shown_in_part_only() -> None:
    shown = shortened("SELECT " + "column_name, " * 20 + "last FROM t")
    assert shown is not None
    assert len(shown) == 60


def test_slots_that_keep_old_rows_are_warnings() -> None:
    slots = [
        Slot("standby_1", True, 10, "slot"),
        Slot("o'old", False, 2_000_000, "slot"),
        Slot("replica", True, 3_000_000, "standby"),
    ]
    slot, standby = transactions.judge_slots(slots, case())
    assert levels([slot, standby]) == ["warning", "warning"]
    assert "pg_drop_replication_slot('o''old')" in slot.advice
    assert "hot_standby_feedback" in standby.advice
    assert levels(transactions.judge_slots(slots[:1], case())) == ["ok"]


def test_a_long_history_is_a_warning() -> None:
    assert levels(transactions.judge_history(1_000_000, case(MARIADB))) == ["ok"]
    assert levels(transactions.judge_history(1_000_001, case(MARIADB))) == ["warning"]


# --- workers --------------------------------------------------------------------------------------


def test_a_worker_that_died_matters_less_if_another_is_there() -> None:
    def worker(name: str, *, alive: bool) -> WorkerInfo:
        at = datetime(2026, 1, 15, tzinfo=UTC)
        facts = {"app": "shop", "host": "h", "pid": 1, "version": "1", "handlers": ()}
        times = {"started_at": at, "seen_at": at}
        return WorkerInfo(name=name, alive=alive, running=(), **facts, **times)  # type: ignore[arg-type]

    dead, live = worker("a", alive=False), worker("b", alive=True)
    assert levels(work.judge_workers([dead], case())) == ["warning"]
    assert levels(work.judge_workers([dead, live], case())) == ["note"]
    assert levels(work.judge_workers([live], case())) == ["ok"]


def test_lag_is_at_least_so_much_where_not_all_keys_were_seen() -> None:
    seen = GroupState("t", "g", 1, 0, 500_000, 0, 0, None, keeps_books=False)
    assert levels(work.judge_groups([seen], case())) == ["ok"]
    for partly in (seen._replace(capped=True), seen._replace(oldest_capped=True)):
        (note,) = work.judge_groups([partly, seen], case())
        assert note.level is Level.NOTE
        assert "at least" in note.summary
    capped = seen._replace(capped=True, oldest_capped=True, lag=7, expired=2, oldest_seconds=60.0)
    lost, note = work.judge_groups([capped], case())
    assert "retention took 2 messages" in lost.summary
    assert "at least 7 messages behind, the oldest at least 60 s old" in note.summary
    (far,) = work.judge_groups([capped._replace(expired=0)], case(lag_messages=5))
    assert far.level is Level.WARNING
    assert "at least 7 messages behind" in far.summary
    assert levels(work.judge_groups([seen] * ROWS_MAX, case())) == ["note"]


# --- the report -----------------------------------------------------------------------------------


def finding(level: Level, summary: str = "s") -> Finding:
    return Finding(check="c", level=level, summary=summary)


def test_a_checkup_is_as_bad_as_its_worst_finding() -> None:
    order = [Level.OK, Level.NOTE, Level.WARNING, Level.PROBLEM]
    for number, level in enumerate(order):
        checkup = Checkup(findings=tuple(finding(known) for known in order[: number + 1]))
        assert checkup.level is level
        assert checkup.healthy == (level in (Level.OK, Level.NOTE))
        assert (len(checkup), len(checkup.of("c")), checkup.of("d")) == (number + 1, number + 1, [])
    assert Checkup(findings=()).healthy


def test_of_many_findings_the_worst_are_told() -> None:
    many = [finding(Level.NOTE)] * 30 + [finding(Level.PROBLEM, "bad")]
    told = list(worst(many, case()))
    assert len(told) == FINDINGS_MAX + 1
    assert (told[0].summary, told[-1].details) == ("bad", {"others": 11})


def test_a_missing_right_is_told_as_the_grant_that_gives_it() -> None:
    class Refused(Exception):
        sqlstate = "42501"

    error = errors.DatabaseError("refused")
    error.__cause__ = Refused()
    parts = {check.name: check.parts for check in CHECKS}
    for who, check, grant in (
        (POSTGRES, "lag", 'GRANT SELECT ON ALL TABLES IN SCHEMA "public" TO "ann"'),
        (POSTGRES, "transactions", 'GRANT pg_monitor TO "ann"'),
        (MARIADB, "lag", "GRANT SELECT ON `shop`.* TO 'ann'@'%'"),
        (MARIADB, "transactions", "GRANT PROCESS ON *.* TO 'ann'@'%'"),
    ):
        part = parts[check][DATABASES[who.product]][0]
        found = not_seen(error, part, case(who))
        assert (found.level, found.details["right"]) == ("note", grant)
        assert grant in found.advice


@pytest.mark.parametrize(
    ("cause", "denied"),
    [
        (Exception(1142, "SELECT command denied"), True),
        (Exception(1227, "you need PROCESS"), True),
        (Exception(1205, "lock wait timeout"), False),
        (None, False),
    ],
)
def test_only_a_refusal_is_taken_for_a_missing_right(cause: Exception | None, denied: bool) -> None:
    error = errors.DatabaseError("refused")
    error.__cause__ = cause
    assert is_denied(error) == denied
    found = not_seen(error, CHECKS[5].parts["mysql"][0], case(MARIADB))
    assert ("right" in found.details, found.level) == (denied, "note" if denied else "warning")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0000247, "less than 0.1 ms"),
        (0.0004, "0.4 ms"),
        (0.00062, "0.6 ms"),
        (0.1348, "135 ms"),
        (1, "1 s"),
        (90, "90 s"),
        (300, "5 min"),
        (10_800, "3 h"),
        (345_600, "4 days"),
    ],
)
def test_times_are_said_as_people_do(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_sizes_and_numbers_are_said_as_people_do() -> None:
    assert [size(n) for n in (0, 1023, 2048, 5 * MIB, 3 * 1024**4)] == [
        "0 bytes", "1023 bytes", "2 KiB", "5 MiB", "3 TiB",
    ]  # fmt: skip
    assert [count(1, "index", "indexes"), count(2_000, "job")] == ["1 index", "2,000 jobs"]


def test_the_documentation_lists_every_check_threshold_and_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    for check in CHECKS:
        assert f"\n### {check.name}\n" in page
    for name, value in threshold_defaults().items():
        row = re.search(rf"^\| `{name}` \| ([\d.,]+) ?(s|min|MiB)? ", page, re.MULTILINE)
        assert row is not None, name
        unit = {"min": 60, "MiB": MIB}.get(row[2], 1)
        assert float(row[1].replace(",", "")) * unit == value, name
    assert f"\n| {int(Code.UNHEALTHY)} | there are warnings or problems |" in page


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROWMQ_URL", "ROWMQ_PREFIX", "ROWMQ_SCHEMA"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *arguments])


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'queue.db'}"
    rowmq.connect(made).close()
    return made


def test_the_list_needs_no_database() -> None:
    result = run("--list")
    assert result.exit_code == 0
    for check in CHECKS:
        assert check.name in result.stdout
    assert "long_transaction" in result.stdout


def test_the_list_is_json_for_programs() -> None:
    for words in (["--list", "--json"], ["--json", "--list"]):
        told = json.loads(run(*words).stdout)
        assert [check["check"] for check in told["checks"]] == [check.name for check in CHECKS]
        assert told["thresholds"]["long_transaction"] == 60


def test_a_healthy_file_is_told_so(url: str) -> None:
    result = run("--url", url)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[-1] == "healthy"
    # The name of the file may be so long that its line goes on in the next.
    assert all(line.startswith(("✓ ", " " * 14)) for line in lines[:-2])
    titles = [line[2:14].strip() for line in lines[:-2]]
    assert [title for title in titles if title] == [check.name for check in CHECKS]


def test_the_answer_in_json_is_whole(url: str) -> None:
    result = run("--url", url, "--json", "--check", "schema", "--check", "clock")
    told = json.loads(result.stdout)
    assert (told["healthy"], told["level"]) == (True, "ok")
    assert [f["check"] for f in told["findings"]] == ["schema", "schema", "clock"]
    assert set(told["findings"][0]) == {"check", "level", "summary", "details", "advice"}


@pytest.mark.parametrize(
    "wrong",
    ["lag_age", "lag_age=", "no_such=1", "lag_age=soon", "connections=many", "failures=few"],
)
def test_a_threshold_that_makes_no_sense_is_a_wrong_call(url: str, wrong: str) -> None:
    result = run("--url", url, "--threshold", wrong)
    assert result.exit_code == 2
    assert "--threshold" in result.stderr


def test_thresholds_are_written_as_elsewhere(url: str) -> None:
    given = ["lag_age=5m", "wal_bytes=64MiB", "connections=0.5", "failures=3", "expired=90"]
    flags = [word for pair in given for word in ("--threshold", pair)]
    assert run("--url", url, *flags).exit_code == 0


def test_a_threshold_out_of_its_range_is_refused(url: str) -> None:
    result = run("--url", url, "--threshold", "connections=7")
    assert result.exit_code == 1
    assert "InvalidOption: connections" in result.stderr


def test_what_cannot_be_examined_is_an_error(tmp_path: Path) -> None:
    nowhere = "postgresql://ann:secret@127.0.0.1:1/shop?connect_timeout=2"
    result = run("--url", nowhere)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "DatabaseUnreachable" in result.stderr
    assert "secret" not in result.stderr
    missing = run("--url", f"sqlite:///{tmp_path / 'none.db'}")
    assert missing.exit_code == 3
    assert not (tmp_path / "none.db").exists()


def test_what_was_published_cannot_act_on_the_terminal(url: str) -> None:
    with rowmq.connect(url) as mq:
        queue = mq.queue("q")
        queue.put(1)
        job = queue.try_poll()
        assert job is not None
        job.reject(error="\x1b[2Jboo [bold]x[/]")
    result = run("--url", url, "--check", "failures")
    assert result.exit_code == 4
    assert "\x1b" not in result.stdout
    assert "boo [bold]x[/]" in result.stdout
