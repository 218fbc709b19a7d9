"""Looking at the jobs of a queue, without claiming them: one, some, or how many there are."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.inspection import JobEvent, JobPage
from rowmq.message import JobError, QueueInfo, State
from rowmq.naming import check_headers, check_job_key, check_kind
from rowmq.options import check_flag
from rowmq.options import whole as whole_number
from rowmq.queue.core import Core
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.view import UNTYPED, View
from rowmq.quoting import quoted
from rowmq.store.archive import Record
from rowmq.store.finding import HIGHEST, LOWEST, Page, Place, Wanted
from rowmq.store.listing import LIVE
from rowmq.times import to_micros

__all__ = [
    "PAGE_MAX",
    "AsyncInspecting",
    "Inspecting",
    "check_ids",
    "find_first",
    "finished_state",
    "needed",
]

T = TypeVar("T")

PAGE_MAX = 1_000
"""How many jobs there are on a page, at most."""


class Inspecting(Generic[T]):
    """What a sync queue shows of its jobs."""

    _core: Core

    def read(self, key: str) -> Job[T] | None:
        """The live job with this key, without claiming it."""
        job: Job[T] | None = take_steps(read(self._core, key))
        return job

    def contains(self, key: str) -> bool:
        """Whether there is a live job with this key."""
        return take_steps(contains(self._core, key))

    def get(self, id: int) -> Job[T] | None:
        """The job with this id, alive or in the archive, without claiming it."""
        job: Job[T] | None = take_steps(get(self._core, id))
        return job

    def find(
        self,
        *,
        state: State | None = None,
        kind: str | None = None,
        key: str | None = None,
        header: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
        whole: bool = True,
    ) -> JobPage[Job[T]]:
        """A page of the jobs that are looked for; `after` takes the `next` of the page before.

        Live jobs come first, soonest first, then those that wait behind another of their ordering
        key, then the archive, newest first. `since` and `until` are about when live jobs are due,
        and when others finished. `header` names headers that a job must have, perhaps among others.
        What no index knows (headers, and kinds or keys in the archive) is looked for among some
        thousand jobs at a time: a page may be empty, and have a `next`. At most 1,000 jobs, and
        fewer where payloads are large; with `whole=False`, payloads of more than 4 KiB are a
        `Beginning`, and the page is quick however large they are.
        """
        page: JobPage[Job[T]] = take_steps(
            find(
                self._core,
                state=state,
                kind=kind,
                key=key,
                header=header,
                since=since,
                until=until,
                limit=limit,
                after=after,
                whole=whole,
            )
        )
        return page

    def live(self, *, state: State | None = None, limit: int = 100) -> list[Job[T]]:
        """Jobs that are pending, processing or retryable, or one of these; soonest first.

        Those that wait behind another of their ordering key come last. `archive` has the others.
        """
        return take_steps(list_live(self._core, state, limit))

    def info(self) -> QueueInfo | None:
        """The queue's settings and its kinds of jobs; None if there was never a job in it, and
        nobody configured it.
        """
        return take_steps(info(self._core))

    def counts(self, *, up_to: int | None = None) -> dict[str, int]:
        """How many jobs are pending, processing, retryable, completed and failed.

        With `up_to` it takes no longer for a million jobs than for so many: a number that comes to
        it stands for that many or more, and jobs that are to be tried again are counted among the
        first that are due.
        """
        return take_steps(counts(self._core, up_to))

    def failed(self, *, since: datetime | None = None, limit: int = 100) -> list[Job[T]]:
        """Jobs that have failed, the newest first."""
        return take_steps(archive(self._core, State.FAILED, since, limit))

    def archive(
        self, *, state: State | None = None, since: datetime | None = None, limit: int = 100
    ) -> list[Job[T]]:
        """Jobs that are completed, or have failed, or both; the newest first."""
        return take_steps(archive(self._core, state, since, limit))

    def errors(self, id: int) -> list[JobError]:
        """Why earlier attempts at a job failed, oldest first."""
        return take_steps(errors(self._core, id))

    def timeline(self, id: int) -> list[JobEvent]:
        """What has happened to a job, oldest first, and when it is due, if it is not yet: as far as
        that is known. Of attempts that failed the errors are kept, of claims the last one. Nothing,
        if there is no such job.
        """
        return take_steps(timeline(self._core, id))


class AsyncInspecting(Generic[T]):
    """What an async queue shows of its jobs."""

    _core: Core

    async def read(self, key: str) -> AsyncJob[T] | None:
        """The live job with this key, without claiming it."""
        job: AsyncJob[T] | None = await take_steps_async(read(self._core, key))
        return job

    async def contains(self, key: str) -> bool:
        """Whether there is a live job with this key."""
        return await take_steps_async(contains(self._core, key))

    async def get(self, id: int) -> AsyncJob[T] | None:
        """The job with this id, alive or in the archive, without claiming it."""
        job: AsyncJob[T] | None = await take_steps_async(get(self._core, id))
        return job

    async def find(
        self,
        *,
        state: State | None = None,
        kind: str | None = None,
        key: str | None = None,
        header: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
        whole: bool = True,
    ) -> JobPage[AsyncJob[T]]:
        """A page of the jobs that are looked for: see `Queue.find`."""
        page: JobPage[AsyncJob[T]] = await take_steps_async(
            find(
                self._core,
                state=state,
                kind=kind,
                key=key,
                header=header,
                since=since,
                until=until,
                limit=limit,
                after=after,
                whole=whole,
            )
        )
        return page

    async def live(self, *, state: State | None = None, limit: int = 100) -> list[AsyncJob[T]]:
        """Jobs that are pending, processing or retryable: see `Queue.live`."""
        return await take_steps_async(list_live(self._core, state, limit))

    async def info(self) -> QueueInfo | None:
        """The queue's settings and its kinds of jobs, or None: see `Queue.info`."""
        return await take_steps_async(info(self._core))

    async def counts(self, *, up_to: int | None = None) -> dict[str, int]:
        """How many jobs there are in each state: see `Queue.counts`."""
        return await take_steps_async(counts(self._core, up_to))

    async def failed(self, *, since: datetime | None = None, limit: int = 100) -> list[AsyncJob[T]]:
        """Jobs that have failed, the newest first."""
        return await take_steps_async(archive(self._core, State.FAILED, since, limit))

    async def archive(
        self, *, state: State | None = None, since: datetime | None = None, limit: int = 100
    ) -> list[AsyncJob[T]]:
        """Jobs that are completed, or have failed, or both; the newest first."""
        return await take_steps_async(archive(self._core, state, since, limit))

    async def errors(self, id: int) -> list[JobError]:
        """Why earlier attempts at a job failed, oldest first."""
        return await take_steps_async(errors(self._core, id))

    async def timeline(self, id: int) -> list[JobEvent]:
        """What has happened to a job, oldest first: see `Queue.timeline`."""
        return await take_steps_async(timeline(self._core, id))


