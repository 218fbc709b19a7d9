"""Dead letters: what groups gave up on, by what their errors have in common; looked at, given back,
also edited, and purged. What is done to many is shown before it is done.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from rowmq.errors import InvalidInput, InvalidOption, RowMQError
from rowmq.message import DeadLetter
from rowmq.overview import LetterKind, LetterPage, PurgeStep, RedriveStep
from rowmq.rights import Role
from rowmq.web import clearing
from rowmq.web.asking import Ask
from rowmq.web.clearing import Cleared
from rowmq.web.fields import FORMS, given, headers_of, payload_of, put_in_words
from rowmq.web.pages.topics import tabs
from rowmq.web.problems import Problem
from rowmq.web.routing import Route
from rowmq.web.sampling import Snapshot
from rowmq.web.viewing import plain_text

__all__ = ["ROUTES"]

PAGE = 50

KINDS_MAX = 50
"""How many kinds of errors are shown: the most frequent."""

KIND_AT_ONCE_MAX = 1_000
"""How many letters of a kind one button is for: more take more presses, and nobody waits long."""

LOOKS_MAX = 40
"""How many pages are looked through for them."""

NOTED_MAX = 20
"""How many letters stand in the audit trail."""


class Chosen(NamedTuple):
    """Which letters something is done to: some that were ticked, those of a kind, or all."""

    group: str | None
    matching: str | None
    letters: tuple[str, ...]
    """The handle of each that was ticked."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The same as arguments of the client's calls."""
        named = {"group": self.group, "letters": self.letters or None}
        return {name: value for name, value in named.items() if value is not None}


# --- the letters of all topics --------------------------------------------------------------------


async def show_all(ask: Ask) -> Response:
    """Who gave up on how many messages, those with the most first."""
    seen: Snapshot = await ask.sampler.look(ask.mq)
    began = {(group.topic, group.group): group.dead_letters for group in seen.began.groups}
    groups = sorted(
        (
            group
            for group in seen.traffic.groups
            if group.dead_letters and ask.caller.sees_topic(group.topic)
        ),
        key=lambda group: (-group.dead_letters, group.topic, group.group),
    )
    return ask.render(
        "letters.html",
        groups=groups,
        more={
            (group.topic, group.group): group.dead_letters
            - began.get((group.topic, group.group), group.dead_letters)
            for group in groups
        },
        since=seen.began.at,
    )


# --- the letters of a topic -----------------------------------------------------------------------


async def show_letters(ask: Ask) -> Response:
    """A topic's letters: their kinds, and a page of them."""
    topic = ask.path["topic"]
    group, matching = ask.query.get("group") or None, ask.query.get("matching")
    after, error, page = given(ask.query, "after"), None, LetterPage(letters=())
    kinds: list[LetterKind] = []
    try:
        page = await ask.mq.browse_letters(
            topic, group=group, matching=matching, after=after, limit=PAGE, whole=False
        )
        if after is None and matching is None:
            kinds = [*await ask.site.kinds.look(ask.mq, topic, group, lately=ask.is_renewal)]
    except InvalidInput as found:
        error = str(found)
    seen: Snapshot = await ask.sampler.look(ask.mq)
    groups = {one.group: one for one in seen.groups_of(topic) if one.dead_letters}
    to = partial(ask.url, "topics", topic, "letters", group=group, matching=matching)
    return ask.render(
        "topic_letters.html",
        status=422 if error else 200,
        name=topic,
        group=group or "",
        groups=groups,
        matching=matching,
        kinds=kinds[:KINDS_MAX],
        kinds_left=len(kinds) - len(kinds[:KINDS_MAX]),
        page=page,
        first=to() if after else None,
        older=to(after=page.next) if page.next else None,
        error=error,
        tabs=tabs(ask, topic, "letters"),
    )


# --- one letter -----------------------------------------------------------------------------------


async def letter_of(ask: Ask) -> DeadLetter[Any]:
    """The letter whose handle is in the path."""
    try:
        letter = await ask.mq.find_letter(ask.path["topic"], ask.path["letter"])
    except InvalidInput as error:
        raise Problem(400, str(error)) from None
    if letter is None:
        raise Problem(404, "this letter is not there any more: it was given back, or purged")
    return letter


async def show_letter(ask: Ask) -> Response:
    """A letter: the message, and why its group gave up on it."""
    letter = await letter_of(ask)
    return ask.render(
        "letter.html",
        name=ask.path["topic"],
        letter=letter,
        tabs=tabs(ask, ask.path["topic"], "letters"),
    )


