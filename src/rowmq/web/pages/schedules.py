"""Schedules: what fires by itself, in plain words; when it did last and will next."""

from starlette.responses import Response

from rowmq.message import ScheduleInfo
from rowmq.rights import Role
from rowmq.web.api.schedules import cron_of, schedule_of, schedules_of
from rowmq.web.asking import Ask
from rowmq.web.fields import given
from rowmq.web.routing import Route

__all__ = ["ROUTES"]

NEXT = 10

SCHEDULES_MAX = 500
"""How many schedules stand on the page; others are found by their names."""

MISSED = {
    "latest": "the latest is made up",
    "all": "all are made up",
    "none": "none is made up",
}
"""What becomes of ticks at whose times nobody was there."""

OF_APPS = "cron."
"""What the queues begin with that schedules of apps put their jobs into."""


async def show_schedules(ask: Ask) -> Response:
    """All schedules, by name."""
    wanted = given(ask.query, "name")
    found = [info for info in await schedules_of(ask) if wanted is None or wanted in info.name]
    return ask.render(
        "schedules.html",
        schedules=found[:SCHEDULES_MAX],
        left_out=len(found[SCHEDULES_MAX:]),
        wanted=wanted or "",
    )


async def show_schedule(ask: Ask) -> Response:
    """A schedule, with its next times to fire."""
    info = await schedule_of(ask)
    return ask.render(
        "schedule.html",
        info=info,
        following=await cron_of(ask).next(info.name, NEXT),
        missed=MISSED.get(info.catch_up, info.catch_up),
        of_app=info.queue == f"{OF_APPS}{info.name}",
    )


# --- steer ----------------------------------------------------------------------------------------


async def pause(ask: Ask) -> Response:
    """Have a schedule make no ticks."""
    info = await schedule_of(ask)
    await cron_of(ask).pause(info.name)
    return back(ask, info, "Paused: it makes no ticks until it is resumed.")


async def resume(ask: Ask) -> Response:
    """Have a schedule make ticks again."""
    info = await schedule_of(ask)
    await cron_of(ask).resume(info.name)
    return back(ask, info, "Resumed. Ticks of the meantime are not made up.")


async def run(ask: Ask) -> Response:
    """Make a tick now, beside the plan."""
    info = await schedule_of(ask)
    fired = await cron_of(ask).run(info.name)
    ask.note(fire_at=fired.isoformat())
    return back(ask, info, f"Made a tick now, {fired:%H:%M:%S} {fired.tzname()}.")


async def remove(ask: Ask) -> Response:
    """Delete a schedule; what its ticks have made stays."""
    info = await schedule_of(ask)
    await cron_of(ask).remove(info.name)
    return ask.redirect("schedules", flash="Removed. What its ticks have made stays.")


def back(ask: Ask, info: ScheduleInfo, flash: str) -> Response:
    """To the list, if the button stood there; else to the schedule."""
    if ask.query.get("from") == "list":
        return ask.redirect("schedules", flash=flash)
    return ask.redirect("schedules", info.name, flash=flash)


ROUTES = [
    Route("GET", "/schedules", show_schedules, needs=Role.READ),
    Route("GET", "/schedules/{schedule}", show_schedule, needs=Role.READ),
    Route("POST", "/schedules/{schedule}/pause", pause, needs=Role.ADMIN, action="schedule.pause"),
    Route(
        "POST", "/schedules/{schedule}/resume", resume, needs=Role.ADMIN, action="schedule.resume"
    ),
    Route("POST", "/schedules/{schedule}/run", run, needs=Role.ADMIN, action="schedule.run"),
    Route(
        "POST", "/schedules/{schedule}/remove", remove, needs=Role.ADMIN, action="schedule.remove"
    ),
]
