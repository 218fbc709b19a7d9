"""The messages of a topic: browsed by key, offset, time or id; looked at one by one; published."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from rowmq.errors import InvalidInput, InvalidOption
from rowmq.message import Message, PublishResult
from rowmq.overview import ANY, MessagePage
from rowmq.rights import Role
from rowmq.store.keys import Place
from rowmq.web.asking import Ask
from rowmq.web.existing import has_topic
from rowmq.web.fields import (
    FORMS,
    given,
    headers_of,
    moment_or_none,
    number_or_none,
    payload_of,
    put_in_words,
)
from rowmq.web.pages.topics import tabs
from rowmq.web.places import fields_of, place_in, said
from rowmq.web.problems import Problem
from rowmq.web.routing import Route
from rowmq.web.viewing import plain_text

__all__ = ["ROUTES"]

PAGE = 50

FILTERS = ("key", "shard", "keyless", "offset", "at", "id")


class Wanted(NamedTuple):
    """What messages are looked for, as it was written and as it is asked for."""

    shown: dict[str, str]
    place: str | Place | None
    keyless: bool
    offset: int | None
    at: datetime | None
    id: str | None
    errors: dict[str, str]

    @property
    def in_words(self) -> str:
        """Where somebody looks."""
        if self.place is None:
            return "messages without a key" if self.keyless else "all messages"
        return said(self.place)

    @property
    def keys(self) -> Any:
        """The partitions, as `browse` is asked."""
        if self.place is not None:
            return self.place
        return None if self.keyless else ANY


def wanted_of(query: Mapping[str, str]) -> Wanted:
    """The filters of a URL."""
    shown = {name: query[name] for name in FILTERS if query.get(name, "").strip()}
    errors: dict[str, str] = {}
    place = put_in_words(lambda: place_in(query), errors, "key")
    keyless = given(query, "keyless") is not None
    offset = put_in_words(
        lambda: number_or_none(given(query, "offset"), name="an offset"), errors, "offset"
    )
    at = put_in_words(lambda: moment_or_none(given(query, "at")), errors, "at")
    if offset is not None and place is None and not errors:
        errors["offset"] = "offsets count within a key: say which, or choose a partition"
    return Wanted(shown, place, keyless, offset, at, given(query, "id"), errors)


async def show_messages(ask: Ask) -> Response:
    """A page of messages: the newest first, or from an offset on."""
    topic, wanted = ask.path["topic"], wanted_of(ask.query)
    page, beside = MessagePage(messages=()), Beside()
    filters = {name: value for name, value in wanted.shown.items() if name not in ("at", "id")}
    to = partial(ask.url, "topics", topic, "messages")
    if not wanted.errors:
        try:
            if wanted.offset is None:
                page = await found(ask, topic, wanted)
                beside = beside_page(page, partial(to, **filters))
            else:
                page, beside = await from_offset(ask, topic, wanted, to)
        except InvalidInput as error:
            wanted.errors[""] = str(error)
    turned = ask.query.keys() & {"before", "after", "at", "id", "offset"}
    return ask.render(
        "messages.html",
        status=422 if wanted.errors else 200,
        name=topic,
        wanted=wanted,
        page=page,
        beside=beside,
        latest=to(**{**filters, "offset": None}) if turned else None,
        tabs=tabs(ask, topic, "messages"),
    )


class Beside(NamedTuple):
    """Where the pages beside a page are, and what they are called."""

    left: str | None = None
    right: str | None = None
    names: tuple[str, str] = ("Newer", "Older")


def beside_page(page: MessagePage, to: Callable[..., str]) -> Beside:
    """The pages of those that go from the newest message on."""
    newer = to(after=page.newer) if page.newer else None
    return Beside(newer, to(before=page.older) if page.older else None)


async def from_offset(
    ask: Ask, topic: str, wanted: Wanted, to: Callable[..., str]
) -> tuple[MessagePage, Beside]:
    """The messages of a partition from an offset on, as they were published, and those beside."""
    first = max(wanted.offset or 1, 1)
    read = await ask.mq.read(topic, key=wanted.place, from_offset=first, limit=PAGE + 1)
    shown, more = read[:PAGE], read[PAGE:]
    there = partial(to, **wanted.shown | {"at": None, "id": None})
    back = max(first - PAGE, 1)
    before = await ask.mq.read(topic, key=wanted.place, from_offset=back, limit=1)
    has_some = bool(before) and (before[0].offset or 0) < first
    beside = Beside(
        there(offset=back) if has_some else None,
        there(offset=more[0].offset) if more else None,
        ("Earlier offsets", "Later offsets"),
    )
    return MessagePage(messages=tuple(shown)), beside


async def found(ask: Ask, topic: str, wanted: Wanted) -> MessagePage:
    """The messages that are looked for."""
    before, after = given(ask.query, "before"), given(ask.query, "after")
    chosen: dict[str, Any] = {}
    if before is not None or after is not None:
        chosen = {"before": before} if before is not None else {"after": after}
    elif wanted.id is not None:
        chosen = {"id": wanted.id}
    elif wanted.at is not None:
        chosen = {"at": wanted.at}
    return await ask.mq.browse(topic, key=wanted.keys, limit=PAGE, whole=False, **chosen)


# --- one message ----------------------------------------------------------------------------------


async def show_message(ask: Ask) -> Response:
    """A message, with its payload, and where those before and after it are."""
    topic = ask.path["topic"]
    read = await messages_at(ask, topic, 2)
    if not read:
        raise Problem(404, "there is no message there: it was collected, or never published")
    message = read[0]
    where = fields_of(message.key, message.shard)
    to = partial(ask.url, "topics", topic, "message", **where)
    return ask.render(
        "message.html",
        name=topic,
        message=message,
        where=where,
        before=to(offset=message.offset - 1) if message.offset > 1 else None,
        after=to(offset=read[1].offset) if len(read) > 1 else None,
        tabs=tabs(ask, topic, "messages"),
    )


async def messages_at(ask: Ask, topic: str, limit: int) -> list[Message[Any]]:
    """The message that the query names, by its partition and offset, and those after it; none if
    it is not there.
    """
    try:
        place = place_in(ask.query)
        offset = number_or_none(given(ask.query, "offset"), name="an offset")
        if place is None or offset is None:
            raise InvalidOption("a message is named by its key, or its shard, and its offset")
    except InvalidInput as error:
        raise Problem(400, str(error)) from None
    if offset < 1:
        return []
    read = await ask.mq.read(topic, key=place, from_offset=offset, limit=limit)
    return read if read and read[0].offset == offset else []


# --- publish --------------------------------------------------------------------------------------


async def show_publish(ask: Ask) -> Response:
    """The form of a new message; filled in, if it is to be like another."""
    topic, values, note = ask.path["topic"], dict(ask.query), None
    if given(ask.query, "offset") is not None and ask.caller.may(Role.READ):
        for message in await messages_at(ask, topic, 1):
            values, note = copied(ask, message)
    return await publish_form(ask, values, {}, note)


def copied(ask: Ask, message: Message[Any]) -> tuple[dict[str, str], str | None]:
    """A message as the fields of a form; what is masked is left out."""
    values, note = {"key": message.key or ""}, None
    headers = {
        name: value
        for name, value in message.headers.items()
        if ask.mask_headers({name: value})[name] == value and "\n" not in value
    }
    values["headers"] = "\n".join(f"{name}={value}" for name, value in headers.items())
    if ask.site.mask.hides(message.payload):
        note = "The payload is masked in parts, so it was not copied."
    else:
        values["form"], values["payload"] = plain_text(message.payload)
    if len(headers) < len(message.headers):
        note = (note or "") + " Headers that are masked, or have several lines, were not copied."
    return values, note


async def publish(ask: Ask) -> Response:
    """Append a message, and show it."""
    topic, fields, errors = ask.path["topic"], await ask.form(), dict[str, str]()
    payload = put_in_words(
        lambda: (payload_of(fields.get("payload", ""), fields.get("form", "json")),),
        errors,
        "payload",
    )
    headers = put_in_words(lambda: headers_of(fields.get("headers")), errors, "headers")
    key, id = fields.get("key") or None, given(fields, "id")
    if payload is None or errors:
        return await publish_form(ask, fields, errors)
    try:
        result = await ask.mq.publish(topic, payload[0], key=key, id=id, headers=headers)
    except InvalidInput as error:
        return await publish_form(ask, fields, {"": str(error)})
    ask.note(id=result.id, key=result.key, offset=result.offset, duplicate=result.duplicate)
    ask.sampler.expire()
    return published(ask, topic, result)


def published(ask: Ask, topic: str, result: PublishResult) -> Response:
    """To the message, or to another one like it for who may not read."""
    where = said((result.key, result.shard))
    if result.duplicate:
        flash = (
            f"There was a message with this id: nothing was added. It is at offset "
            f"{result.offset:,}, {where}."
        )
    else:
        flash = f"Published: offset {result.offset:,}, {where}."
    level = "note" if result.duplicate else "ok"
    if not ask.caller.may(Role.READ):
        return ask.redirect("topics", topic, "publish", flash=flash, level=level)
    place = fields_of(result.key, result.shard)
    return ask.redirect(
        "topics", topic, "message", flash=flash, level=level, **place, offset=result.offset
    )


async def publish_form(
    ask: Ask, values: Mapping[str, str], errors: Mapping[str, str], note: str | None = None
) -> Response:
    topic, is_there = ask.path["topic"], await has_topic(ask)
    return ask.render(
        "publish.html",
        status=422 if errors else 200,
        name=topic,
        values={"form": "json", **values},
        forms=FORMS,
        errors=errors,
        note=note,
        is_new=not is_there and ask.caller.may(Role.READ),
        tabs=tabs(ask, topic, "publish") if is_there else [],
    )


ROUTES = [
    Route("GET", "/topics/{topic}/messages", show_messages, needs=Role.READ, topic="topic"),
    Route("GET", "/topics/{topic}/message", show_message, needs=Role.READ, topic="topic"),
    Route(
        "GET",
        "/topics/{topic}/publish",
        show_publish,
        needs=Role.PRODUCE,
        topic="topic",
        may_be_new=True,
    ),
    Route(
        "POST",
        "/topics/{topic}/publish",
        publish,
        needs=Role.PRODUCE,
        topic="topic",
        action="message.publish",
        may_be_new=True,
    ),
]
