"""Assertions about topics and queues, for any client: of an app under test, or of an outbox."""

import difflib
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from rowmq.client import AsyncRowMQ, RowMQ
from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import InvalidInput
from rowmq.message import DeadLetter, Message
from rowmq.queue.job import AnyJob, AsyncJob, Job
from rowmq.testing.matching import ANYTHING, Candidate, Finding, find, given
from rowmq.times import Duration

__all__ = ["Assertions", "AsyncAssertions"]

LOOKED_AT_MAX = 100_000
"""How many messages or jobs are looked at."""


class Assertions:
    """Assertions about what is in the database of a client.

    Each returns what it found. What is not named is not looked at. A `payload` is compared as it is
    stored, so that a dataclass equals its JSON; a function is called with it, and says whether it
    fits. Of `headers` those that are given must be there. `count` says how many there are to be;
    without it there must be one or more. What fails says what there is instead.
    """

    def __init__(self, mq: RowMQ) -> None:
        if not isinstance(mq, RowMQ):
            raise InvalidInput(
                f"Assertions takes a client of rowmq.connect(), not {mq!r}; AsyncAssertions is for "
                f"those of connect_async()"
            )
        self._reader = mq

    def assert_published(
        self,
        topic: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        id: str = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
        count: int | None = None,
    ) -> list[Message[Any]]:
        """A topic has such messages, whether they were handled or not."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, id=id, headers=headers)
        return found_in(take_steps(published(self._reader, topic, wanted, count)))

    def assert_not_published(
        self,
        topic: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        id: str = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
    ) -> None:
        """A topic has no such message."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, id=id, headers=headers)
        found_in(take_steps(published(self._reader, topic, wanted, 0)))

    def assert_enqueued(
        self,
        queue: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        ordering_key: str | None = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
        priority: int = ANYTHING,
        at: datetime = ANYTHING,
        delay: Duration = ANYTHING,
        count: int | None = None,
    ) -> list[Job[Any]]:
        """A queue has such jobs that are not done yet: waiting, to be tried again, or at work. `at`
        is when they are due, and `delay` how long after they were put.
        """
        __tracebackhide__ = True
        wanted = given(
            payload=payload,
            key=key,
            ordering_key=ordering_key,
            headers=headers,
            priority=priority,
            at=at,
            delay=delay,
        )
        return found_in(take_steps(enqueued(self._reader, queue, wanted, count)))

    def assert_not_enqueued(
        self,
        queue: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        ordering_key: str | None = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
    ) -> None:
        """A queue has no such job that is not done yet."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, ordering_key=ordering_key, headers=headers)
        found_in(take_steps(enqueued(self._reader, queue, wanted, 0)))

    def assert_dead_lettered(
        self,
        topic: str,
        payload: Any = ANYTHING,
        *,
        group: str = ANYTHING,
        key: str | None = ANYTHING,
        id: str = ANYTHING,
        error: str = ANYTHING,
        count: int | None = None,
    ) -> list[DeadLetter[Any]]:
        """A topic has such dead letters; `error` is a part of the error's text. To have none is
        `count=0`.
        """
        __tracebackhide__ = True
        wanted = given(payload=payload, group=group, key=key, id=id, error=error)
        return found_in(take_steps(dead_lettered(self._reader, topic, wanted, count)))

    def assert_failed(
        self,
        queue: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        error: str = ANYTHING,
        count: int | None = None,
    ) -> list[Job[Any]]:
        """A queue has such jobs that have failed for good; `error` is a part of the error's text.
        To have none is `count=0`.
        """
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, error=error)
        return found_in(take_steps(failed(self._reader, queue, wanted, count)))


class AsyncAssertions:
    """Assertions about what is in the database of an async client, to be awaited: see
    `Assertions`.
    """

    def __init__(self, mq: AsyncRowMQ) -> None:
        if not isinstance(mq, AsyncRowMQ):
            raise InvalidInput(
                f"AsyncAssertions takes a client of rowmq.connect_async(), not {mq!r}; Assertions "
                f"is for those of connect()"
            )
        self._reader = mq

    async def assert_published(
        self,
        topic: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        id: str = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
        count: int | None = None,
    ) -> list[Message[Any]]:
        """A topic has such messages: see `Assertions.assert_published`."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, id=id, headers=headers)
        return found_in(await take_steps_async(published(self._reader, topic, wanted, count)))

    async def assert_not_published(
        self,
        topic: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        id: str = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
    ) -> None:
        """A topic has no such message."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, id=id, headers=headers)
        found_in(await take_steps_async(published(self._reader, topic, wanted, 0)))

    async def assert_enqueued(
        self,
        queue: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        ordering_key: str | None = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
        priority: int = ANYTHING,
        at: datetime = ANYTHING,
        delay: Duration = ANYTHING,
        count: int | None = None,
    ) -> list[AsyncJob[Any]]:
        """A queue has such jobs that are not done yet: see `Assertions.assert_enqueued`."""
        __tracebackhide__ = True
        wanted = given(
            payload=payload,
            key=key,
            ordering_key=ordering_key,
            headers=headers,
            priority=priority,
            at=at,
            delay=delay,
        )
        return found_in(await take_steps_async(enqueued(self._reader, queue, wanted, count)))

    async def assert_not_enqueued(
        self,
        queue: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        ordering_key: str | None = ANYTHING,
        headers: Mapping[str, str] = ANYTHING,
    ) -> None:
        """A queue has no such job that is not done yet."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, ordering_key=ordering_key, headers=headers)
        found_in(await take_steps_async(enqueued(self._reader, queue, wanted, 0)))

    async def assert_dead_lettered(
        self,
        topic: str,
        payload: Any = ANYTHING,
        *,
        group: str = ANYTHING,
        key: str | None = ANYTHING,
        id: str = ANYTHING,
        error: str = ANYTHING,
        count: int | None = None,
    ) -> list[DeadLetter[Any]]:
        """A topic has such dead letters: see `Assertions.assert_dead_lettered`."""
        __tracebackhide__ = True
        wanted = given(payload=payload, group=group, key=key, id=id, error=error)
        return found_in(await take_steps_async(dead_lettered(self._reader, topic, wanted, count)))

    async def assert_failed(
        self,
        queue: str,
        payload: Any = ANYTHING,
        *,
        key: str | None = ANYTHING,
        error: str = ANYTHING,
        count: int | None = None,
    ) -> list[AsyncJob[Any]]:
        """A queue has such jobs that have failed for good: see `Assertions.assert_failed`."""
        __tracebackhide__ = True
        wanted = given(payload=payload, key=key, error=error)
        return found_in(await take_steps_async(failed(self._reader, queue, wanted, count)))


