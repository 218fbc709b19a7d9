"""Queues: what waits in each, what runs and failed; pause, resume, and the settings."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from starlette.responses import Response

from rowmq.errors import InvalidInput
from rowmq.inspection import COUNT_MAX, QueueBacklog
from rowmq.message import QueueInfo
from rowmq.rights import Role
from rowmq.spelling import FOREVER, duration, duration_of, limit_of, size, size_of
from rowmq.web.asking import Ask
from rowmq.web.existing import queue_of
from rowmq.web.fields import given, put_in_words
from rowmq.web.routing import Route

__all__ = ["ROUTES", "STATES", "full_of", "tabs"]

STATES = ("pending", "processing", "retryable", "failed", "completed")
"""In the order in which somebody asks: what is to be done, what went wrong, what is done."""

COUNTED_MIN = 100
"""How far jobs are counted at least, of however many queues."""

QUEUES_MAX = 500
"""How many queues stand on the page; others are found by their names."""


async def show_queues(ask: Ask) -> Response:
    """All queues that the caller may see, or those whose names have some letters in them."""
    if (new := given(ask.query, "put")) is not None:
        return ask.redirect("queues", new, "put")
    wanted = given(ask.query, "name")
    found = [
        one
        for one in (await ask.sampler.look(ask.mq)).backlog
        if ask.caller.sees_queue(one.name) and (wanted is None or wanted in one.name)
    ]
    return ask.render(
        "queues.html",
        queues=found[:QUEUES_MAX],
        left_out=len(found) - len(found[:QUEUES_MAX]),
        wanted=wanted or "",
        states=STATES,
        capped={one.name: capped_of(one) for one in found[:QUEUES_MAX]},
    )


def capped_of(queue: QueueBacklog) -> set[str]:
    """The states of which there are more than were counted. Of many queues, less is counted."""
    if not queue.capped:
        return set()
    full = full_of(queue.counts)
    return full or {state for state, number in queue.counts.items() if number >= COUNTED_MIN}


def full_of(counts: Mapping[str, int]) -> set[str]:
    """The states whose counts have come to the limit: jobs that are to be tried again are among
    the first that are ready, and counted with them.
    """
    full = {state for state, number in counts.items() if number >= COUNT_MAX}
    if counts["pending"] + counts["retryable"] >= COUNT_MAX:
        full |= {state for state in ("pending", "retryable") if counts[state]}
    return full


# --- pause and resume -----------------------------------------------------------------------------


async def pause(ask: Ask) -> Response:
    """Have nobody claim jobs."""
    name = ask.path["queue"]
    await ask.mq.queue(name).pause()
    return back(ask, "Paused: no job is handed out until it is resumed.")


async def resume(ask: Ask) -> Response:
    """Have jobs be claimed again."""
    name = ask.path["queue"]
    await ask.mq.queue(name).resume()
    return back(ask, "Resumed.")


def back(ask: Ask, flash: str) -> Response:
    """To the list, if the button stood there; else to the queue."""
    ask.sampler.expire()
    if ask.query.get("from") == "list":
        return ask.redirect("queues", flash=flash)
    return ask.redirect("queues", ask.path["queue"], flash=flash)


# --- settings -------------------------------------------------------------------------------------


async def show_settings(ask: Ask) -> Response:
    """The form of a queue's settings, as they are."""
    return form(ask, await queue_of(ask), {}, {})


async def configure(ask: Ask) -> Response:
    """Change what was changed in the form, and nothing else: somebody else may be at it, too."""
    name = ask.path["queue"]
    info = await queue_of(ask)
    fields, errors = await ask.form(), dict[str, str]()
    shown = shown_settings(info)
    chosen: dict[str, Any] = {}
    for field, read in READERS.items():
        text = fields.get(field, "").strip()
        if field not in fields or text == shown[field]:
            continue
        chosen[field] = put_in_words(partial(read, text), errors, field)
    if errors:
        return form(ask, info, fields, errors)
    if not chosen:
        return ask.redirect("queues", name, "settings", flash="Nothing was changed.", level="note")
    ask.note(**{field: fields[field].strip() for field in chosen})
    try:
        await ask.mq.queue(name).configure(**chosen)
    except InvalidInput as error:
        return form(ask, info, fields, {"": str(error)})
    return ask.redirect("queues", name, "settings", flash="Saved.")


def form(
    ask: Ask, info: QueueInfo, fields: Mapping[str, str], errors: Mapping[str, str]
) -> Response:
    return ask.render(
        "queue_settings.html",
        status=422 if errors else 200,
        name=ask.path["queue"],
        info=info,
        values=shown_settings(info) | dict(fields),
        errors=errors,
        tabs=tabs(ask, ask.path["queue"], "settings"),
    )


def shown_settings(info: QueueInfo) -> dict[str, str]:
    """A queue's settings as they stand in the form, each as it can be given."""
    return {
        "keep_completed": yes_no(info.keep_completed),
        "keep_failed": yes_no(info.keep_failed),
        "retention": kept(info.retention),
        "failed_retention": kept(info.failed_retention),
        "max_payload_bytes": size(info.max_payload_bytes),
        "max_in_flight": "none" if info.max_in_flight is None else str(info.max_in_flight),
        "rate": "none" if info.rate is None else str(info.rate),
        "rate_period": duration(info.rate_period or timedelta(seconds=1)),
        "durability": info.durability,
    }


def kept(span: timedelta | None) -> str:
    return FOREVER if span is None else duration(span)


def yes_no(flag: bool) -> str:
    return "yes" if flag else "no"


READERS: dict[str, Callable[[str], Any]] = {
    "keep_completed": lambda text: text == "yes",
    "keep_failed": lambda text: text == "yes",
    "retention": partial(duration_of, forever=True),
    "failed_retention": partial(duration_of, forever=True),
    "max_payload_bytes": size_of,
    "max_in_flight": limit_of,
    "rate": limit_of,
    "rate_period": duration_of,
    "durability": str,
}
"""What each field of the form stands for."""


def tabs(ask: Ask, name: str, here: str) -> list[tuple[str, str, bool]]:
    """The pages of one queue."""
    pages = {"jobs": ("Jobs", ask.url("queues", name))}
    if ask.caller.may(Role.PRODUCE) and not ask.settings.read_only:
        pages["put"] = ("Put a job", ask.url("queues", name, "put"))
    pages["settings"] = ("Settings", ask.url("queues", name, "settings"))
    return [(label, url, page == here) for page, (label, url) in pages.items()]


ROUTES = [
    Route("GET", "/queues", show_queues, needs=Role.READ),
    Route("GET", "/queues/{queue}/settings", show_settings, needs=Role.READ, queue="queue"),
    Route(
        "POST",
        "/queues/{queue}/settings",
        configure,
        needs=Role.ADMIN,
        queue="queue",
        action="queue.configure",
    ),
    Route(
        "POST",
        "/queues/{queue}/pause",
        pause,
        needs=Role.ADMIN,
        queue="queue",
        action="queue.pause",
    ),
    Route(
        "POST",
        "/queues/{queue}/resume",
        resume,
        needs=Role.ADMIN,
        queue="queue",
        action="queue.resume",
    ),
]
