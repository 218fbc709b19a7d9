"""`mq.doctor()`: take each check in turn, and let none of them stop the others."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rowmq.doctor.case import Case
from rowmq.doctor.checks import CHECKS, EXAMINATIONS, Check, Part, Patient
from rowmq.doctor.server import Beat
from rowmq.doctor.thresholds import Thresholds, check_thresholds
from rowmq.drivers.base import AsyncDriver, Steps, SyncDriver, take_steps, take_steps_async
from rowmq.engine import DRIVERS, Engine
from rowmq.errors import Closed, DatabaseUnreachable, InvalidOption, RowMQError
from rowmq.message import Checkup, Finding, Level
from rowmq.quoting import quoted
from rowmq.store.doctor import Examination
from rowmq.store.doctor_facts import Identity
from rowmq.store.statement import Operation

__all__ = ["AsyncExamining", "Examining"]

BEATS = 3
"""How often the clock is asked: the quickest answer tells the most."""

FINDINGS_MAX = 20
"""How many findings a part may have: the worst ones are told, and how many others there are."""

DENIED_STATES = {"42501"}
DENIED_NUMBERS = {1044, 1142, 1143, 1227, 1370}

Run = Callable[[Callable[[], Operation[Any]]], Any]


class Examining:
    """The examination, for sync code."""

    _engine: Engine[SyncDriver]

    def doctor(
        self, *, checks: Iterable[str] | None = None, thresholds: Thresholds | None = None
    ) -> Checkup:
        """Examine the database, its settings, RowMQ's tables, and the work that is in them.

        All checks, or those that are named; measured by `thresholds`. It changes nothing, and is
        cheap on tables of any size. A check that cannot be made, for want of a right, is a note
        that names the right. Raises `InvalidOption`, and `DatabaseUnreachable` if there is nobody
        to examine.
        """
        engine = self._engine
        return take_steps(
            checkup_steps(
                partial(engine.driver.run, retry_for=0),
                EXAMINATIONS[engine.database](engine.store.dialect, engine.store.schema),
                driver=driver_of(engine.database, kind=0),
                checks=check_names(checks),
                thresholds=check_thresholds(thresholds),
            )
        )


class AsyncExamining:
    """The examination, for async code."""

    _engine: Engine[AsyncDriver]

    async def doctor(
        self, *, checks: Iterable[str] | None = None, thresholds: Thresholds | None = None
    ) -> Checkup:
        """Examine the database and the work that is in it: see `RowMQ.doctor`."""
        engine = self._engine
        engine.driver.check_loop()
        return await take_steps_async(
            checkup_steps(
                partial(engine.driver.run, retry_for=0),
                EXAMINATIONS[engine.database](engine.store.dialect, engine.store.schema),
                driver=driver_of(engine.database, kind=1),
                checks=check_names(checks),
                thresholds=check_thresholds(thresholds),
            )
        )


def check_names(names: Iterable[str] | None) -> list[Check]:
    """The checks of some names, in the order of the report; all for None."""
    if names is None:
        return list(CHECKS)
    if not isinstance(names, Iterable):
        raise InvalidOption(f"checks must be a list of names, not {quoted(names)}")
    wanted = [names] if isinstance(names, str) else list(names)
    known = [check.name for check in CHECKS]
    for name in wanted:
        if name not in known:
            raise InvalidOption(f"there is no check {quoted(name)}; there are {', '.join(known)}")
    return [check for check in CHECKS if check.name in wanted]


def driver_of(database: str, *, kind: int) -> str:
    """The driver of a database, for sync (0) or async (1) code, and its version."""
    if database not in DRIVERS:
        return "sqlite3"
    name = DRIVERS[database][kind]
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:  # bundled by other means than a package
        return name


# --- the course of an examination, as steps -------------------------------------------------------


def checkup_steps(
    run: Run,
    examination: Examination,
    *,
    driver: str,
    checks: list[Check],
    thresholds: Thresholds,
) -> Steps[Checkup]:
    """Make the checks one after the other."""
    identity: Identity = yield partial(run, examination.identity)
    beat = yield from measure(run, examination)
    patient = Patient(run, examination, thresholds, beat)
    there = yield from has_tables(run, examination)
    findings: list[Finding] = []
    for check in checks:
        case = Case(
            check=check.name,
            thresholds=thresholds,
            dialect=examination.dialect,
            identity=identity,
            driver=driver,
        )
        parts = [p for p in check.parts[examination.dialect.name] if there or not p.tables]
        if not parts:
            findings.append(case.note("there are no tables to look at", "run: rowmq migrate"))
        for part in parts:
            findings += yield from examine(part, patient, case)
    return Checkup(findings=tuple(findings))


def measure(run: Run, examination: Examination) -> Steps[Beat]:
    """Ask for the database's clock some times, and keep the quickest answer."""
    best: Beat | None = None
    for _ in range(BEATS):
        wall, begun = time.time(), time.perf_counter()
        theirs = yield partial(run, examination.clock)
        took = time.perf_counter() - begun
        beat = Beat(round_trip=took, theirs=theirs / 1_000_000, ours=wall + took / 2)
        best = beat if best is None or took < best.round_trip else best
    assert best is not None  # noqa: S101 - BEATS is not 0
    return best


