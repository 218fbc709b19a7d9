"""Steering groups over HTTP: seek, dead letters, redrive and purge, each to be looked at before."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import rowmq
from rowmq.rights import Role
from rowmq.web import clearing
from rowmq.web.api import models
from rowmq.web.api.calls import Calls
from rowmq.web.api.payloads import plain
from rowmq.web.api.topics import NO_GROUP, place_of, shown
from rowmq.web.asking import Ask
from rowmq.web.problems import Problem

__all__ = ["CALLS"]

CALLS = Calls("Steering groups", "Seek, dead letters, redrive and purge; and what each would do.")

NOTED_MAX = 20
"""How many letters stand in the audit trail."""

To = str | datetime | Mapping[Any, int]


# --- seek -----------------------------------------------------------------------------------------


@CALLS.get("/topics/{topic}/groups/{group}/seek", needs=Role.READ, missing=NO_GROUP)
async def preview_seek(ask: Ask, query: models.SeekWanted) -> models.SeekPreview:
    """What a seek would do, in all partitions together and in those in which it would do most;
    nothing is changed.
    """
    key = None if query.offset is not None else place_of(query.key, query.shard)
    offsets = None
    if query.offset is not None:
        offsets = {place_of(query.key, query.shard): query.offset}
    to = one_of(query.to, query.at, offsets)
    found = await ask.mq.preview_seek(
        ask.path["topic"], ask.path["group"], to=to, key=key, limit=query.limit
    )
    return models.SeekPreview(
        partitions=found.partitions,
        again=found.again,
        skipped=found.skipped,
        in_flight=found.in_flight,
        steps=list(found.steps),
    )


@CALLS.post(
    "/topics/{topic}/groups/{group}/seek", needs=Role.ADMIN, action="group.seek", missing=NO_GROUP
)
async def seek(ask: Ask, body: models.Seek) -> models.Counted:
    """Move a group: it goes on at the start, at the end, at a time or at offsets, in all partitions
    or in one. What it has in flight becomes void. Counts the partitions that were moved.
    """
    offsets = None
    if body.offsets is not None:
        offsets = {place_of(one.key, one.shard): one.offset for one in body.offsets}
        if body.key is not None or body.shard is not None:
            raise Problem(422, "the keys of offsets stand beside each of them")
    to = one_of(body.to, body.at, offsets)
    told = "offsets" if offsets is not None else str(to)[:200]
    ask.note(to=told, key=body.key)
    moved = await ask.mq.seek(
        ask.path["topic"], ask.path["group"], to=to, key=place_of(body.key, body.shard)
    )
    ask.note(moved=moved)
    return models.Counted(count=moved)


def one_of(to: str | None, at: datetime | None, offsets: Mapping[Any, int] | None) -> To:
    """Where to, which is said in one of three ways."""
    given = [one for one in (to, at, offsets) if one is not None]
    if len(given) != 1:
        raise Problem(422, "say where to go on in one way: to, at, or an offset")
    return given[0]


# --- dead letters ---------------------------------------------------------------------------------


@CALLS.get("/topics/{topic}/letters", needs=Role.READ)
async def browse_letters(ask: Ask, query: models.LettersWanted) -> models.DeadLetters:
    """The messages that groups of a topic gave up on, newest first. Payloads and headers are masked
    as the settings of the server say.
    """
    page = await ask.mq.browse_letters(
        ask.path["topic"],
        group=query.group,
        id=query.id,
        matching=query.matching,
        after=query.after,
        limit=query.limit,
    )
    letters = [letter_of(ask, letter) for letter in page.letters]
    return models.DeadLetters(letters=letters, next=page.next)


@CALLS.get("/topics/{topic}/letters/kinds", needs=Role.READ)
async def list_letter_kinds(ask: Ask, query: models.LettersOf) -> models.LetterKinds:
    """Dead letters by what their errors have in common, numbers, ids and quoted texts aside; as
    they were ten seconds ago at most.
    """
    kinds = await ask.site.kinds.look(ask.mq, ask.path["topic"], query.group, lately=True)
    return models.LetterKinds(kinds=[*kinds])


@CALLS.get(
    "/topics/{topic}/letters/{letter}",
    needs=Role.READ,
    missing="The letter is not there any more: it was given back, or purged.",
)
async def get_letter(ask: Ask) -> models.DeadLetter:
    """A dead letter, by its handle. Payload and headers are masked as in lists."""
    letter = await ask.mq.find_letter(ask.path["topic"], ask.path["letter"])
    if letter is None:
        raise Problem(404, "this letter is not there any more: it was given back, or purged")
    return letter_of(ask, letter)


@CALLS.get("/topics/{topic}/redrive", needs=Role.READ, missing=NO_GROUP)
async def preview_redrive(ask: Ask, query: models.LettersOf) -> models.RedrivePreview:
    """What a redrive would do, group by group; nothing is changed."""
    steps = await ask.mq.preview_redrive(ask.path["topic"], group=query.group)
    return models.RedrivePreview(steps=steps)


@CALLS.post("/topics/{topic}/redrive", needs=Role.ADMIN, action="letters.redrive", missing=NO_GROUP)
async def redrive(ask: Ask, body: models.Letters) -> models.Cleared:
    """Give dead letters back to their groups: other groups see nothing of it. A call does so to
    5,000 at most; if there are any `left`, call again.
    """
    return told(ask, await clearing.redrive(ask.mq, ask.path["topic"], **chosen(ask, body)))


@CALLS.post(
    "/topics/{topic}/redrive/edited",
    needs=Role.ADMIN,
    action="letters.redrive_edited",
    missing=NO_GROUP,
)
async def redrive_edited(ask: Ask, body: models.EditedLetter) -> models.Done:
    """Give a dead letter back to its group with another payload. The message in the topic stays as
    it is, and no other group sees anything of this. Without headers it keeps its own.
    """
    named = {"group": body.group, "id": body.id, "letter": body.letter}
    ask.note(**{name: value for name, value in named.items() if value is not None})
    done = await ask.mq.redrive_edited(
        ask.path["topic"],
        **named,
        payload=plain(body.payload, body.encoding),
        headers=body.headers,
        key=place_of(body.key, body.shard),
    )
    return models.Done(changed=done)


@CALLS.post("/topics/{topic}/letters/purge", needs=Role.ADMIN, action="letters.purge")
async def purge_letters(ask: Ask, body: models.Letters) -> models.Cleared:
    """Delete dead letters for good. A call does so to 5,000 at most; if there are any `left`, call
    again.
    """
    return told(ask, await clearing.purge(ask.mq, ask.path["topic"], **chosen(ask, body)))


def chosen(ask: Ask, body: models.Letters) -> dict[str, Any]:
    """Which letters are meant. All of them are not meant by saying nothing."""
    if [body.all, body.ids is not None, body.letters is not None].count(True) != 1:
        raise Problem(
            422, 'say which letters in one way: letters, ids, or "all": true, if it is all of them'
        )
    lists = {"ids": body.ids, "letters": body.letters}
    given = {name: value for name, value in lists.items() if value is not None}
    noted: dict[str, Any] = {name: value[:NOTED_MAX] for name, value in given.items()}
    ask.note(group=body.group, all=body.all, **noted)
    return {"group": body.group, **given}


def told(ask: Ask, cleared: clearing.Cleared) -> models.Cleared:
    """How many it were, for the trail as well."""
    ask.note(count=cleared.done)
    return models.Cleared(count=cleared.done, left=cleared.left, capped=cleared.capped)


def letter_of(ask: Ask, letter: "rowmq.DeadLetter[Any]") -> models.DeadLetter:
    """The letter, for an answer, without what is to be hidden."""
    return models.DeadLetter(
        group=letter.group,
        error=letter.error,
        attempts=letter.attempts,
        failed_at=letter.failed_at,
        handle=letter.handle,
        message=shown(ask, letter.message),
    )
