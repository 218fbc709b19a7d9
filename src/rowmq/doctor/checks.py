"""Every check: what it is called and about, what it looks at, and who judges what was seen.

A check has parts, which fail one by one: where a right is missing for one, the others still tell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rowmq.doctor import file, server, settings, tables, transactions, work
from rowmq.doctor.case import Case
from rowmq.doctor.server import Beat
from rowmq.doctor.thresholds import Thresholds
from rowmq.drivers.base import Steps
from rowmq.message import Finding
from rowmq.store.doctor import Examination
from rowmq.store.doctor_mysql import MySQLExamination
from rowmq.store.doctor_postgres import PostgresExamination
from rowmq.store.doctor_sqlite import SQLiteExamination
from rowmq.store.statement import Operation

__all__ = ["CHECKS", "EXAMINATIONS", "Check", "Part", "Patient"]

EXAMINATIONS: dict[str, type[Examination]] = {
    "postgres": PostgresExamination,
    "mysql": MySQLExamination,
    "sqlite": SQLiteExamination,
}


class Patient(NamedTuple):
    """Whom a part looks at."""

    run: Callable[[Callable[[], Operation[Any]]], Any]
    examination: Any
    """That of its database."""
    thresholds: Thresholds
    beat: Beat


Look = Callable[[Patient], Steps[Any]]
Judge = Callable[[Any, Case], Iterable[Finding]]


class Part(NamedTuple):
    """Figures, and what they mean."""

    look: Look
    judge: Judge
    right: str = ""
    """What is needed to see them, where reading our tables is not enough."""
    tables: bool = False
    """Whether there is something to see only if RowMQ's tables are there."""


class Check(NamedTuple):
    """One thing to check; its parts by database."""

    name: str
    about: str
    parts: Mapping[str, Sequence[Part]]


def asked(operation: Callable[[Any], Operation[Any]]) -> Look:
    """What one operation tells."""
    return measured(lambda examination, _: operation(examination))


def measured(operation: Callable[[Any, Thresholds], Operation[Any]]) -> Look:
    """What one operation tells that is given thresholds."""

    def look(patient: Patient) -> Steps[Any]:
        make = partial(operation, patient.examination, patient.thresholds)
        return (yield partial(patient.run, make))

    return look


def everywhere(*parts: Part) -> dict[str, Sequence[Part]]:
    return dict.fromkeys(EXAMINATIONS, parts)


def inside(operation: Callable[[Any], Operation[Any]], judge: Judge) -> Part:
    """A part that looks into RowMQ's tables, by one operation."""
    return Part(asked(operation), judge, tables=True)


# --- looks of more than one operation -------------------------------------------------------------


def look_at_beat(patient: Patient) -> Steps[Beat]:
    """What was measured at the beginning."""
    yield from ()
    return patient.beat


def look_at_packet(patient: Patient) -> Steps[tuple[int, int | None]]:
    values = yield partial(patient.run, patient.examination.settings)
    payload = yield partial(patient.run, patient.examination.largest_payload)
    return int(values["max_allowed_packet"]), payload


def look_at_sqlite(patient: Patient) -> Steps[Any]:
    state = yield partial(patient.run, patient.examination.state)
    return state, file.look_at_file(state.path) if state.path else None


def look_at_log(patient: Patient) -> Steps[Any]:
    _, found = yield from look_at_sqlite(patient)
    found = found or file.FileFacts(0, 0, None)
    if found.log_bytes <= patient.thresholds.wal_bytes:
        return found, None
    return found, (yield partial(patient.run, patient.examination.checkpoint))


def look_for_damage(patient: Patient) -> Steps[Any]:
    state, found = yield from look_at_sqlite(patient)
    found = found or file.FileFacts(state.pages * state.page_bytes, 0, None)
    if found.file_bytes > patient.thresholds.integrity_bytes:
        return found, None
    return found, (yield partial(patient.run, patient.examination.quick_check))


# --- all checks, in the order of the report -------------------------------------------------------

MONITOR = "GRANT pg_monitor TO {user}"
PROCESS = "GRANT PROCESS ON *.* TO {user}"

long_transactions = partial(Thresholds.seconds, name="long_transaction")