def has_tables(run: Run, examination: Examination) -> Steps[bool]:
    try:
        found: int = yield partial(run, examination.schema.version)
    except (Closed, DatabaseUnreachable):
        raise
    except RowMQError:
        return True  # they are there, and may not be read
    return found > 0


def examine(part: Part, patient: Patient, case: Case) -> Steps[list[Finding]]:
    """What a part finds, or why it cannot."""
    try:
        seen = yield from part.look(patient)
    except (Closed, DatabaseUnreachable):
        raise
    except RowMQError as error:
        return [not_seen(error, part, case)]
    return list(worst(list(part.judge(seen, case)), case))


def worst(found: list[Finding], case: Case) -> Iterator[Finding]:
    """The worst findings, and how many others there are."""
    order = list(Level)
    ranked = sorted(found, key=lambda finding: -order.index(finding.level))
    yield from ranked[:FINDINGS_MAX]
    if others := ranked[FINDINGS_MAX:]:
        yield case.note(
            f"and {len(others)} more like these",
            "mend the ones above first, and look again",
            others=len(others),
        )


def not_seen(error: RowMQError, part: Part, case: Case) -> Finding:
    """A note for a part that may not be looked at, and a warning for one that cannot be."""
    if is_denied(error):
        right = (part.right or reading_right(case)).format(user=quoted_user(case))
        return case.note(
            "part of this check could not be made: this user has not the right to look",
            f"have an administrator run: {right}",
            error=str(error),
            right=right,
        )
    return case.warning(
        f"part of this check could not be made: {error}",
        "run it again; if it stays so, see the server's log",
        error=str(error),
    )


def is_denied(error: BaseException | None) -> bool:
    """Whether the server refused something for want of a right."""
    while error is not None:
        if getattr(error, "sqlstate", None) in DENIED_STATES:
            return True
        if error.args and error.args[0] in DENIED_NUMBERS:
            return True
        error = error.__cause__
    return False


def reading_right(case: Case) -> str:
    """What lets a user read our tables."""
    if case.dialect.name == "mysql":
        return f"GRANT SELECT ON `{case.identity.database}`.* TO {{user}}"
    return f'GRANT SELECT ON ALL TABLES IN SCHEMA "{case.dialect.schema or "public"}" TO {{user}}'


def quoted_user(case: Case) -> str:
    """The user as GRANT wants it."""
    if case.dialect.name == "mysql":
        name, _, host = case.identity.user.rpartition("@")
        return f"'{name}'@'{host}'"
    return f'"{case.identity.user}"'
