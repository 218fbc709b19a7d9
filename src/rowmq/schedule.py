"""When a schedule fires: cron expressions, times of day, and periods, as pure functions.

Nothing here reads a clock: every function is given a time, in microseconds since 1970, UTC, which
comes from the database. So the same question has the same answer on every machine.

A time of day in a zone may not exist on a day, or exist twice. The rule for both, the one of
Debian's cron: what does not exist fires at the first moment after the gap, and what exists twice
fires once, at the first. An expression whose minute or hour begins with a star runs by the interval
and not by the time of day: it fires as often as the clock on the wall shows a time that it names.
"""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import count, islice
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.times import Duration, from_micros, to_micros, to_seconds

__all__ = [
    "CATCH_UPS",
    "CatchUp",
    "Due",
    "Expression",
    "Period",
    "Spec",
    "TimesOfDay",
    "Timing",
    "catch_up",
    "check_catch_up",
    "cron_of",
    "daily_of",
    "describe",
    "expression_of",
    "last_until",
    "next_after",
    "periodic_of",
    "preview",
    "zone_of",
]

CatchUp = Literal["latest", "all", "none"]
CATCH_UPS: tuple[CatchUp, ...] = ("latest", "all", "none")

PERIOD_SECONDS_MIN = 0.1

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

EXPRESSION_CHARS_MAX = 200
TIMES_MAX = 1440
"""How many times a day: beyond it, a period is what is meant."""

NAME_CHARS_MAX = 100

SOME_TIME = datetime(2000, 1, 1)  # noqa: DTZ001 - on the wall; any will do to try an expression
LAST_MICROS = to_micros(datetime.max.replace(tzinfo=UTC))
"""The last moment that a calendar has."""

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)


class Expression(msgspec.Struct, frozen=True, tag="cron"):
    """A cron expression of five fields, or of six, which begin with the seconds; in a zone."""

    expression: str
    tz: str


class TimesOfDay(msgspec.Struct, frozen=True, tag="daily"):
    """Times of day, in order and each once, in a zone."""

    times: tuple[time, ...]
    tz: str


class Period(msgspec.Struct, frozen=True, tag="periodic"):
    """The multiples of a period since 1970, UTC."""

    period_us: int


Timing = Expression | TimesOfDay | Period


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a schedule is: when it fires, what it makes, and where that goes.

    It is stored as JSON. What stands at its default is left out, so that a field that is added
    later changes no hash.
    """

    timing: Timing
    queue: str | None = None
    topic: str | None = None
    key: str | None = None
    headers: str | None = None
    priority: int = 0
    data: bytes = b""
    encoding: int = 0
    function: str | None = None
    """Where the function is that makes the payload, if one does."""
    catch_up: CatchUp = "latest"
    grace_us: int = 0

    @property
    def config_hash(self) -> str:
        """A name for exactly this configuration."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Due(msgspec.Struct, frozen=True):
    """The ticks to make now, and when the next one after them fires; None if none ever does."""

    fires: list[int]
    next_at: int | None


# --- checked input --------------------------------------------------------------------------------


def cron_of(expression: str, tz: str | ZoneInfo) -> Expression:
    """The timing of a cron expression. One that is wrong, or never fires, is refused."""
    if not isinstance(expression, str):
        raise InvalidOption(f"a cron expression must be a str, not {quoted(expression)}")
    text = " ".join(expression.split())
    text = NICKNAMES.get(text.lower(), text)
    timing = Expression(text, zone_of(tz))
    if len(text) > EXPRESSION_CHARS_MAX:
        raise InvalidOption(
            f"a cron expression may have {EXPRESSION_CHARS_MAX} characters and this one has "
            f"{len(text):,}: split it into several schedules"
        )
    try:
        first = next(CronSim(text, SOME_TIME), None)
    except CronSimError as error:
        raise InvalidOption(explain_refusal(expression, str(error))) from error
    if first is None:
        raise InvalidOption(
            f"the cron expression {quoted(expression)} never fires: there is no such day"
        )
    return timing


