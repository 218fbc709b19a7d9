"""Schedules over HTTP: install, look, pause, resume, run, remove."""

from collections.abc import Sequence
from datetime import time
from typing import Any

import rowmq
from rowmq.cron.cron import AsyncCron
from rowmq.rights import Role
from rowmq.web.api import job_models, members, models
from rowmq.web.api.calls import Calls
from rowmq.web.api.payloads import plain
from rowmq.web.asking import Ask
from rowmq.web.problems import Problem

__all__ = ["CALLS", "cron_of", "schedule_of", "schedules_of"]

CALLS = Calls("Schedules", "Jobs and messages that come by themselves, at times or once a period.")

MISSING = "There is no such schedule, or it is not in the scope of the token."

NEXT = 10


@CALLS.get("/schedules", needs=Role.READ)
async def list_schedules(ask: Ask) -> job_models.Schedules:
    """The schedules whose queue or topic this token may see."""
    return job_models.Schedules(schedules=[told(ask, info) for info in await schedules_of(ask)])


@CALLS.get("/schedules/{schedule}", needs=Role.READ, missing=MISSING)
async def get_schedule(ask: Ask) -> job_models.ScheduleTold:
    """A schedule, and when it fires next."""
    info = await schedule_of(ask)
    following = await cron_of(ask).next(info.name, NEXT)
    return job_models.ScheduleTold(schedule=told(ask, info), next=following)


@CALLS.put("/schedules/{schedule}", needs=Role.ADMIN, action="schedule.install", missing=MISSING)
async def install_schedule(ask: Ask, body: job_models.NewSchedule) -> job_models.Installed:
    """Have a schedule, in place of the one of its name. Each of its times makes one job in its
    queue, or one message in its topic. Workers make the ticks, whichever is there: one has to run.
    """
    name = ask.path["schedule"]
    ask.demand(queue=body.queue, topic=body.topic)
    ask.note(queue=body.queue, topic=body.topic)
    given = [one for one in (body.cron, body.daily, body.period_seconds) if one is not None]
    if len(given) != 1:
        raise Problem(422, "say when it fires in one way: cron, daily, or period_seconds")
    how: dict[str, Any] = {
        "payload": plain(body.payload, body.encoding),
        "queue": body.queue,
        "topic": body.topic,
        "key": body.key,
        "headers": body.headers,
        "priority": body.priority,
        "catch_up": body.catch_up,
        "tend": False,
    }
    if body.grace_seconds is not None:
        how["grace"] = body.grace_seconds
    await find_schedule(ask)  # which refuses to replace one that is out of scope
    cron = cron_of(ask)
    if body.cron is not None:
        outcome = await cron.install(name, body.cron, tz=body.tz, **how)
    elif body.daily is not None:
        hours = [clock_time(text) for text in body.daily]
        outcome = await cron.install_daily(name, hours, tz=body.tz, **how)
    else:
        outcome = await cron.install_periodic(name, body.period_seconds or 0.0, **how)
    return job_models.Installed(outcome=outcome)


@CALLS.delete("/schedules/{schedule}", needs=Role.ADMIN, action="schedule.remove", missing=MISSING)
async def remove_schedule(ask: Ask) -> models.Done:
    """Delete a schedule. What its ticks have made stays."""
    info = await schedule_of(ask)
    return models.Done(changed=await cron_of(ask).remove(info.name))


@CALLS.post(
    "/schedules/{schedule}/pause", needs=Role.ADMIN, action="schedule.pause", missing=MISSING
)
async def pause_schedule(ask: Ask) -> models.Done:
    """Have a schedule make no ticks until it is resumed."""
    info = await schedule_of(ask)
    await cron_of(ask).pause(info.name)
    return models.Done(changed=not info.paused)


@CALLS.post(
    "/schedules/{schedule}/resume", needs=Role.ADMIN, action="schedule.resume", missing=MISSING
)
async def resume_schedule(ask: Ask) -> models.Done:
    """Have a paused schedule make ticks again. Those of the meantime are not made up."""
    info = await schedule_of(ask)
    await cron_of(ask).resume(info.name)
    return models.Done(changed=info.paused)


@CALLS.post("/schedules/{schedule}/run", needs=Role.ADMIN, action="schedule.run", missing=MISSING)
async def run_schedule(ask: Ask) -> job_models.Fired:
    """Make a tick now, beside the plan, also if it is paused."""
    info = await schedule_of(ask)
    return job_models.Fired(at=await cron_of(ask).run(info.name))


def cron_of(ask: Ask) -> AsyncCron:
    """Schedules as far as this caller may have to do with them: asked when it is done, and not
    only before.
    """
    return ask.mq.cron._seen_by(ask.caller.sees)  # noqa: SLF001 - the library's own


async def schedules_of(ask: Ask) -> Sequence[rowmq.ScheduleInfo]:
    """The schedules that this caller may see."""
    sees = ask.caller.sees
    return [info for info in await ask.mq.cron.list() if sees(info.queue, info.topic)]


async def schedule_of(ask: Ask) -> rowmq.ScheduleInfo:
    """The schedule of the path, which must be there."""
    info = await find_schedule(ask)
    if info is None:
        raise no_schedule(ask)
    return info


async def find_schedule(ask: Ask) -> rowmq.ScheduleInfo | None:
    """The schedule of the path, if there is one. One that is out of scope is answered as if there
    was none; the audit trail knows better.
    """
    for info in await ask.mq.cron.list():
        if info.name == ask.path["schedule"]:
            if not ask.caller.sees(info.queue, info.topic):
                raise no_schedule(ask, hides="out-of-scope")
            return info
    return None


def no_schedule(ask: Ask, hides: str | None = None) -> Problem:
    name = ask.path["schedule"]
    said = f"there is no schedule {name!r}: it was removed, or never installed"
    return Problem(404, said, kind="unknown-schedule", hides=hides)


def clock_time(text: str) -> time:
    """A time of the day."""
    try:
        found = time.fromisoformat(text)
    except ValueError:
        raise Problem(422, "a time of the day is written 09:30, or 09:30:15") from None
    return found


def told(ask: Ask, info: rowmq.ScheduleInfo) -> job_models.Schedule:
    """The schedule, for an answer, without what is to be hidden."""
    return job_models.Schedule(
        name=info.name,
        kind=info.kind,
        expression=info.expression,
        description=info.description,
        tz=info.tz,
        queue=info.queue,
        topic=info.topic,
        key=info.key,
        function=info.function,
        headers=ask.mask_headers(info.headers),
        priority=info.priority,
        catch_up=info.catch_up,
        grace_seconds=info.grace.total_seconds(),
        paused=info.paused,
        next_at=info.next_at,
        last_at=info.last_at,
        created_at=info.created_at,
        **members.payload_members(ask.mask(info.payload)),
    )