async def show_edit(ask: Ask) -> Response:
    """The form to give a letter back with another payload."""
    letter = await letter_of(ask)
    values, hidden = {"form": "json", "payload": ""}, ask.site.mask.hides(letter.message.payload)
    if not hidden:
        values["form"], values["payload"] = plain_text(letter.message.payload)
    if (headers := headers_shown(ask, letter)) is not None:
        values["headers"] = headers
    return edit_page(ask, letter, values, {}, hidden=hidden)


def headers_shown(ask: Ask, letter: DeadLetter[Any]) -> str | None:
    """A letter's headers, one on each line; None if not all of them may or can be shown so."""
    headers = letter.message.headers
    if dict(ask.mask_headers(headers)) != dict(headers) or any("\n" in v for v in headers.values()):
        return None
    return "\n".join(f"{name}={value}" for name, value in headers.items())


async def edit(ask: Ask) -> Response:
    """Give a letter back with another payload."""
    topic = ask.path["topic"]
    letter, fields, errors = await letter_of(ask), await ask.form(), dict[str, str]()
    payload = put_in_words(
        lambda: (payload_of(fields.get("payload", ""), fields.get("form", "json")),),
        errors,
        "payload",
    )
    headers = put_in_words(lambda: headers_of(fields.get("headers")), errors, "headers")
    hidden = ask.site.mask.hides(letter.message.payload)
    if payload is None or errors:
        return edit_page(ask, letter, fields, errors, hidden=hidden)
    try:
        done = await ask.mq.redrive_edited(
            topic,
            letter=letter,
            payload=payload[0],
            headers=headers if "headers" in fields else None,
        )
    except InvalidInput as error:
        return edit_page(ask, letter, fields, {"": str(error)}, hidden=hidden)
    ask.note(group=letter.group, letter=letter.handle, given_back=done)
    ask.sampler.expire()
    flash = (
        f"Given back to {letter.group}, edited." if done else "This letter was not there any more."
    )
    level = "ok" if done else "note"
    return ask.redirect("topics", topic, "letters", flash=flash, level=level)


def edit_page(
    ask: Ask,
    letter: DeadLetter[Any],
    values: Mapping[str, str],
    errors: Mapping[str, str],
    *,
    hidden: bool,
) -> Response:
    return ask.render(
        "letter_edit.html",
        status=422 if errors else 200,
        name=ask.path["topic"],
        letter=letter,
        values=values,
        forms=FORMS,
        errors=errors,
        hidden=hidden,
        tabs=tabs(ask, ask.path["topic"], "letters"),
    )


# --- many letters: what would be done, and done ---------------------------------------------------


def chosen_in(fields: Mapping[str, str], ticked: Iterable[str]) -> Chosen:
    """Which letters a form or a URL names."""
    return Chosen(fields.get("group") or None, fields.get("matching"), tuple(ticked))


class Confirm(NamedTuple):
    """A page that shows what would be done."""

    action: str
    title: str
    verb: str
    done: str


REDRIVE = Confirm("redrive", "Give back", "Give back", "Gave back")
PURGE = Confirm("purge", "Purge", "Purge for good", "Purged")


async def preview(ask: Ask, confirm: Confirm) -> Response:
    """What would be done to the letters that were chosen."""
    topic = ask.path["topic"]
    ticked = ask.request.query_params.getlist("chosen")
    steps: Sequence[RedriveStep | PurgeStep] = []
    kind, error, chosen = None, None, None
    try:
        chosen = chosen_in(ask.query, ticked)
        if chosen.matching is not None:
            kinds = await ask.mq.letter_kinds(topic, group=chosen.group)
            kind = next((one for one in kinds if one.pattern == chosen.matching), None)
        elif chosen.letters or given(ask.query, "all") is not None:
            look = ask.mq.preview_redrive if confirm is REDRIVE else ask.mq.preview_purge
            steps = await look(topic, **chosen.arguments)
        else:
            error = "No letter was chosen: tick some of them."
    except InvalidInput as found:
        error = str(found)
    return ask.render(
        "letters_confirm.html",
        status=422 if error else 200,
        name=topic,
        confirm=confirm,
        chosen=chosen,
        ticked=ticked,
        steps=steps,
        letters=sum(step.letters for step in steps),
        gone=sum(step.gone for step in steps if isinstance(step, RedriveStep)),
        capped=any(step.capped for step in steps),
        kind=kind,
        at_once=clearing.AT_ONCE_MAX if kind is None else KIND_AT_ONCE_MAX,
        error=error,
        tabs=tabs(ask, topic, "letters"),
    )


async def show_redrive(ask: Ask) -> Response:
    """What giving back would do."""
    return await preview(ask, REDRIVE)


async def show_purge(ask: Ask) -> Response:
    """What purging would do."""
    return await preview(ask, PURGE)


async def redrive(ask: Ask) -> Response:
    """Give letters back to their groups."""
    return await done_to(ask, REDRIVE)