def explain_refusal(expression: str, problem: str) -> str:
    """What is wrong with an expression, in more words than the parser has."""
    fields = expression.split()
    if expression.strip().startswith("@"):
        return f"{quoted(expression)} is no known name; there are {', '.join(NICKNAMES)}"
    if problem == "Wrong number of fields":
        return (
            f"the cron expression {quoted(expression)} has {len(fields)} fields; write five, as in "
            f"'0 2 * * *' (minute, hour, day of month, month, day of week), or six, which begin "
            f"with the seconds"
        )
    names = ["minute", "hour", "day-of-month", "month", "day-of-week"]
    names = names if len(fields) == 5 else ["second", *names]
    wrong = problem.removeprefix("Bad ")
    if wrong not in names:
        return f"the cron expression {quoted(expression)} is not understood: {problem}"
    given = fields[names.index(wrong)]
    hint = ": no month that it names has this day" if wrong == "day-of-month" else ""
    return (
        f"the cron expression {quoted(expression)} is wrong in its field {wrong}, {quoted(given)}"
        f"{hint if given.isdigit() and 1 <= int(given) <= 31 else ''}; "
        f"it takes {RANGES[wrong]}, lists (1,2), ranges (1-5) and steps (*/10)"
    )


RANGES = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L for the last day, LW for the last weekday",
    "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7, or SUN to SAT, MON#2 for the second Monday, 5L for the last Friday",
}


def daily_of(hours: time | Iterable[time], tz: str | ZoneInfo) -> TimesOfDay:
    """The timing of times of day, sorted, each once."""
    given = [hours] if isinstance(hours, time) else hours
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidOption(f"hours must be a list of datetime.time, not {quoted(hours)}")
    times = list(given)
    for moment in times:
        if not isinstance(moment, time):
            raise InvalidOption(
                f"hours must be a list of datetime.time, as in [time(2), time(14, 30)], and "
                f"{quoted(moment)} is none"
            )
        if moment.tzinfo is not None:
            raise InvalidOption(f"{quoted(moment)} has a zone of its own; give the zone as tz=...")
    chosen = tuple(sorted({moment.replace(fold=0) for moment in times}))
    if not 1 <= len(chosen) <= TIMES_MAX:
        raise InvalidOption(
            f"hours must be from 1 to {TIMES_MAX:,} times of day, not {len(chosen):,}"
        )
    return TimesOfDay(chosen, zone_of(tz))


def periodic_of(period: Duration) -> Period:
    """The timing of a period."""
    seconds = to_seconds(period, name="period")
    if seconds < PERIOD_SECONDS_MIN:
        raise InvalidOption(f"period must be at least {PERIOD_SECONDS_MIN} s, not {quoted(period)}")
    return Period(round(seconds * 1_000_000))


def zone_of(tz: str | ZoneInfo) -> str:
    """The name of a time zone, if there is one of that name."""
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str):
        raise InvalidOption(
            f"tz must be the name of a time zone, as in 'Europe/Paris', not {quoted(tz)}"
        )
    try:
        # What "localtime" is depends on the machine.
        if name not in ("localtime", "Factory", "posixrules"):
            return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):
        pass  # not found; no name at all; a folder
    name = name[:NAME_CHARS_MAX]  # to compare what is longer would take long
    known = {zone.casefold(): zone for zone in available_timezones()}
    near = get_close_matches(name.casefold(), known, n=3, cutoff=0.6)
    same_city = [zone for zone in known if name and zone.rpartition("/")[2] == name.casefold()]
    meant = ", ".join(repr(known[zone]) for zone in dict.fromkeys([*same_city[:2], *near]))
    hint = f"; did you mean {meant}?" if meant else ", as in 'Europe/Paris'"
    raise InvalidOption(f"there is no time zone {quoted(name)}{hint}")


# --- fire times -----------------------------------------------------------------------------------


