"""The server: how it is reached, whether it is new enough, and what its clock says."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import NamedTuple

from rowmq.doctor.case import Case
from rowmq.doctor.wording import duration
from rowmq.message import Finding
from rowmq.store.doctor_facts import Identity

__all__ = ["Beat", "judge_clock", "judge_connection", "judge_version"]

# What the statements need: AS MATERIALIZED on PostgreSQL, SKIP LOCKED on the others, RETURNING on
# SQLite.
VERSIONS_MIN = {
    "PostgreSQL": (12,),
    "MySQL": (8, 0, 1),
    "MariaDB": (10, 6),
    "SQLite": (3, 35),
}

# When the project stops to mend a version, where it has said so.
LAST_DAYS = {
    ("PostgreSQL", (12,)): date(2024, 11, 21),
    ("PostgreSQL", (13,)): date(2025, 11, 13),
    ("PostgreSQL", (14,)): date(2026, 11, 12),
    ("PostgreSQL", (15,)): date(2027, 11, 11),
    ("PostgreSQL", (16,)): date(2028, 11, 9),
    ("PostgreSQL", (17,)): date(2029, 11, 8),
    ("MySQL", (8, 0)): date(2026, 4, 30),
    ("MySQL", (8, 4)): date(2032, 4, 30),
    ("MariaDB", (10, 6)): date(2026, 7, 6),
    ("MariaDB", (10, 11)): date(2028, 2, 16),
    ("MariaDB", (11, 4)): date(2029, 5, 29),
}


class Beat(NamedTuple):
    """The database's clock, asked once: how long it took, and what this machine's clock said in
    the middle of that. All in seconds.
    """

    round_trip: float
    theirs: float
    ours: float

    @property
    def difference(self) -> float:
        """By how much their clock is ahead; right to half the round trip."""
        return self.theirs - self.ours


def judge_connection(beat: Beat, case: Case) -> Iterator[Finding]:
    who = case.identity
    said = duration(beat.round_trip)
    details = {
        "url": url_of(who, case.dialect.name),
        "server": who.place,
        "driver": case.driver,
        "round_trip_ms": round(beat.round_trip * 1000, 3),
    }
    if beat.round_trip > case.thresholds.seconds("round_trip"):
        yield case.note(
            f"{who.product} answers only after {said}",
            "every publish, poll and settle waits at least that long: run the application nearer "
            "to the database, and send many at a time (publish_many, put_many, poll(max=...))",
            **details,
        )
    else:
        yield case.ok(f"{details['url']} answers in {said}", **details)


def url_of(who: Identity, database: str) -> str:
    """What is connected to, as a URL without a password."""
    if database == "sqlite":
        return f"sqlite:///{who.database}" if who.database != ":memory:" else "sqlite://"
    scheme = {"PostgreSQL": "postgresql", "MySQL": "mysql", "MariaDB": "mariadb"}[who.product]
    host = "" if who.place == "local socket" else who.place
    user = who.user.partition("@")[0]
    return f"{scheme}://{user}@{host}/{who.database}"


def judge_version(beat: Beat, case: Case) -> Iterator[Finding]:
    who = case.identity
    least = VERSIONS_MIN[who.product]
    details = {"version": who.version, "least": ".".join(map(str, least))}
    if who.standby:
        yield case.problem(
            "this server is a standby: it only reads",
            "connect to the primary; with several hosts in the URL, add "
            "target_session_attrs=read-write",
            **details,
        )
    if who.number[: len(least)] < least:
        yield case.problem(
            f"{who.product} {who.version} is too old: RowMQ needs {details['least']} or newer",
            f"upgrade {who.product}",
            **details,
        )
        return
    last = last_day(who)
    if last is not None and last < datetime.fromtimestamp(beat.theirs, UTC).date():
        yield case.note(
            f"{who.product} {who.version} has not been supported by its makers since {last}",
            f"plan an upgrade of {who.product}: it gets no more security fixes",
            **details,
        )
    else:
        yield case.ok(f"{who.product} {who.version}", **details)


def last_day(who: Identity) -> date | None:
    """When the support of a server's version ends, if that is known."""
    for (product, version), day in LAST_DAYS.items():
        if product == who.product and who.number[: len(version)] == version:
            return day
    return None


def judge_clock(beat: Beat, case: Case) -> Iterator[Finding]:
    off = beat.difference
    bound = beat.round_trip / 2
    details = {"difference_seconds": round(off, 6), "error_seconds": round(bound, 6)}
    if abs(off) - bound > case.thresholds.seconds("clock_difference"):
        ahead = "ahead of" if off > 0 else "behind"
        yield case.warning(
            f"the database's clock is {duration(abs(off))} {ahead} this machine's",
            "run NTP or chrony on both. RowMQ itself only uses the database's clock, but a time "
            "that an application takes from its own clock, as in put(at=...) or seek(to=...), is "
            "off by as much; delay= is not",
            **details,
        )
    else:
        yield case.ok(
            f"the database's clock and this machine's differ by {duration(abs(off))}, "
            f"give or take {duration(bound)}",
            **details,
        )