async def purge(ask: Ask) -> Response:
    """Delete letters for good."""
    return await done_to(ask, PURGE)


async def done_to(ask: Ask, confirm: Confirm) -> Response:
    """Do it, and say how many letters it were."""
    topic, fields = ask.path["topic"], await ask.form()
    do = clearing.redrive if confirm is REDRIVE else clearing.purge
    to = partial(ask.redirect, "topics", topic, "letters", group=fields.get("group") or None)
    try:
        chosen = chosen_in(fields, await ask.form_list("chosen"))
        ask.note(**noted(chosen))
        if chosen.matching is not None:
            cleared = await clear_kind(ask, topic, chosen, do)
        elif not chosen.letters and given(fields, "all") is None:
            raise InvalidOption("no letter was chosen")
        else:
            cleared = await do(ask.mq, topic, **chosen.arguments)
    except InvalidInput as error:
        return to(flash=str(error), level="warning")
    ask.note(count=cleared.done)
    ask.sampler.expire()
    flash = f"{confirm.done} {letters_said(cleared.done)}.{rest_said(chosen, cleared)}"
    return to(flash=flash, level="ok" if cleared.done else "note")


def letters_said(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"


def rest_said(chosen: Chosen, cleared: Cleared) -> str:
    """What is to be said of letters that it was not done to."""
    of_kind = "" if chosen.matching is None else " of this kind"
    if cleared.left:
        more = " or more" if cleared.capped else ""
        return f" {cleared.left:,}{more}{of_kind} are left: press again for the next ones."
    if cleared.capped:
        return f" There may be more{of_kind}: press again to look for them."
    missing = 0 if chosen.matching is not None else len(set(chosen.letters)) - cleared.done
    if missing > 0:
        are = "1 was" if missing == 1 else f"{missing:,} were"
        return f" {are} not there any more, or of a group that is not."
    return ""


async def clear_kind(
    ask: Ask, topic: str, chosen: Chosen, do: Callable[..., Awaitable[Cleared]]
) -> Cleared:
    """Do it to the newest letters of a kind, and count those that are left."""
    found, more = await letters_of_kind(ask, topic, chosen)
    done = (await do(ask.mq, topic, letters=found)).done if found else 0
    kinds: Sequence[LetterKind] = []
    if more:
        with contextlib.suppress(RowMQError):  # it is done, also if nobody can look afterwards
            kinds = await ask.mq.letter_kinds(topic, group=chosen.group)
    left = sum(kind.count for kind in kinds if kind.pattern == chosen.matching)
    return Cleared(done, left, capped=more and (not left or any(kind.capped for kind in kinds)))


async def letters_of_kind(ask: Ask, topic: str, chosen: Chosen) -> tuple[list[str], bool]:
    """The newest letters of a kind, so many as are for one button; and whether to look for more."""
    found: list[str] = []
    after = None
    for _ in range(LOOKS_MAX):
        page = await ask.mq.browse_letters(
            topic,
            group=chosen.group,
            matching=chosen.matching,
            after=after,
            limit=min(KIND_AT_ONCE_MAX - len(found), 500),
            whole=False,
        )
        found += [letter.handle for letter in page.letters]
        after = page.next
        if after is None or len(found) >= KIND_AT_ONCE_MAX:
            break
    return found, after is not None


def noted(chosen: Chosen) -> dict[str, Any]:
    """What the audit trail says of a choice."""
    named = {"group": chosen.group, "kind": chosen.matching}
    said: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if chosen.letters:
        said["letters"] = list(chosen.letters[:NOTED_MAX])
    return said


of_topic = partial(Route, topic="topic")

LETTERS = "/topics/{topic}/letters"

ROUTES = [
    Route("GET", "/letters", show_all, needs=Role.READ),
    of_topic("GET", LETTERS, show_letters, needs=Role.READ),
    of_topic("GET", f"{LETTERS}/redrive", show_redrive, needs=Role.ADMIN),
    of_topic("POST", f"{LETTERS}/redrive", redrive, needs=Role.ADMIN, action="letters.redrive"),
    of_topic("GET", f"{LETTERS}/purge", show_purge, needs=Role.ADMIN),
    of_topic("POST", f"{LETTERS}/purge", purge, needs=Role.ADMIN, action="letters.purge"),
    of_topic("GET", f"{LETTERS}/of/{{letter}}", show_letter, needs=Role.READ),
    of_topic("GET", f"{LETTERS}/of/{{letter}}/edit", show_edit, needs=Role.ADMIN),
    of_topic(
        "POST",
        f"{LETTERS}/of/{{letter}}/edit",
        edit,
        needs=Role.ADMIN,
        action="letters.redrive_edited",
    ),
]