def next_after(timing: Timing, after: int) -> int | None:
    """The first time to fire that is later than a given one; None if none is, for 50 years, or
    before the calendar ends.
    """
    if isinstance(timing, Period):
        moment = (after // timing.period_us + 1) * timing.period_us
        return moment if moment <= LAST_MICROS else None
    try:
        return next((moment for moment in moments(timing, after) if moment > after), None)
    except OverflowError:  # of Python's dates, which the year 9999 ends
        return None


def moments(timing: Expression | TimesOfDay, after: int) -> Iterator[int]:
    """Times to fire, of which all but some of the first are later than a given one."""
    zone = ZoneInfo(timing.tz)
    shown = on_the_wall(zone, after)
    if isinstance(timing, TimesOfDay):
        walls = times_from(timing, shown.date())
    elif runs_by_interval(timing.expression):
        aware = from_micros(after).astimezone(zone)
        return (to_micros(moment) for moment in CronSim(timing.expression, aware))
    else:
        # Along the clock on the wall, which knows no zone; each time is then looked up in the zone.
        walls = iter(CronSim(timing.expression, shown))
    return (moment_of(wall, zone) for wall in walls)


def runs_by_interval(expression: str) -> bool:
    """Whether an expression means every so often, and not a time of day."""
    minute, hour, *_ = expression.split()[-5:]
    return minute.startswith("*") or hour.startswith("*")


def times_from(timing: TimesOfDay, today: date) -> Iterator[datetime]:
    for number in count():
        for moment in timing.times:
            yield datetime.combine(today + number * _DAY, moment)


def on_the_wall(zone: ZoneInfo, micros: int) -> datetime:
    """What a clock on the wall shows at a time."""
    return from_micros(micros).astimezone(zone).replace(tzinfo=None, fold=0)


def moment_of(shown: datetime, zone: ZoneInfo) -> int:
    """When a clock on the wall shows a time for the first time; or, if it never does, when it
    jumps over it. It never falls as what is shown rises.
    """
    earlier = shown.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if on_the_wall(zone, to_micros(earlier)) == shown:
        return to_micros(earlier)
    # By the offset of before the gap it is after the gap, and the other way round: between the two,
    # the offset changes.
    high = to_micros(earlier)
    low = to_micros(shown.replace(tzinfo=zone, fold=1).astimezone(UTC))
    before = from_micros(low).astimezone(zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if from_micros(middle).astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high


def last_until(timing: Timing, first: int, now: int) -> int:
    """The last time to fire up to now, of those from `first` on, which is one of them."""
    if isinstance(timing, Period):
        return max(first, now // timing.period_us * timing.period_us)
    # Later than `low` something fires until now, and later than `high` nothing does.
    low, high = first - 1, now
    while high - low > 1:
        middle = (low + high) // 2
        fires_at = next_after(timing, middle)
        if fires_at is not None and fires_at <= now:
            low = fires_at - 1
        else:
            high = middle
    return high


def catch_up(spec: Spec, next_at: int, now: int, *, limit: int) -> Due:
    """What to do about a schedule whose next tick was due at `next_at`, and it is `now`.

    `limit` is how many ticks are made at once; the others follow.
    """
    timing = spec.timing
    following = next_after(timing, next_at)
    if following is None or following > now:
        late = spec.catch_up == "none" and now - next_at > spec.grace_us
        return Due([] if late else [next_at], following)
    if spec.catch_up == "latest":
        return Due([last_until(timing, next_at, now)], next_after(timing, now))
    first: int | None = next_at
    if spec.catch_up == "none" and next_at < now - spec.grace_us:
        first = next_after(timing, now - spec.grace_us - 1)
    fires: list[int] = []
    while first is not None and first <= now and len(fires) < limit:
        fires.append(first)
        first = next_after(timing, first)
    return Due(fires, first)


def preview(timing: Timing, after: int, number: int) -> list[int]:
    """The next times to fire."""
    return list(islice(following(timing, after), number))


def following(timing: Timing, after: int) -> Iterator[int]:
    moment = next_after(timing, after)
    while moment is not None:
        yield moment
        moment = next_after(timing, moment)


# --- in words -------------------------------------------------------------------------------------


def expression_of(timing: Timing) -> str:
    """A timing as its short text: the expression, the times, or the period in seconds."""
    if isinstance(timing, Expression):
        return timing.expression
    if isinstance(timing, TimesOfDay):
        return ", ".join(shown_time(moment) for moment in timing.times)
    return f"{timing.period_us / 1_000_000:g}s"


@lru_cache(maxsize=1024)
def describe(timing: Timing) -> str:
    """A timing in plain words."""
    if isinstance(timing, Expression):
        said = CronSim(timing.expression, SOME_TIME).explain()
        return f"{said} ({timing.tz})"
    if isinstance(timing, TimesOfDay):
        *others, last = [shown_time(moment) for moment in timing.times]
        said = f"{', '.join(others)} and {last}" if others else last
        return f"Every day at {said} ({timing.tz})"
    for unit, length in UNITS.items():
        if timing.period_us % length == 0:
            number = timing.period_us // length
            return f"Every {unit}" if number == 1 else f"Every {number} {unit}s"
    return f"Every {timing.period_us / 1_000_000:g} seconds"


UNITS = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
}


def shown_time(moment: time) -> str:
    return moment.isoformat("minutes" if not (moment.second or moment.microsecond) else "auto")


def check_catch_up(policy: CatchUp) -> CatchUp:
    """A policy that there is."""
    if policy not in CATCH_UPS:
        known = ", ".join(repr(one) for one in CATCH_UPS)
        raise InvalidOption(f"catch_up must be one of {known}, not {quoted(policy)}")
    return policy
