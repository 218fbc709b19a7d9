"""The jobs of a queue: found by what is known of them, looked at one by one, put, and steered."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.responses import Response

from rowmq.drivers.base import take_steps_async
from rowmq.errors import InvalidInput
from rowmq.inspection import COUNT_MAX, JobEvent, JobStep, QueueBacklog
from rowmq.message import QueueInfo, RunningInfo, State, WorkerInfo
from rowmq.queue.inspecting import find_first
from rowmq.rights import Role
from rowmq.spelling import duration_of, header_of, is_number
from rowmq.web.asking import Ask
from rowmq.web.existing import queue_of
from rowmq.web.fields import (
    FORMS,
    given,
    headers_of,
    ids_of,
    moment_or_none,
    number_or_none,
    optional,
    payload_of,
    put_in_words,
)
from rowmq.web.masking import Mask
from rowmq.web.pages.queues import STATES, full_of, tabs
from rowmq.web.problems import Problem
from rowmq.web.routing import Route

__all__ = ["ROUTES"]

PAGE = 50
ALL_MAX = 1_000
"""How many jobs one button changes at a time, if it is for all that were found."""

LOOKS_MAX = 20
"""How many pages are looked through for them: what has no index is found by looking."""

NOTED_MAX = 20
"""How many ids of those that were changed stand in the audit trail."""

QUEUES_MAX = 20
"""How many queues are looked at for the jobs of all: those with the most."""

FINISHED = ("completed", "failed")

FILTERS = ("state", "kind", "key", "header", "since", "until")


class Wanted(NamedTuple):
    """What jobs are looked for, as it was written and as it is asked for."""

    shown: dict[str, str]
    chosen: dict[str, Any]
    errors: dict[str, str]

    @property
    def query(self) -> str:
        """The filters as they stand in a URL."""
        return urlencode(self.shown)

    @property
    def narrowed(self) -> bool:
        """Whether anything but the state was asked for."""
        return any(name != "state" for name in self.shown)


def wanted_of(fields: Mapping[str, str], mask: Mask) -> Wanted:
    """The filters of a form, or of a URL. What is masked cannot be looked for."""
    shown = {name: text for name in FILTERS if (text := given(fields, name)) is not None}
    errors: dict[str, str] = {}
    chosen: dict[str, Any] = {}
    for name, text in shown.items():
        value = put_in_words(partial(READERS[name], text), errors, name)
        if value is not None:
            chosen[name] = value
    put_in_words(lambda: mask.sought(chosen.get("header")), errors, "header")
    return Wanted(shown, chosen, errors)


def state_of(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        raise InvalidInput(f"there is no such state; there are {', '.join(STATES)}") from None


READERS: dict[str, Callable[[str], Any]] = {
    "state": state_of,
    "kind": str,
    "key": str,
    "header": lambda text: dict([header_of(text)]),
    "since": moment_or_none,
    "until": moment_or_none,
}
"""What each filter stands for."""


# --- the jobs of all queues -----------------------------------------------------------------------


async def show_all_jobs(ask: Ask) -> Response:
    """The newest jobs of a state, over all queues that the caller may see; or one, by its id."""
    if given(ask.query, "id") is not None:
        return await go_to_job(ask)
    wanted = wanted_of({**ask.query, "state": given(ask.query, "state") or "failed"}, ask.site.mask)
    found: list[Any] = []
    queues: list[QueueBacklog] = []
    left_out = more = False
    if not wanted.errors:
        queues, left_out = await queues_with(ask, wanted.shown["state"])
        cores = [ask.mq.queue(queue.name)._core for queue in queues]  # noqa: SLF001 - the library's own
        try:
            found, more = await take_steps_async(find_first(cores, limit=PAGE, **wanted.chosen))
        except InvalidInput as error:
            wanted.errors[""] = str(error)
    return ask.render(
        "all_jobs.html",
        status=422 if wanted.errors else 200,
        wanted=wanted,
        jobs=found,
        more=more or left_out,
        queues=queues,
        states=STATES,
        finished=wanted.shown["state"] in FINISHED,
    )


async def queues_with(ask: Ask, state: str) -> tuple[list[QueueBacklog], bool]:
    """Queues that have jobs of a state, those with the most first, and whether there are more."""
    found = [
        queue
        for queue in (await ask.sampler.look(ask.mq)).backlog
        if ask.caller.sees_queue(queue.name) and queue.counts[state]
    ]
    found.sort(key=lambda queue: -queue.counts[state])
    return found[:QUEUES_MAX], len(found) > QUEUES_MAX


async def go_to_job(ask: Ask) -> Response:
    """To the page of a job, whichever queue it is in."""
    text = ask.query["id"].strip()
    number = int(text) if is_number(text) else None
    job = None if number is None else await ask.mq.find_job(number)
    if job is None or not ask.caller.sees_queue(job.queue):
        said = f"There is no job {text[:40]}: it was dropped or pruned, or never put."
        return ask.redirect("jobs", flash=said, level="warning")
    return ask.redirect("queues", job.queue, "jobs", job.id)


# --- the jobs of a queue --------------------------------------------------------------------------


async def show_jobs(ask: Ask) -> Response:
    """A page of jobs: live ones soonest first, finished ones newest first."""
    name = ask.path["queue"]
    wanted = wanted_of(ask.query, ask.site.mask)
    queue = ask.mq.queue(name)
    page, after = None, given(ask.query, "after")
    if not wanted.errors:
        try:
            page = await queue.find(**wanted.chosen, limit=PAGE, after=after, whole=False)
        except InvalidInput as error:
            wanted.errors[""] = str(error)
    info = await queue_of(ask)
    counts = await queue.counts(up_to=COUNT_MAX)
    return ask.render(
        "jobs.html",
        status=422 if wanted.errors else 200,
        name=name,
        info=info,
        counts=counts,
        full=full_of(counts),
        wanted=wanted,
        page=page,
        states=STATES,
        first=ask.url("queues", name, **wanted.shown) if after else None,
        older=ask.url("queues", name, **wanted.shown, after=page.next)
        if page and page.next
        else None,
        all_max=ALL_MAX,
        tabs=tabs(ask, name, "jobs"),
    )


# --- one job --------------------------------------------------------------------------------------


async def show_job(ask: Ask) -> Response:
    """A job, with its payload and what happened to it."""
    name = ask.path["queue"]
    number = int(ask.path["id"]) if is_number(ask.path["id"]) else None
    queue = ask.mq.queue(name)
    job = None if number is None else await queue.get(number)
    if number is None or job is None:
        raise Problem(
            404, f"queue {name!r} has no job {ask.path['id']!r}: it was dropped, or pruned"
        )
    info = await queue_of(ask)
    worker, running = await who_runs(ask, name, number) if job.finished_at is None else NOBODY
    return ask.render(
        "job.html",
        name=name,
        job=job,
        live_job=job.finished_at is None,
        steps=steps_of(await queue.timeline(number), datetime.now(UTC)),
        paused=info.paused,
        worker=worker,
        running=running,
    )


NOBODY = (None, None)


async def who_runs(ask: Ask, queue: str, id: int) -> tuple[WorkerInfo | None, RunningInfo | None]:
    """The worker that says that it is at a job, and what it says of it."""
    for worker in await ask.mq.workers():
        for one in worker.running if worker.alive else ():
            if (one.source, one.id) == (queue, str(id)) and one.source_type == "queue":
                return worker, one
    return NOBODY


class Step(NamedTuple):
    """An event of a job in words; `after` is how long after the one before it."""

    at: datetime
    what: str
    tone: str
    after: timedelta | None
    worker: str | None
    error: str | None


TONES = {
    JobStep.CLAIMED: "info",
    JobStep.ATTEMPT_FAILED: "warning",
    JobStep.COMPLETED: "ok",
    JobStep.FAILED: "problem",
}


def steps_of(events: Sequence[JobEvent], now: datetime) -> list[Step]:
    """What has happened to a job, and what will, from the first on."""
    steps, before = list[Step](), None
    for event in events:
        gap = None if before is None or event.at <= before else event.at - before
        words = words_of(event, now)
        tone = TONES.get(event.what, "")
        steps.append(Step(event.at, words, tone, gap, event.worker, event.error))
        before = event.at
    return steps


def words_of(event: JobEvent, now: datetime) -> str:
    """What has happened, with the attempt that it belongs to."""
    if event.what is JobStep.DUE and event.at > now:
        return "Will be due"
    if event.what is JobStep.ATTEMPT_FAILED:
        return f"Attempt {event.attempt} failed"
    if event.what is JobStep.CLAIMED:
        return f"Claimed for attempt {event.attempt}"
    if event.what is JobStep.FAILED:
        return "Failed for good"
    return str(event.what).capitalize()


# --- put ------------------------------------------------------------------------------------------


async def show_put(ask: Ask) -> Response:
    """The form of a new job."""
    return await put_form(ask, dict(ask.query), {})


async def put(ask: Ask) -> Response:
    """Put a job, and show it."""
    name, fields, errors = ask.path["queue"], await ask.form(), dict[str, str]()
    payload = put_in_words(
        lambda: (payload_of(fields.get("payload", ""), fields.get("form", "json")),),
        errors,
        "payload",
    )
    how = how_of(fields, errors)
    if payload is None or errors:
        return await put_form(ask, fields, errors)
    try:
        job = await ask.mq.queue(name).put(payload[0], **how)
    except InvalidInput as error:
        return await put_form(ask, fields, {"": str(error)})
    ask.note(id=job.id)
    ask.sampler.expire()
    if not ask.caller.may(Role.READ):
        return ask.redirect("queues", name, "put", flash=f"Put job {job.id}.")
    return ask.redirect("queues", name, "jobs", job.id, flash=f"Put job {job.id}.")


def how_of(fields: Mapping[str, str], errors: dict[str, str]) -> dict[str, Any]:
    """What is said of a job beside its payload."""
    text = partial(given, fields)
    how: dict[str, Any] = {
        "at": put_in_words(lambda: moment_or_none(text("at")), errors, "at"),
        "delay": put_in_words(lambda: optional(text("delay"), duration_of), errors, "delay"),
        "headers": put_in_words(lambda: headers_of(text("headers")), errors, "headers"),
        "key": text("key"),
        "ordering_key": text("ordering_key"),
    }
    least = -32_767
    priority = put_in_words(
        lambda: number_or_none(text("priority"), name="a priority", least=least), errors, "priority"
    )
    if how["at"] is not None and how["delay"] is not None:
        errors["delay"] = "give a time or a delay, but not both"
    return how | {"priority": priority or 0}


async def put_form(ask: Ask, fields: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    name = ask.path["queue"]
    info: QueueInfo | None = await ask.mq.queue(name).info()
    has_pages = info is not None and ask.caller.may(Role.READ)
    return ask.render(
        "job_put.html",
        status=422 if errors else 200,
        name=name,
        info=info,
        values={"form": "json", **fields},
        forms=FORMS,
        errors=errors,
        tabs=tabs(ask, name, "put") if has_pages else [],
    )


# --- change jobs ----------------------------------------------------------------------------------

Change = Callable[[Any, list[int], Mapping[str, str]], Awaitable[int]]


async def retry(queue: Any, ids: list[int], fields: Mapping[str, str]) -> int:  # noqa: ARG001 - as every change
    return int(await queue.retry(ids))


async def run_now(queue: Any, ids: list[int], fields: Mapping[str, str]) -> int:  # noqa: ARG001 - as every change
    return int(await queue.run_now(ids))


async def fail(queue: Any, ids: list[int], fields: Mapping[str, str]) -> int:
    return int(await queue.fail(ids, error=given(fields, "error")))


async def drop(queue: Any, ids: list[int], fields: Mapping[str, str]) -> int:  # noqa: ARG001 - as every change
    return int(await queue.drop_jobs(ids))


async def reschedule(queue: Any, ids: list[int], fields: Mapping[str, str]) -> int:
    at, delay = time_of(fields)
    return int(await queue.reschedule(ids, at=at, delay=delay))


def time_of(fields: Mapping[str, str]) -> tuple[datetime | None, timedelta | None]:
    """When jobs are to be due: a time, or a delay."""
    at, delay = moment_or_none(given(fields, "at")), optional(given(fields, "delay"), duration_of)
    if (at is None) == (delay is None):
        raise InvalidInput("give a time, or a delay such as 5m, and not both")
    return at, delay


def changing(change: Change, done: str) -> Callable[[Ask], Awaitable[Response]]:
    """An endpoint that changes the jobs that were chosen, and goes back to where they stood."""

    async def endpoint(ask: Ask) -> Response:
        name, fields = ask.path["queue"], await ask.form()
        queue = ask.mq.queue(name)
        try:
            ids = await chosen_of(ask, queue)
            ask.note(jobs=len(ids), ids=ids[:NOTED_MAX])
            changed = await change(queue, ids, fields) if ids else 0
        except InvalidInput as error:
            return await where_it_stood(ask, fields, str(error), "warning")
        ask.note(changed=changed)
        ask.sampler.expire()
        return await where_it_stood(ask, fields, *said(done, len(ids), changed))

    return endpoint


def said(done: str, chosen: int, changed: int) -> tuple[str, str]:
    """What became of jobs that were chosen, and how well that is."""
    if not chosen:
        return "No job was chosen.", "note"
    jobs = "1 job" if changed == 1 else f"{changed:,} jobs"
    if changed == chosen:
        return f"{done} {jobs}.", "ok"
    why = "they were not in a state for it any more, or their key has another live job"
    return f"{done} {jobs} of {chosen:,}; the others stay as they are: {why}.", "note"


async def chosen_of(ask: Ask, queue: Any) -> list[int]:
    """The jobs whose boxes are ticked; or all that were found, a thousand at a time."""
    fields = await ask.form()
    if fields.get("all") != "yes":
        return ids_of(await ask.form_list("ids"))
    wanted = wanted_of(dict(parse_qsl(fields.get("found", ""))), ask.site.mask)
    for error in wanted.errors.values():
        raise InvalidInput(error)
    ids: list[int] = []
    after = None
    for _ in range(LOOKS_MAX):
        limit = ALL_MAX - len(ids)
        page = await queue.find(**wanted.chosen, limit=limit, after=after, whole=False)
        ids += [job.id for job in page.jobs]
        after = page.next
        if after is None or len(ids) >= ALL_MAX:
            break
    return ids


async def where_it_stood(ask: Ask, fields: Mapping[str, str], flash: str, level: str) -> Response:
    """Back to the job, if it is still there, or to the jobs that were found."""
    name, id = ask.path["queue"], given(fields, "job")
    if id is not None and is_number(id) and await ask.mq.queue(name).get(int(id)) is not None:
        return ask.redirect("queues", name, "jobs", id, flash=flash, level=level)
    wanted = wanted_of(dict(parse_qsl(fields.get("found", ""))), ask.site.mask)
    return ask.redirect("queues", name, flash=flash, level=level, **wanted.shown)


async def prune(ask: Ask) -> Response:
    """Delete finished jobs that the queue need not keep, or that are older than was said."""
    name, fields = ask.path["queue"], await ask.form()
    try:
        state = optional(given(fields, "state"), state_of)
        older_than = optional(given(fields, "older_than"), duration_of)
        gone = await ask.mq.queue(name).prune(older_than=older_than, state=state)
    except InvalidInput as error:
        return ask.redirect("queues", name, "settings", flash=str(error), level="warning")
    ask.note(pruned=gone)
    ask.sampler.expire()
    return ask.redirect("queues", name, "settings", flash=f"Pruned {gone:,} finished jobs.")


def post(path: str, endpoint: Any, action: str) -> Route:
    return Route("POST", path, endpoint, needs=Role.ADMIN, queue="queue", action=action)


ROUTES = [
    Route("GET", "/jobs", show_all_jobs, needs=Role.READ),
    Route("GET", "/queues/{queue}", show_jobs, needs=Role.READ, queue="queue"),
    Route(
        "GET",
        "/queues/{queue}/put",
        show_put,
        needs=Role.PRODUCE,
        queue="queue",
        may_be_new=True,
    ),
    Route(
        "POST",
        "/queues/{queue}/put",
        put,
        needs=Role.PRODUCE,
        queue="queue",
        action="job.put",
        may_be_new=True,
    ),
    Route("GET", "/queues/{queue}/jobs/{id}", show_job, needs=Role.READ, queue="queue"),
    post("/queues/{queue}/retry", changing(retry, "Retried"), "job.retry"),
    post("/queues/{queue}/run", changing(run_now, "Now due:"), "job.run"),
    post("/queues/{queue}/reschedule", changing(reschedule, "Rescheduled"), "job.reschedule"),
    post("/queues/{queue}/fail", changing(fail, "Failed"), "job.fail"),
    post("/queues/{queue}/drop", changing(drop, "Dropped"), "job.drop"),
    post("/queues/{queue}/prune", prune, "queue.prune"),
]
