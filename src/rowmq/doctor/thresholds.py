"""From when on `doctor` calls something a warning."""

import typing

import msgspec

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.times import Duration, to_seconds

__all__ = ["Thresholds", "check_thresholds", "threshold_defaults"]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` measures findings by. Times are seconds or timedeltas, shares are from 0 to 1.

    - `round_trip`: how long the database may take to answer;
    - `clock_difference`: by how much its clock may differ from this machine's;
    - `long_transaction`: how long a transaction may be open; ten times that is a problem;
    - `write_lock`: how long to try for SQLite's write lock;
    - `lag_age`, `lag_messages`: how old a message may get before its group has acked it, and how
      many may wait;
    - `unattended`: for how long messages, or due jobs, or a schedule may wait with nobody there;
    - `due_age`: for how long a job may be due before it is claimed;
    - `expired`: for how long a lease or a lock may have run out before somebody takes it over;
    - `deliveries`: how often a job may be handed out without being settled;
    - `failures`: how many dead letters, or jobs that failed during the last day, are too many;
    - `connections`: which share of the server's connections may be in use;
    - `dead_rows`: which share of a table's rows may be dead, if there are ten thousand of them;
    - `history`: how many old versions of rows MySQL and MariaDB may keep;
    - `transaction_ids`: the age of PostgreSQL's oldest transaction id;
    - `free_space`: which share of a file or table may be empty, if it is 64 MiB or more;
    - `wal_bytes`: how large SQLite's write-ahead log may get;
    - `integrity_bytes`: up to which size SQLite's file is read for damage.
    """

    round_trip: Duration = 0.1
    clock_difference: Duration = 5.0
    long_transaction: Duration = 60.0
    write_lock: Duration = 1.0
    lag_age: Duration = 600.0
    lag_messages: int = 100_000
    unattended: Duration = 120.0
    due_age: Duration = 600.0
    expired: Duration = 60.0
    deliveries: int = 5
    failures: int = 1
    connections: float = 0.8
    dead_rows: float = 0.4
    history: int = 1_000_000
    transaction_ids: int = 1_000_000_000
    free_space: float = 0.5
    wal_bytes: int = 256 * 1024 * 1024
    integrity_bytes: int = 16 * 1024 * 1024

    def seconds(self, name: str) -> float:
        """A threshold that is a time, in seconds."""
        return to_seconds(getattr(self, name), name=name)


def check_thresholds(thresholds: Thresholds | None) -> Thresholds:
    """Thresholds whose values make sense; the usual ones for None. Raises `InvalidOption`."""
    if thresholds is None:
        return Thresholds()
    if not isinstance(thresholds, Thresholds):
        raise InvalidOption(f"thresholds must be rowmq.Thresholds(...), not {quoted(thresholds)}")
    for name, kind in typing.get_type_hints(Thresholds).items():
        value = getattr(thresholds, name)
        if kind == Duration:
            to_seconds(value, name=name)
        elif kind is int and (type(value) is not int or value < 0):
            raise InvalidOption(f"{name} must be a whole number from 0 on, not {quoted(value)}")
        elif kind is float and (type(value) not in (int, float) or not 0 <= value <= 1):
            raise InvalidOption(f"{name} must be a share from 0 to 1, not {quoted(value)}")
    return thresholds


def threshold_defaults() -> dict[str, float]:
    """The name and the usual value of every threshold."""
    return msgspec.to_builtins(Thresholds())  # type: ignore[no-any-return]
