"""What calls are given: for each parameter, by its name, values that it may have, odd ones among
them; and for any of them what nobody should ever give.

A parameter that is not named here has no values, and `test_every_call_has_values` fails.
"""
# ruff: noqa: DTZ001, DTZ901 - times without a zone are among what nobody should give

import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import rowmq
from rowmq.naming import HEADERS_BYTES_MAX

__all__ = ["HOSTILE", "VALUES", "Some", "headers", "names", "payloads", "texts"]

Values = SearchStrategy[Any]


class Some(int):
    """As many jobs, or deliveries, as somebody has just been given."""

    __slots__ = ()


class Unspeakable:
    """An object whose own code raises."""

    def __repr__(self) -> str:
        raise RuntimeError("this object cannot be shown")

    __str__ = __repr__


class Loud(str):
    """A text that shows itself as several lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "one\nERROR two\x1b[2J"


def these(values: list[Any]) -> Values:
    """One of some values, which Hypothesis need not be able to show."""
    return st.integers(0, len(values) - 1).map(lambda place: values[place])


# --- texts ----------------------------------------------------------------------------------------

ODD = [
    "%", "_", "100%", "a_b", "it's", 'say "x"', "`", "``", "\\", "\\'", "; DROP TABLE x --",
    "' OR '1'='1", "$1", ":n", "?", "%s", "%(n)s", "{topic}", "{0}", " ", "a b", " a", "a ", "\t",
    "\n", "a\r\nERROR b", "\x1b[31mred\x1b]0;x\x07", "\x9b2J", "\x7f", "\u202eevil\u202c",
    "\u2066x", "\u200b", "\ufeff", "\ufffe", "😀", "👩\u200d👧", "é", "e\u0301", "ß", "İ", "ǅ",
    "Key", "key", "KEY", "null", "None", "NaN", "0", "-1", "../../etc/passwd", "<b>",
    "[bold]x[/bold]", ":smile:", "\x01", "\x01" + "3", "rowmq", "t_dlq", "\x02", "=", "=1+1",
    "--json", "-x",
]  # fmt: skip
"""Texts that mean something to somebody on the way."""

BROKEN = ["", "\0", "a\0b", "\ud800", "a\udfff", "\ud83d", "😀"[:0]]
"""Texts that no database stores, or that are no names."""

LENGTHS = [1, 40, 41, 100, 199, 200, 201, 255, 256, 5_000]


def long_texts() -> SearchStrategy[str]:
    """Texts about as long as any limit, in characters of one byte or of four."""
    return st.builds(
        lambda length, char: char * (length // len(char.encode())),
        st.sampled_from(LENGTHS),
        st.sampled_from(["x", "%", "é", "😀"]),
    )


texts = st.one_of(
    st.sampled_from(ODD),
    st.lists(st.sampled_from(ODD), min_size=1, max_size=4).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
"""Texts that can be stored, and most of them be names."""

names = st.one_of(texts, st.sampled_from(["t", "q", "g", "s"]), long_texts())
some_names = st.one_of(
    st.sampled_from(["t", "q", "g", "s", "k"]), names, st.sampled_from([*ODD, *BROKEN])
)

# --- what nobody should give ----------------------------------------------------------------------

HOSTILE: Values = st.one_of(
    st.sampled_from(BROKEN),
    these(
        [
            None, True, False, 0, -1, 1, 2**31, 2**62, 2**63, 2**64, 10**5000, -(10**5000), 0.0,
            -0.0, 0.5, 1e-300, 1e300, math.nan, math.inf, -math.inf, b"", b"bytes", bytearray(b"x"),
            (), [], {}, set(), [None], [[[]]], {"a": 1}, {None: 1}, ["t"], ("t", 0), "x" * 2**20,
            "\ud800" * 999, ["x" * 2**20], [10**5000], object(), object, int, print, Unspeakable(),
            [Unspeakable()], Loud("x"), timedelta.max, timedelta.min, timedelta(0),
            date(2026, 1, 1), time(2), datetime.min, datetime.max, datetime(2026, 3, 29, 2, 30),
            1j, Ellipsis, range(3), memoryview(b"abc"), rowmq.State.FAILED,
            rowmq.Message(payload=1), ValueError("x"), "sqlite://",
        ]
    ),
    names,
)  # fmt: skip

# --- payloads and headers -------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = 0
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)

LIMIT = 1024 * 1024

payloads: Values = st.one_of(
    json_values,
    st.binary(max_size=40),
    texts,
    st.sampled_from([b"", "", None, "a\0b", {"a\0": "\0"}, b"\0\xff\xfe", -0.0, 5e-324, 1e308]),
    these([2**64, -(2**200), 10**400, [10**4000], [1.5] * 50, nested(200), nested(199)]),
    these([b"x" * LIMIT, "é" * (LIMIT // 2), "x" * (LIMIT - 1)]),
    these(
        [
            10**5000, [10**5000], nested(201), nested(900), nested(995), nested(20_000), "\ud800",
            {"a": "\ud800"}, {"\ud800": 1}, math.nan, [math.inf], {1: 2, "1": 3}, {(1, 2): 3},
            {None: 1}, object(), Unspeakable(), lambda: None, b"x" * (LIMIT + 1), "x" * (LIMIT + 1),
            b"x" * 2**24, [0] * LIMIT, rowmq.Message(payload=1), {1, "a"}, print,
        ]
    ),
)  # fmt: skip

headers: Values = st.one_of(
    st.none(),
    st.dictionaries(texts, texts, max_size=3),
    these(
        [
            {"a": "x" * (HEADERS_BYTES_MAX - 1)}, {"a": "x" * HEADERS_BYTES_MAX},
            {"a": "\x01" * (HEADERS_BYTES_MAX - 1)}, {"": ""}, {"a": "\0"}, {"\ud800": ""},
            {"a": 1}, {1: "a"}, {"a": None}, {f"{n}": "" for n in range(20_000)},
            {Loud("a"): Loud("b")},
        ]
    ),
)  # fmt: skip

# --- numbers, times, choices ----------------------------------------------------------------------

counts = st.sampled_from([1, 2, 3, 10, 100, 1_000, 10_000, 10_001, 2**31 - 1, 2**62 - 1, 0, -1])
switches = st.sampled_from([True, False, True, False, 1, "yes"])
seconds = st.one_of(
    st.sampled_from([0, 0.001, 1, 30, 0.5, timedelta(seconds=5), 86_400, 3e9, 1e-9, -0.0]),
    st.floats(min_value=0, max_value=1e6, allow_nan=False),
    st.timedeltas(),
)
short_waits = st.sampled_from([0, 0.001, 0.01, timedelta(milliseconds=1)])
"""For what is waited for, since nothing comes. What is longer is as right, and takes longer."""

ZONES: list[Any] = [
    UTC, ZoneInfo("Europe/Paris"), ZoneInfo("America/St_Johns"), ZoneInfo("Pacific/Apia"),
    timezone(timedelta(hours=14)), timezone(-timedelta(hours=23, minutes=59)),
]  # fmt: skip

moments = st.one_of(
    st.builds(
        lambda moment, zone: moment.replace(tzinfo=zone),
        st.datetimes() | st.sampled_from([datetime.min, datetime.max]),
        st.sampled_from(ZONES),
    ),
    st.sampled_from(
        [
            datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Paris")),
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")),
            datetime(2011, 12, 30, tzinfo=ZoneInfo("Pacific/Apia")),
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(1969, 12, 31, tzinfo=UTC),
        ]
    ),
)

job_ids = st.integers(min_value=0, max_value=2**62) | st.sampled_from([1000, 1001, 1, -1, 2**63])
places = st.one_of(some_names, st.tuples(st.none() | some_names, st.integers(-1, 9)))
offsets = st.integers(min_value=1, max_value=9) | counts
offsets_by_key = st.dictionaries(st.none() | places, offsets, max_size=3)

handles = st.sampled_from(["1.1.1", "0.0.0", "9" * 18 + ".1.1", "-1.2.3", "1.2", "٣.1.1"]) | texts
letters = handles | st.builds(
    rowmq.DeadLetter,
    message=st.just(rowmq.Message(payload=1)),
    group=some_names,
    error=st.none(),
    attempts=st.just(1),
    failed_at=moments,
    offset=st.just(1),
    handle=handles,
)

cursors = st.sampled_from(["0.0.0", "1.2.3", "9" * 18 + ".1.1", "-1.2.3", "1.2", "٣.1.1"]) | texts

CRONS = [
    "0 2 * * *", "* * * * *", "*/5 * * * * *", "@daily", "0 0 29 2 *", "0 0 30 2 *", "0 0 L * *",
    "1-70 * * * *", "*/0 * * * *", "0 0 * * 8", "a b c d e", "", " ", "@never", "* * * *",
    "* " * 99, "0 0 1 1 * 2020", "٣ * * * *", "1,2,3 * * * MON#2", "99999999999999999999 * * * *",
]  # fmt: skip

TZS = [
    "UTC", "Europe/Paris", "Europe/paris", "", "\0", "../etc/passwd", "/etc/localtime", "localtime",
    "\ud800", "x" * 10_000, "Europe", ZoneInfo("Asia/Tokyo"),
]  # fmt: skip


def messages() -> Values:
    """What batches are made of, of the right kind or of another."""
    one = st.one_of(
        st.builds(
            rowmq.Message,
            payload=payloads,
            key=st.none() | some_names,
            id=st.none() | some_names,
            headers=st.just({}) | headers,
        ),
        st.builds(rowmq.ScheduledMessage, some_names, payloads, st.none() | moments, switches),
        st.builds(rowmq.CronMessage, payloads, moments),
    )
    return st.lists(one, max_size=3)


CONFIRMATION = "Yes, please, I know what I'm doing!"

VALUES: dict[str, Values] = {
    # names
    "topic": some_names,
    "group": some_names,
    "name": some_names,
    "queue": some_names,
    "kind": st.none() | some_names,
    "key": st.none() | places,
    "ordering_key": st.none() | some_names,
    "id": st.none() | some_names | job_ids,
    "config_hash": some_names,
    "key_prefix": some_names,
    "dlq_suffix": some_names,
    # what is written
    "payload": payloads,
    "payloads": st.lists(payloads, max_size=3),
    "headers": headers,
    "messages": messages(),
    "error": st.none() | texts | st.builds(ValueError, texts) | st.just("x" * 2**20),
    "connection": st.none(),
    # numbers and times
    "limit": counts,
    "max": st.none() | counts,
    "count": st.integers(1, 50) | counts,
    "batch_size": counts,
    "max_attempts": st.none() | counts,
    "max_in_flight": counts | st.just(math.inf),
    "max_bytes": counts,
    "max_payload_bytes": st.none() | counts,
    "max_failures": counts,
    "max_deliveries": st.none() | counts | st.just(math.inf),
    "rate": st.none() | counts | st.just(math.inf),
    "rate_period": st.none() | seconds,
    "priority": st.sampled_from([0, 1, -1, 32_767, -32_767, 32_768]),
    "timeout": short_waits,
    "delay": st.none() | seconds,
    "at": st.none() | moments,
    "since": st.none() | moments,
    "to": st.sampled_from(["earliest", "latest"]) | moments | offsets_by_key,
    "from_offset": offsets | offsets_by_key,
    "older_than": st.none() | seconds,
    "period": seconds,
    "grace": seconds,
    "hours": st.lists(st.times(), max_size=4) | st.times(),
    **dict.fromkeys(
        [
            "retention", "failed_retention", "seconds", "visibility", "lease_duration",
            "heartbeat_interval", "flush_interval", "poll_interval", "discovery_interval",
            "idle_timeout", "lock_timeout",
        ],
        seconds,
    ),
    # choices
    "start": st.sampled_from(["earliest", "latest", "first"]),
    "state": st.none() | st.sampled_from([*rowmq.State, "pending", "failed", "no state"]),
    "order": st.sampled_from(["fifo", "lifo", "FIFO"]),
    "durability": st.sampled_from(["full", "relaxed", "none"]),
    "catch_up": st.sampled_from(["latest", "all", "none", "some"]),
    "confirm": st.sampled_from([CONFIRMATION, "yes"]),
    "cron": st.sampled_from(CRONS) | texts,
    "tz": st.sampled_from(TZS) | texts,
    "tend": st.just(False),
    "strict": switches,
    "can_update": switches,
    "dry_run": switches,
    "whole": switches,
    "keep_completed": st.none() | switches,
    "keep_failed": st.none() | switches,
    "type": st.sampled_from([None, int, str, bytes, dict, list, float, datetime, "int"]),
    "retry": st.sampled_from([None, rowmq.NoRetry(), rowmq.Constant(1), rowmq.Constant]),
    "backoff": st.sampled_from([rowmq.NoRetry(), rowmq.ExponentialBackoff(), 1]),
    "on_lost": st.sampled_from([None, print, "print"]),
    "checks": st.none() | st.lists(st.sampled_from(["server", "schema", "clock", "no check"])),
    "thresholds": st.sampled_from([None, rowmq.Thresholds(), {}]),
    # lists of things
    "ids": st.none() | st.lists(some_names, max_size=3) | st.lists(job_ids, max_size=3),
    "jobs": st.just([]) | st.integers(1, 3).map(Some),
    "deliveries": st.just([]) | st.integers(1, 3).map(Some),
    "queues": st.lists(some_names, max_size=3),
    "topics": st.lists(some_names, max_size=3),
    "roles": st.lists(st.sampled_from([*rowmq.Role, "read", "no role"]), max_size=3),
    # jobs that are looked for, and receipts of them
    "header": headers,
    "until": st.none() | moments,
    "up_to": st.none() | counts,
    "lately_seconds": seconds,
    "job": st.none() | texts,
    "receipts": st.lists(texts | st.just("j1-1-0-1000-0-1"), max_size=3) | texts,
    "how": st.sampled_from(["ack", "nack", "reject", "release", "extend", "refuse"]),
    # pages
    "before": st.none() | cursors,
    "after": st.none() | cursors | places | st.just("WzAsWzEsMTAwMF0sIiJd"),
    "prefix": st.none() | some_names,
    "handle": handles,
    "letter": st.none() | letters,
    "letters": st.none() | st.lists(letters, max_size=3),
    "matching": st.none() | texts,
    # tokens and the trail
    "secret": texts,
    "expires_in": st.none() | seconds,
    "who": texts,
    "action": texts,
    "target": texts,
    "remote": texts,
    "details": st.none() | st.dictionaries(texts, payloads, max_size=3),
    "ending": st.sampled_from([*rowmq.Ending, "done", "no ending"]),
    "sql": st.sampled_from(["SELECT 1", "SELECT :n", "SELECT ?", "", "nonsense", "SELECT '%'"])
    | texts,
    "params": st.sampled_from([(), [1], {"n": 1}, {"m": 1}, "1", 1]),
}  # fmt: skip
