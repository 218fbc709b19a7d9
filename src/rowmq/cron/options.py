"""What `mq.cron` is given, checked and made into plain values, before anything is written."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from rowmq.codec import decode_headers, encode, encode_headers
from rowmq.errors import InvalidInput, InvalidOption
from rowmq.message import CronMessage, ScheduledMessage
from rowmq.naming import (
    check_headers,
    check_job_key,
    check_key,
    check_queue,
    check_schedule,
    check_topic,
)
from rowmq.options import check_flag
from rowmq.queue.core import due_micros
from rowmq.queue.view import UNTYPED
from rowmq.quoting import quoted
from rowmq.schedule import CatchUp, Period, Spec, Timing, check_catch_up
from rowmq.store.entries import Entry
from rowmq.store.keys import shard_key
from rowmq.store.postings import Posting, posting_of
from rowmq.store.queues import LaneName
from rowmq.store.schedules import Made, Schedule
from rowmq.store.ticks import NO_PART, Owner, Tick
from rowmq.times import Duration, from_micros, to_seconds

__all__ = [
    "FIRE_AT_HEADER",
    "SCHEDULE_HEADER",
    "Function",
    "Payload",
    "fire_time",
    "made_of",
    "message_id",
    "owner_of",
    "spec_of",
    "ticks_of",
]

Function = Callable[[datetime], Any]
"""Makes the payload of a tick, of its time in the schedule's zone."""

Payload = Any
"""A payload, or a `Function`."""

SCHEDULE_HEADER = "rowmq-schedule"
FIRE_AT_HEADER = "rowmq-fire-at"

HASH_BYTES_MAX = 100


def spec_of(
    timing: Timing,
    *,
    payload: Payload,
    queue: str | None,
    topic: str | None,
    key: str | None,
    headers: Mapping[str, str] | None,
    priority: int,
    catch_up: CatchUp,
    grace: Duration,
) -> Spec:
    """The checked configuration of a schedule."""
    if (queue is None) == (topic is None):
        raise InvalidOption("a schedule's ticks go to a queue or a topic: give one of queue, topic")
    if topic is not None and priority != 0:
        raise InvalidOption("priority is for jobs: a topic keeps the order of its messages")
    check_catch_up(catch_up)
    function = name_of(payload) if is_function(payload) else None
    encoded = encode(None if function else payload)
    posting = posting_of(queue or "", UNTYPED, None, priority=priority)
    return Spec(
        timing=timing,
        queue=None if queue is None else check_queue(queue),
        topic=None if topic is None else check_topic(topic),
        key=check_job_key(key) if topic is None else check_key(key),
        headers=encode_headers(check_headers(headers)),
        priority=-posting.lane.precedence,
        data=encoded.data,
        encoding=int(encoded.encoding),
        function=function,
        catch_up=catch_up,
        grace_us=round(to_seconds(grace, name="grace") * 1_000_000),
    )


def payload_by(function: Function, moment: datetime) -> Any:
    """What a function makes. Whatever it raises is its schedule's error, and stops no thread."""
    try:
        return function(moment)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{name_of(function)} raised {type(error).__name__}: {error}") from error


def is_function(payload: Payload) -> bool:
    """Whether a payload is to be made by calling it."""
    return callable(payload) and not isinstance(payload, msgspec.Struct)


def name_of(function: Function) -> str:
    """Where a function is: the part of it that a configuration can hold."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(function, type) or not name:
        raise InvalidOption(
            f"{quoted(function)} cannot make payloads: give a function with a name, which "
            f"takes the time "
            f"of the tick, or a payload"
        )
    if inspect.iscoroutinefunction(function):
        raise InvalidOption(
            f"{name} is async, and payloads are made in a thread: give a plain function, and do "
            f"the rest where the job is worked on"
        )
    return f"{module}:{name}"


# --- what a tick makes ----------------------------------------------------------------------------


def made_of(schedule: Schedule, fire_at: int, function: Function | None) -> Made:
    """The job, or the message, of a tick."""
    spec = schedule.spec
    data, encoding = spec.data, spec.encoding
    if function is not None:
        encoded = encode(payload_by(function, fire_time(spec.timing, fire_at)))
        data, encoding = encoded.data, int(encoded.encoding)
    headers = tick_headers(decode_headers(spec.headers), schedule.name, fire_at)
    if spec.topic is not None:
        id = message_id(schedule.name, fire_at)
        return Entry(
            topic=spec.topic,
            key=shard_key(id) if spec.key is None else spec.key,
            id=id,
            id_given=True,
            data=data,
            encoding=encoding,
            headers=headers,
        )
    return Posting(
        lane=LaneName(str(spec.queue), UNTYPED, -spec.priority),
        at=fire_at,
        delay_us=0,
        data=data,
        encoding=encoding,
        headers=headers,
        key=None,
        ordering_key=spec.key,
    )


def fire_time(timing: Timing, fire_at: int) -> datetime:
    """The time of a tick, in the schedule's zone."""
    tz = "UTC" if isinstance(timing, Period) else timing.tz
    return from_micros(fire_at).astimezone(ZoneInfo(tz))


def message_id(name: str, fire_at: int) -> str:
    """The id of a tick's message: the same, whoever publishes it."""
    return f"{name}@{from_micros(fire_at).isoformat()}"


def tick_headers(headers: Mapping[str, str] | None, name: str, fire_at: int) -> str | None:
    """Headers that also say which tick it is."""
    ours = {SCHEDULE_HEADER: name, FIRE_AT_HEADER: from_micros(fire_at).isoformat()}
    return encode_headers({**(headers or {}), **ours})


# --- ticks that are put ahead of time -------------------------------------------------------------


def owner_of(config_hash: str, key_prefix: str, queue: str) -> Owner:
    """Whose ticks are meant."""
    return Owner(
        check_queue(queue),
        check_schedule(key_prefix, what="a key prefix"),
        check_schedule(config_hash, what="a configuration's hash", bytes_max=HASH_BYTES_MAX),
    )


def ticks_of(owner: Owner, messages: Iterable[Any], *, can_update: bool) -> list[Tick]:
    """The ticks of messages."""
    check_flag("can_update", can_update)
    ticks = []
    for place, message in enumerate(messages):
        try:
            ticks.append(tick_of(owner, message, can_update=can_update))
        except InvalidInput as error:
            raise type(error)(f"message {place}: {error}") from error
    return ticks


def tick_of(owner: Owner, message: Any, *, can_update: bool) -> Tick:
    if not isinstance(message, CronMessage | ScheduledMessage):
        raise InvalidInput(
            f"install_tick takes a list of rowmq.CronMessage(payload, at), or of "
            f"rowmq.ScheduledMessage(key, payload, at), not a {type(message).__name__}"
        )
    part = NO_PART
    if isinstance(message, ScheduledMessage):
        part = check_job_key(message.key) or NO_PART
        can_update = can_update and check_flag("can_update", message.can_update)
        if message.delay is not None:
            raise InvalidOption("a tick has a time: give at=..., and no delay")
    if message.at is None:
        raise InvalidOption("a tick needs the time at which it is due, at=...")
    fire_at = due_micros(message.at)
    posting = posting_of(
        owner.queue,
        UNTYPED,
        message.payload,
        at=fire_at,
        priority=message.priority,
    )
    headers = tick_headers(check_headers(message.headers), owner.prefix, fire_at)
    return Tick(fire_at, part, msgspec.structs.replace(posting, headers=headers), can_update)