# --- as steps -------------------------------------------------------------------------------------


def read(core: Core, key: str) -> Steps[Any]:
    """The live job of a key."""
    read = partial(core.desk.store.archive.read, core.view.queue, needed(key), core.view.kinds)
    record: Record | None = yield partial(core.desk.run, read)
    return None if record is None else core.recorded(record)


def contains(core: Core, key: str) -> Steps[bool]:
    """Whether a key has a live job."""
    find = partial(core.desk.store.jobs.find, core.view.queue, needed(key), core.view.kinds)
    found = yield partial(core.desk.run, find)
    return bool(found)


def archive(
    core: Core, state: State | str | None, since: datetime | None, limit: int
) -> Steps[list[Any]]:
    """Finished jobs, the newest first."""
    moment = None if since is None else to_micros(since)
    whole_number("limit", limit)
    states = (State.COMPLETED, State.FAILED) if state is None else (finished_state(state),)
    records: list[Record] = []
    for chosen in states:
        find = partial(
            core.desk.store.archive.list_finished,
            core.view.queue,
            core.view.kinds,
            state=chosen,
            since=moment,
            limit=limit,
        )
        records += yield partial(core.desk.run, find)
    records.sort(key=lambda record: (record.finished_at or 0, record.id), reverse=True)
    return [core.recorded(record) for record in records[:limit]]


def list_live(core: Core, state: State | str | None, limit: int) -> Steps[list[Any]]:
    """Live jobs, soonest first."""
    find = partial(
        core.desk.store.listing.list_live,
        core.view.queue,
        core.view.kinds,
        states=LIVE if state is None else (live_state(state),),
        limit=whole_number("limit", limit),
    )
    records: list[Record] = yield partial(core.desk.run, find)
    return [core.recorded(record) for record in records]


def get(core: Core, id: int) -> Steps[Any]:
    """A job by its id."""
    (wanted,) = check_ids([id])
    find = partial(core.desk.store.listing.get, core.view.queue, core.view.kinds, wanted)
    record: Record | None = yield partial(core.desk.run, find)
    return None if record is None else core.recorded(record)


def errors(core: Core, id: int) -> Steps[list[JobError]]:
    """Why earlier attempts at a job failed."""
    find = partial(core.desk.store.archive.errors, check_ids([id])[0])
    errors: list[JobError] = yield partial(core.desk.run, find)
    return errors


def find(
    core: Core,
    *,
    state: State | str | None,
    kind: str | None,
    key: str | None,
    header: Mapping[str, str] | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: str | None,
    whole: bool,
) -> Steps[JobPage[Any]]:
    """A page of jobs."""
    wanted = wanted_of(state, key, header, (since, until), limit)
    look = partial(
        core.desk.store.finding.find,
        core.view.queue,
        kinds_of(core.view, kind),
        wanted,
        limit=limit,
        after=None if after is None else Place.read(after),
        whole=check_flag("whole", whole),
    )
    page: Page = yield partial(core.desk.run, look)
    return JobPage(
        jobs=tuple(core.recorded(record) for record in page.records),
        next=None if page.next is None else page.next.written(),
        looked_at=page.looked_at,
    )


