"""What a test expects, compared with what there is; and how to say what differs, nearest first."""

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from rowmq.codec import decode, encode
from rowmq.errors import PayloadMismatch, PayloadNotSerializable

__all__ = ["ANYTHING", "Candidate", "Finding", "find", "given"]

T = TypeVar("T")

SHOWN_MAX = 5
"""How many of those that do not match are shown."""

REPR_CHARS_MAX = 300

DELAY_SECONDS = 1.0
"""By how much a delay may differ from the one expected: it was computed from a clock that goes."""

MISSES = (KeyError, TypeError, IndexError, AttributeError, ValueError)
"""What a function raises that looks into a payload of another shape."""


class _Anything:
    """Stands for a value that a test says nothing about."""

    def __repr__(self) -> str:
        return "..."


ANYTHING: Any = _Anything()


class Candidate(NamedTuple, Generic[T]):
    """Something that a test may be looking for: it, and what it shows."""

    it: T
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        shown = [
            f"{name}={short(value)}"
            for name, value in self.facts.items()
            if value not in (None, {})
        ]
        return ", ".join(shown)


class Finding(NamedTuple, Generic[T]):
    """What was found, and, if it is not as expected, what to say."""

    found: list[T]
    problem: str | None


def given(**expected: Any) -> dict[str, Any]:
    """What a test does say something about."""
    wanted = {name: value for name, value in expected.items() if value is not ANYTHING}
    if "payload" in wanted:
        wanted["payload"] = as_stored(wanted["payload"])
    return wanted


def find(
    what: str,
    where: str,
    candidates: Sequence[Candidate[T]],
    wanted: Mapping[str, Any],
    count: int | None,
) -> Finding[T]:
    """Those that match, and what is wrong with how many they are: one or more, if no count is
    given. `what` is what to call them.
    """
    missed = [(candidate, differences(wanted, candidate.facts)) for candidate in candidates]
    found = [candidate for candidate, differs in missed if not differs]
    if len(found) >= 1 if count is None else len(found) == count:
        return Finding([candidate.it for candidate in found], None)
    asked = ", ".join(f"{name}={short(value)}" for name, value in wanted.items())
    asked = f" with {asked}" if asked else ""
    if found:
        lines = [f"{where} has {many(len(found), what)}{asked}, not {count}:"]
        lines += numbered(str(candidate) for candidate in found)
    else:
        expected = "no" if count is None else f"none of the {count} {what}s expected"
        noun = f" {what}" if count is None else ""
        lines = [f"{where} has {expected}{noun}{asked}"]
        lines += others(what, missed, wanted)
    return Finding([candidate.it for candidate in found], "\n".join(lines))


def others(
    what: str, missed: Iterable[tuple[Candidate[Any], list[str]]], wanted: Mapping[str, Any]
) -> list[str]:
    """What there is instead, nearest first, and how it differs."""
    ranked = sorted(missed, key=lambda one: (len(one[1]), -likeness(one[0], wanted)))
    if not ranked:
        return [f"It has no {what} at all"]
    head = f"It has {many(len(ranked), what)}{', nearest first' if len(ranked) > 1 else ''}:"
    return [head, *numbered(f"{c}\n     {'; '.join(differs)}" for c, differs in ranked)]


def numbered(items: Iterable[str]) -> list[str]:
    listed = list(items)
    lines = [f"  {number}. {item}" for number, item in enumerate(listed[:SHOWN_MAX], 1)]
    rest = len(listed) - SHOWN_MAX
    return [*lines, f"  and {rest} more"] if rest > 0 else lines


def many(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def likeness(candidate: Candidate[Any], wanted: Mapping[str, Any]) -> float:
    """How much alike they look, from 0 to 1."""
    shown = [short(candidate.facts.get(name)) for name in wanted]
    expected = [short(value) for value in wanted.values()]
    return difflib.SequenceMatcher(None, " ".join(shown), " ".join(expected)).ratio()


# --- one candidate --------------------------------------------------------------------------------


def differences(wanted: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """In what a candidate is not as wanted, in words; nothing if it is."""
    told = []
    for name, value in wanted.items():
        difference = differs(name, value, facts.get(name))
        if difference is not None:
            told.append(difference)
    return told


def differs(name: str, wanted: Any, actual: Any) -> str | None:
    """How a fact is not as wanted; None if it is."""
    if name == "headers":
        return headers_differ(wanted, actual)
    if name == "error":
        fits = wanted in (actual or "")
        return None if fits else f"error is {short(actual)}, without {short(wanted)}"
    if name == "delay":
        off = abs(actual - seconds_of(wanted))
        return (
            None if off <= DELAY_SECONDS else f"delay is {actual:g} s, not {seconds_of(wanted):g}"
        )
    if inspect.isroutine(wanted):
        return None if fits_function(wanted, actual) else f"{name} does not fit {short(wanted)}"
    return None if wanted == actual else how_differs(name, wanted, actual)


def how_differs(name: str, wanted: Any, actual: Any) -> str:
    """Which fields of a mapping differ, or, of anything else, what it is."""
    if not (isinstance(wanted, Mapping) and isinstance(actual, Mapping)):
        if type(wanted) is not type(actual) and actual is not None:
            return f"{name} is {short(actual)} ({type(actual).__name__}), not {short(wanted)}"
        return f"{name} is {short(actual)}, not {short(wanted)}"
    told = [
        how_differs(f"{name}[{field!r}]", wanted[field], actual[field])
        for field in wanted
        if field in actual and wanted[field] != actual[field]
    ]
    told += [f"{name}[{field!r}] is missing" for field in wanted if field not in actual]
    told += [f"{name}[{field!r}] is there, too" for field in actual if field not in wanted]
    return ", ".join(told)


def headers_differ(wanted: Mapping[str, str], actual: Mapping[str, str]) -> str | None:
    """Headers that are wanted must be there; there may be others."""
    told = [
        f"header {name!r} is {short(actual[name])}, not {short(value)}"
        if name in actual
        else f"header {name!r} is missing"
        for name, value in wanted.items()
        if actual.get(name) != value
    ]
    return ", ".join(told) or None


def fits_function(function: Any, value: Any) -> bool:
    try:
        return bool(function(value))
    except MISSES:
        return False


def as_stored(payload: Any) -> Any:
    """A payload as it comes back without a type: a dataclass is what its JSON is. One that cannot
    be stored, such as a dict with `unittest.mock.ANY` in it, is compared as it is.
    """
    if inspect.isroutine(payload):
        return payload
    try:
        return decode(*encode(payload))
    except (PayloadMismatch, PayloadNotSerializable):
        return payload


def seconds_of(delay: float | timedelta) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def short(value: Any) -> str:
    """A value to be shown, cut if it is long."""
    if isinstance(value, datetime):
        return value.isoformat()
    if inspect.isroutine(value):
        return getattr(value, "__name__", repr(value))
    text = repr(value)
    return text if len(text) <= REPR_CHARS_MAX else f"{text[:REPR_CHARS_MAX]}..."