CHECKS = (
    Check(
        "connection",
        "what is connected to, by which driver, and how long an answer takes",
        everywhere(Part(look_at_beat, server.judge_connection)),
    ),
    Check(
        "version",
        "whether the server is new enough, and still supported",
        everywhere(Part(look_at_beat, server.judge_version)),
    ),
    Check(
        "settings",
        "settings that lose commits, hold up the clean-up, or refuse RowMQ's work",
        {
            "postgres": (
                Part(asked(PostgresExamination.settings), settings.judge_postgres_settings),
                Part(asked(PostgresExamination.capacity), settings.judge_capacity, MONITOR),
            ),
            "mysql": (
                Part(asked(MySQLExamination.settings), settings.judge_mysql_settings),
                Part(look_at_packet, settings.judge_packet, tables=True),
                inside(MySQLExamination.table_states, settings.judge_engines),
            ),
            "sqlite": (
                Part(look_at_sqlite, file.judge_file),
                Part(look_at_log, file.judge_log),
                Part(look_for_damage, file.judge_integrity),
            ),
        },
    ),
    Check(
        "schema",
        "whether the tables are those of this release, and complete",
        everywhere(
            Part(asked(Examination.version), tables.judge_schema),
            inside(Examination.catalogue, tables.judge_tables),
        ),
    ),
    Check(
        "indexes",
        "whether every index is there, valid, and on the right columns",
        everywhere(inside(Examination.catalogue, tables.judge_indexes)),
    ),
    Check(
        "lag",
        "groups that are behind, that nobody consumes, or that lost messages to retention",
        everywhere(inside(Examination.groups, work.judge_groups)),
    ),
    Check(
        "failures",
        "dead letters and failed jobs, and why they failed",
        everywhere(
            inside(Examination.letters, work.judge_letters),
            inside(Examination.failed, work.judge_failed),
        ),
    ),
    Check(
        "stuck",
        "leases and locks of those who are gone, jobs that nobody claims or settles, pauses",
        everywhere(
            inside(Examination.stale_subscribers, work.judge_subscribers),
            inside(Examination.expired_locks, work.judge_locks),
            Part(
                measured(lambda e, t: e.stuck_jobs(deliveries=t.deliveries)),
                work.judge_stuck_jobs,
                tables=True,
            ),
            inside(Examination.queues, work.judge_queues),
            inside(Examination.left_holds, work.judge_holds),
        ),
    ),
    Check(
        "transactions",
        "transactions and replication slots that keep deleted rows from being cleaned up",
        {
            "postgres": (
                Part(
                    measured(lambda e, t: e.activity(seconds=long_transactions(t))),
                    transactions.judge_activity,
                    MONITOR,
                ),
                Part(
                    measured(lambda e, t: e.prepared(seconds=long_transactions(t))),
                    transactions.judge_prepared,
                    MONITOR,
                ),
                Part(asked(PostgresExamination.slots), transactions.judge_slots, MONITOR),
            ),
            "mysql": (
                Part(
                    measured(lambda e, t: e.activity(seconds=long_transactions(t))),
                    transactions.judge_mysql_activity,
                    PROCESS,
                ),
                Part(asked(MySQLExamination.history), transactions.judge_history, PROCESS),
            ),
            "sqlite": (
                Part(
                    measured(lambda e, t: e.write_lock(seconds=t.seconds("write_lock"))),
                    transactions.judge_write_lock,
                ),
            ),
        },
    ),
    Check(
        "clock",
        "by how much the database's clock differs from this machine's",
        everywhere(Part(look_at_beat, server.judge_clock)),
    ),
    Check(
        "bloat",
        "dead rows and empty space, and how large the tables are",
        {
            "postgres": (inside(PostgresExamination.table_states, tables.judge_postgres_tables),),
            "mysql": (inside(MySQLExamination.table_states, tables.judge_mysql_tables),),
            "sqlite": (Part(asked(SQLiteExamination.state), file.judge_free_pages),),
        },
    ),
    Check(
        "schedules",
        "schedules that are late, since nobody tends them, or paused",
        everywhere(inside(Examination.schedules, work.judge_schedules)),
    ),
    Check(
        "workers",
        "workers that have died, and different versions at work",
        everywhere(inside(Examination.workers, work.judge_workers)),
    ),
)