def found_in(finding: Finding[Any]) -> list[Any]:
    """What was found, if it is as expected."""
    __tracebackhide__ = True
    if finding.problem is not None:
        raise AssertionError(finding.problem)
    return finding.found


# --- what there is, as steps for sync and async clients -------------------------------------------

Client = RowMQ | AsyncRowMQ
Wanted = Mapping[str, Any]


def published(mq: Client, topic: str, wanted: Wanted, count: int | None) -> Steps[Finding[Any]]:
    """Messages of a topic."""
    messages: list[Message[Any]] = yield partial(mq.read, topic, limit=LOOKED_AT_MAX)
    candidates = [
        Candidate(m, {"payload": m.payload, "key": m.key, "id": m.id, "headers": m.headers})
        for m in messages
    ]
    finding = find("message", f"topic {topic!r}", candidates, wanted, count)
    return (yield from hinted(finding, mq.topics, topic, "topics", empty=not messages))


def enqueued(mq: Client, queue: str, wanted: Wanted, count: int | None) -> Steps[Finding[Any]]:
    """Live jobs of a queue."""
    jobs: list[AnyJob[Any]] = yield partial(mq.queue(queue).live, limit=LOOKED_AT_MAX)
    candidates = [Candidate(job, job_facts(job)) for job in jobs]
    finding = find("job", f"queue {queue!r}", candidates, wanted, count)
    return (yield from hinted(finding, mq.queues, queue, "queues", empty=not jobs))


def dead_lettered(mq: Client, topic: str, wanted: Wanted, count: int | None) -> Steps[Finding[Any]]:
    """Dead letters of a topic."""
    letters: list[DeadLetter[Any]] = yield partial(mq.dead_letters, topic, limit=LOOKED_AT_MAX)
    candidates = [Candidate(letter, letter_facts(letter)) for letter in letters]
    finding = find("dead letter", f"topic {topic!r}", candidates, wanted, count)
    return (yield from hinted(finding, mq.topics, topic, "topics", empty=not letters))


def failed(mq: Client, queue: str, wanted: Wanted, count: int | None) -> Steps[Finding[Any]]:
    """Failed jobs of a queue."""
    jobs: list[AnyJob[Any]] = yield partial(mq.queue(queue).failed, limit=LOOKED_AT_MAX)
    candidates = [
        Candidate(job, {"payload": job.payload, "key": job.key, "error": job.error}) for job in jobs
    ]
    finding = find("failed job", f"queue {queue!r}", candidates, wanted, count)
    return (yield from hinted(finding, mq.queues, queue, "queues", empty=not jobs))


def hinted(
    finding: Finding[Any], list_all: Any, name: str, what: str, *, empty: bool
) -> Steps[Finding[Any]]:
    """Where there is nothing at all, the name may be wrong: say which ones there are."""
    if finding.problem is None or not empty:
        return finding
    names = [info.name for info in (yield list_all)]
    if name in names:
        return finding
    alike = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {alike[0]!r}?" if alike else ""
    there = ", ".join(sorted(names)) or "none"
    return Finding(finding.found, f"{finding.problem}. The {what} there are: {there}{hint}")


def job_facts(job: AnyJob[Any]) -> dict[str, Any]:
    """What an assertion can ask of a live job."""
    waits = 0.0 if job.created_at is None else (job.due_at - job.created_at).total_seconds()
    return {
        "payload": job.payload,
        "key": job.key,
        "ordering_key": job.ordering_key,
        "headers": job.headers,
        "priority": job.priority,
        "at": job.due_at,
        "delay": waits,
        "state": job.state.value,
    }


def letter_facts(letter: DeadLetter[Any]) -> dict[str, Any]:
    """What an assertion can ask of a dead letter."""
    message = letter.message
    return {
        "payload": message.payload,
        "group": letter.group,
        "key": message.key,
        "id": message.id,
        "error": letter.error,
    }
