"""Failures by reason: those that Spark counted, with such as differ in a word put together."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from rowmq.spark.pipelines.reporting.errors import merged
from rowmq.spark.pipelines.reporting.figures import Failure, Figure

__all__ = ["Place", "Reason", "failure_figures", "reasons_of"]


class Place(NamedTuple):
    """Where something failed: a group of a topic, or a queue."""

    topic: str | None
    group: str | None
    queue: str | None


class Reason(NamedTuple):
    """Why things failed, how often, when, where, and in the words of the last one."""

    text: str
    times: int
    first: datetime
    last: datetime
    example: str | None
    places: dict[Place, int]


def reasons_of(failures: Iterable[Failure]) -> list[Reason]:
    """The reasons, the most frequent first."""
    given = list(failures)
    texts = merged(failure.reason for failure in given)
    alike: dict[str, list[Failure]] = defaultdict(list)
    for failure in given:
        alike[texts[failure.reason]].append(failure)
    reasons = [reason_of(text, found) for text, found in alike.items()]
    return sorted(reasons, key=lambda reason: (-reason.times, reason.text))


def reason_of(text: str, failures: list[Failure]) -> Reason:
    places: dict[Place, int] = defaultdict(int)
    for failure in sorted(failures, key=lambda failure: -failure.times):
        places[Place(failure.topic, failure.group, failure.queue)] += failure.times
    latest = max(failures, key=lambda failure: failure.last)
    return Reason(
        text=text,
        times=sum(failure.times for failure in failures),
        first=min(failure.first for failure in failures),
        last=latest.last,
        example=latest.example,
        places=dict(places),
    )


def failure_figures(reasons: Iterable[Reason]) -> list[Figure]:
    """How often each reason was met, by where, as figures."""
    return [
        Figure("failures", "count", float(count), "failures", error=reason.text, **place._asdict())
        for reason in reasons
        for place, count in reason.places.items()
    ]