def find_first(
    cores: Sequence[Core],
    *,
    limit: int,
    state: State | str | None = None,
    kind: str | None = None,
    key: str | None = None,
    header: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Steps[tuple[list[Any], bool]]:
    """The first jobs of several queues, with the beginnings of their payloads, and whether there
    are more.
    """
    wanted = wanted_of(state, key, header, (since, until), limit)
    if not cores:
        return [], False
    queues = {core.view.queue: core for core in cores}
    finding = cores[0].desk.store.finding
    places = [(name, kinds_of(core.view, kind)) for name, core in queues.items()]
    found, more = yield partial(
        cores[0].desk.run, partial(finding.first_of, places, wanted, limit=limit)
    )
    return [queues[name].recorded(record) for name, record in found], more


def wanted_of(
    state: State | str | None,
    key: str | None,
    header: Mapping[str, str] | None,
    times: tuple[datetime | None, datetime | None],
    limit: int,
) -> Wanted:
    """What is looked for, checked."""
    since, until = times
    if whole_number("limit", limit) > PAGE_MAX:
        raise InvalidOption(f"limit must be from 1 to {PAGE_MAX:,}, not {quoted(limit)}")
    return Wanted(
        states=frozenset(State if state is None else [known_state(state)]),
        key=check_job_key(key),
        headers=check_headers(header),
        since=LOWEST if since is None else to_micros(since),
        until=HIGHEST if until is None else to_micros(until),
    )


def kinds_of(view: View, kind: str | None) -> Collection[str] | None:
    """The kinds that are looked for: one that the handle does not see is none."""
    if kind is None:
        return view.kinds
    name = UNTYPED if kind == UNTYPED else check_kind(kind)
    return (name,) if view.sees(name) else ()


def known_state(state: State | str) -> State:
    """A state that there is."""
    found = state_of(state)
    if found is None:
        names = ", ".join(f"State.{known.name}" for known in State)
        raise InvalidOption(f"state must be one of {names}, not {quoted(state)}")
    return found


def info(core: Core) -> Steps[QueueInfo | None]:
    """The settings of a queue."""
    look = partial(core.desk.store.queues.find_queue, core.view.queue)
    found: QueueInfo | None = yield partial(core.desk.run, look)
    return found


def counts(core: Core, up_to: int | None) -> Steps[dict[str, int]]:
    """How many jobs there are in each state."""
    store, view = core.desk.store, core.view
    count = partial(store.archive.counts, view.queue, view.kinds)
    if up_to is not None:
        most = whole_number("up_to", up_to)
        count = partial(store.backlogs.counts, view.queue, view.kinds, up_to=most)
    found: dict[State, int] = yield partial(core.desk.run, count)
    return {state.value: found[state] for state in State}


def timeline(core: Core, id: int) -> Steps[list[JobEvent]]:
    """What has happened to a job."""
    (wanted,) = check_ids([id])
    tell = partial(core.desk.store.histories.timeline, core.view.queue, core.view.kinds, wanted)
    events: list[JobEvent] = yield partial(core.desk.run, tell)
    return events


# --- input ----------------------------------------------------------------------------------------


def needed(key: str) -> str:
    """A key that must be there."""
    if key is None:
        raise InvalidInput("a key is needed: jobs without one cannot be found by it")
    return str(check_job_key(key))


def state_of(state: State | str) -> State | None:
    """A state, also by what it is called; None if it is none."""
    return next((known for known in State if state in (known, known.value)), None)


def live_state(state: State | str) -> State:
    """A state of jobs that are not in the archive."""
    chosen = state_of(state)
    if chosen not in LIVE:
        raise InvalidOption(
            f"state must be State.PENDING, State.PROCESSING or State.RETRYABLE, not "
            f"{quoted(state)}; "
            f"archive() gives jobs that are completed or failed"
        )
    return chosen


def finished_state(state: State | str) -> State:
    """A state of the archive."""
    chosen = state_of(state)
    if chosen not in (State.COMPLETED, State.FAILED):
        raise InvalidOption(f"state must be State.COMPLETED or State.FAILED, not {quoted(state)}")
    return chosen


def check_ids(ids: Iterable[Any]) -> list[int]:
    """Job ids, each once: numbers, or jobs that have them."""
    if isinstance(ids, str | bytes | int) or not isinstance(ids, Iterable):
        raise InvalidOption(
            f"ids must be a list of job ids or jobs, as in [job], not {quoted(ids)}"
        )
    found = [getattr(id, "id", id) for id in ids]
    for id in found:
        if type(id) is not int or not 0 <= id < 2**62:
            raise InvalidOption(f"a job id is a whole number, not {quoted(id)}")
    return sorted(set(found))
