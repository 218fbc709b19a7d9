"""The figures that stand for all others."""

import msgspec

from rowmq.spark.pipelines.reporting.book import Book
from rowmq.spark.pipelines.reporting.live import Live

__all__ = ["Totals", "totals_of"]

LIVE_STATES = ("pending", "processing", "retryable")


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a report counted in its time, and how far groups were behind at the end of it."""

    topics: int = 0
    published: int = 0
    dead_letters: int = 0
    queues: int = 0
    put: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    """Finished jobs that took more than one attempt."""
    groups: int = 0
    groups_behind: int = 0
    lag: int = 0
    """How many messages groups were behind, together."""
    waiting: int | None = None
    """Jobs that are pending, processing or retryable now; None without a database."""


def totals_of(book: Book, live: Live | None) -> Totals:
    states = book.by("finished", "count", "queue", "state")
    attempts = book.by("attempts", "count", "queue", "state", "attempts")
    lags = book.by("lag", "last", "topic", "group")
    queues = {queue for queue, _ in states} | {
        queue for (queue,) in book.by("put", "count", "queue")
    }
    if live is not None:
        queues |= {queue.queue for queue in live.queues}
    waiting = None
    if live is not None:
        waiting = sum(queue.counts.get(state, 0) for queue in live.queues for state in LIVE_STATES)
    return Totals(
        topics=len(book.by("published", "count", "topic")),
        published=int(book.total("published")),
        dead_letters=int(book.total("dead_letters")),
        queues=len(queues),
        put=int(book.total("put")),
        completed=int(sum(n for (_, state), n in states.items() if state == "completed")),
        failed=int(sum(n for (_, state), n in states.items() if state == "failed")),
        retried=int(sum(n for (*_, tries), n in attempts.items() if int(tries or 0) > 1)),
        groups=len(lags),
        groups_behind=sum(lag > 0 for lag in lags.values()),
        lag=int(sum(lags.values())),
        waiting=waiting,
    )
