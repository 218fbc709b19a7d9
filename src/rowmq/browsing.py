"""What operators look at before they act: messages page by page, dead letters by kind, previews of
a seek and of a redrive, traffic; and giving a letter back with another payload.

Both clients have these methods, each a line or two: the input is checked and bound to an operation
here, once, and run by the client.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from rowmq.administration import Run, handle_of, selection_of, target_of
from rowmq.codec import encode, encode_headers
from rowmq.drivers.base import Steps, take_steps, take_steps_async
from rowmq.errors import InvalidOption
from rowmq.message import DeadLetter, new_id
from rowmq.naming import check_group, check_headers, check_id, check_topic
from rowmq.options import check_flag
from rowmq.overview import (
    ANY,
    AnyKey,
    LetterKind,
    LetterPage,
    MessagePage,
    PurgeStep,
    RedriveStep,
    SeekPreview,
    Traffic,
)
from rowmq.quoting import quoted
from rowmq.store.cursors import Cursor
from rowmq.store.keys import KEYLESS, SHARD_KEYS, Offsets, Place, chosen_key, stored_key
from rowmq.store.rewriting import Edit
from rowmq.store.selection import Handle, Selection
from rowmq.store.sorting import Wanted
from rowmq.store.statement import Operation
from rowmq.store.store import Store
from rowmq.times import to_micros

__all__ = ["PAGE_MAX", "AsyncBrowsing", "Browsing"]

T = TypeVar("T")

PAGE_MAX = 500
"""How many messages or letters there are on a page, at most."""


class Browsing:
    """What operators look at, for sync code."""

    _store: Store

    def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    def browse(
        self,
        topic: str,
        *,
        key: str | Place | AnyKey | None = ANY,
        at: datetime | None = None,
        id: str | None = None,
        before: str | None = None,
        after: str | None = None,
        limit: int = 50,
        whole: bool = True,
    ) -> MessagePage:
        """Look at a topic's messages page by page, newest first; none is consumed.

        Those of a key; with `key=None` those without one, with `(None, 3)` those of a shard; else
        all, by when they were published. A page begins with the newest message, or with the newest
        that was published `at` a time or before, or, with an `id`, has the messages of that id.
        `before` and `after` take the cursors of another page. At most 500 messages, and fewer where
        payloads are large; with `whole=False`, payloads of more than 4 KiB are a `Beginning`, and
        the page is quick however large they are.
        """
        return self._run(
            browse_operation(self._store, topic, key, at, id, before, after, limit, whole)
        )

    def preview_seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | datetime | Offsets,
        key: str | Place | None = None,
        limit: int = 100,
    ) -> SeekPreview:
        """What `seek` would do if it were called with the same: all together, and in each of the
        partitions in which it would do most, at most `limit` of them.
        """
        return self._run(preview_seek_operation(self._store, topic, group, to, key, limit))

    def preview_redrive(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
    ) -> list[RedriveStep]:
        """What `redrive` would do if it were called with the same, group by group."""
        chosen = selection_of(topic, group, ids, letters)
        return self._run(partial(self._store.previews.redrive, chosen))

    def preview_purge(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
    ) -> list[PurgeStep]:
        """What `purge_dead_letters` would do if it were called with the same, group by group."""
        chosen = selection_of(topic, group, ids, letters)
        return self._run(partial(self._store.previews.purge, chosen))

    def find_letter(self, topic: str, handle: str) -> DeadLetter[Any] | None:
        """The dead letter of a topic that has a handle; None if it was given back, or purged."""
        return self._run(find_operation(self._store, topic, handle))

    def browse_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        id: str | None = None,
        matching: str | None = None,
        after: str | None = None,
        limit: int = 50,
        whole: bool = True,
    ) -> LetterPage:
        """Look at a topic's dead letters page by page, newest first.

        Those of one `group`, of messages with an `id`, or `matching` the pattern of a kind, as
        `letter_kinds` gives it. `after` takes the cursor of the page before. With `whole=False`,
        payloads of more than 4 KiB are a `Beginning`, as with `browse`.
        """
        return self._run(
            letters_operation(self._store, topic, group, id, matching, after, limit, whole)
        )

    def letter_kinds(self, topic: str, *, group: str | None = None) -> list[LetterKind]:
        """A topic's dead letters by what their errors have in common, the most frequent first.

        Errors are of one kind if they differ in numbers, ids, addresses and quoted texts only. Of
        very many letters the newest ten thousand are looked at.
        """
        return self._run(kinds_operation(self._store, topic, group))

    def redrive_edited(
        self,
        topic: str,
        *,
        payload: Any,
        group: str | None = None,
        id: str | None = None,
        letter: DeadLetter[Any] | str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | Place | None = None,
    ) -> bool:
        """Give a dead letter back to its group with another payload; False if there is none.

        It is that of the message with this `id` that the `group` gave up on; or exactly this
        `letter`, as it was told or by its handle. Where messages of several keys have this id,
        `key` says which is meant.

        The message in the log stays as it is, and no other group sees anything of this. The group
        gets a message of a new id at an offset below zero, whose headers `rowmq-edited-id` and
        `rowmq-edited-offset` name the original; its other headers are those of the message, or
        `headers`. Raises `PayloadTooLarge` if it is over the topic's limit, `UnknownGroup` and
        `InvalidInput`.
        """
        chosen = letter_chosen(topic, group, id, letter)
        return take_steps(edit_steps(self._run, self._store, chosen, payload, headers, key))

    def traffic(self) -> Traffic:
        """All topics and groups at this moment, in few statements: for charts and metrics."""
        return self._run(self._store.traffic.snapshot)


class AsyncBrowsing:
    """What operators look at, for async code."""

    _store: Store

    async def _run(self, make: Callable[[], Operation[T]], connection: Any = None) -> T:
        raise NotImplementedError

    async def browse(
        self,
        topic: str,
        *,
        key: str | Place | AnyKey | None = ANY,
        at: datetime | None = None,
        id: str | None = None,
        before: str | None = None,
        after: str | None = None,
        limit: int = 50,
        whole: bool = True,
    ) -> MessagePage:
        """Look at a topic's messages page by page, newest first: see `RowMQ.browse`."""
        browse = browse_operation(self._store, topic, key, at, id, before, after, limit, whole)
        return await self._run(browse)

    async def preview_seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | datetime | Offsets,
        key: str | Place | None = None,
        limit: int = 100,
    ) -> SeekPreview:
        """What `seek` would do if it were called with the same: see `RowMQ.preview_seek`."""
        return await self._run(preview_seek_operation(self._store, topic, group, to, key, limit))

    async def preview_redrive(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
    ) -> list[RedriveStep]:
        """What `redrive` would do if it were called with the same, group by group."""
        chosen = selection_of(topic, group, ids, letters)
        return await self._run(partial(self._store.previews.redrive, chosen))

    async def preview_purge(
        self,
        topic: str,
        *,
        group: str | None = None,
        ids: Iterable[str] | None = None,
        letters: Iterable[DeadLetter[Any] | str] | None = None,
    ) -> list[PurgeStep]:
        """What `purge_dead_letters` would do if it were called with the same, group by group."""
        chosen = selection_of(topic, group, ids, letters)
        return await self._run(partial(self._store.previews.purge, chosen))

    async def find_letter(self, topic: str, handle: str) -> DeadLetter[Any] | None:
        """The dead letter of a topic that has a handle; None if it was given back, or purged."""
        return await self._run(find_operation(self._store, topic, handle))

    async def browse_letters(
        self,
        topic: str,
        *,
        group: str | None = None,
        id: str | None = None,
        matching: str | None = None,
        after: str | None = None,
        limit: int = 50,
        whole: bool = True,
    ) -> LetterPage:
        """Look at a topic's dead letters page by page: see `RowMQ.browse_letters`."""
        letters = letters_operation(self._store, topic, group, id, matching, after, limit, whole)
        return await self._run(letters)

    async def letter_kinds(self, topic: str, *, group: str | None = None) -> list[LetterKind]:
        """A topic's dead letters by what their errors have in common: see `RowMQ.letter_kinds`."""
        return await self._run(kinds_operation(self._store, topic, group))

    async def redrive_edited(
        self,
        topic: str,
        *,
        payload: Any,
        group: str | None = None,
        id: str | None = None,
        letter: DeadLetter[Any] | str | None = None,
        headers: Mapping[str, str] | None = None,
        key: str | Place | None = None,
    ) -> bool:
        """Give a dead letter back to its group with another payload: see `RowMQ.redrive_edited`."""
        chosen = letter_chosen(topic, group, id, letter)
        steps = edit_steps(self._run, self._store, chosen, payload, headers, key)
        return await take_steps_async(steps)

    async def traffic(self) -> Traffic:
        """All topics and groups at this moment, in few statements: for charts and metrics."""
        return await self._run(self._store.traffic.snapshot)


# --- input, checked and bound to an operation -----------------------------------------------------


def browse_operation(  # noqa: PLR0917 - as they are given
    store: Store,
    topic: str,
    key: str | Place | AnyKey | None,
    at: datetime | None,
    id: str | None,
    before: str | None,
    after: str | None,
    limit: int,
    whole: bool,
) -> Callable[[], Operation[MessagePage]]:
    """The checked arguments of `browse`, bound to its operation."""
    if sum(given is not None for given in (at, id, before, after)) > 1:
        raise InvalidOption("give one of at=, id=, before= and after=, or none of them")
    topic, keys, limit = check_topic(topic), keys_of(key), check_page(limit)
    browsing = store.browsing
    page: dict[str, Any] = {"limit": limit, "whole": check_flag("whole", whole)}
    if id is not None:
        return partial(browsing.look_up, topic, keys, check_id(id), **page)
    if after is not None:
        return partial(browsing.newer, topic, keys, Cursor.read(after), **page)
    if at is not None:
        return partial(browsing.older, topic, keys, Cursor.at(to_micros(at)), **page)
    cursor = None if before is None else Cursor.read(before)
    return partial(browsing.older, topic, keys, cursor, **page)


def keys_of(key: str | Place | AnyKey | None) -> tuple[str, ...] | None:
    """The stored keys of the partitions that are meant; None for all."""
    if key is ANY:
        return None
    stored = stored_key(key)
    return SHARD_KEYS if stored == KEYLESS else (stored,)


def check_page(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise InvalidOption(f"limit must be from 1 to {PAGE_MAX}, not {quoted(limit)}")
    return limit


def preview_seek_operation(  # noqa: PLR0917 - as they are given
    store: Store,
    topic: str,
    group: str,
    to: str | datetime | Offsets,
    key: str | Place | None,
    limit: int,
) -> Callable[[], Operation[SeekPreview]]:
    stored, target = chosen_key(key), target_of(to)
    if target.offsets is not None and key is not None:
        raise InvalidOption("give offsets by key, as in to={key: offset}, or key=, but not both")
    most, names = check_page(limit), (check_topic(topic), check_group(group))
    return partial(store.previews.seek, *names, key=stored, to=target, limit=most)


def find_operation(
    store: Store, topic: str, handle: str
) -> Callable[[], Operation[DeadLetter[Any] | None]]:
    return partial(store.letters.find, check_topic(topic), Handle.read(handle))


def letters_operation(  # noqa: PLR0917 - as they are given
    store: Store,
    topic: str,
    group: str | None,
    id: str | None,
    matching: str | None,
    after: str | None,
    limit: int,
    whole: bool,
) -> Callable[[], Operation[LetterPage]]:
    """The checked arguments of `browse_letters`, bound to its operation."""
    if matching is not None and not isinstance(matching, str):
        raise InvalidOption(f"matching must be the pattern of a kind, not {quoted(matching)}")
    wanted = Wanted(
        check_topic(topic),
        None if group is None else check_group(group),
        None if id is None else check_id(id),
    )
    return partial(
        store.sorting.page,
        wanted,
        matching=matching,
        after=None if after is None else Cursor.read(after),
        limit=check_page(limit),
        whole=check_flag("whole", whole),
    )


def kinds_operation(
    store: Store, topic: str, group: str | None
) -> Callable[[], Operation[list[LetterKind]]]:
    name = None if group is None else check_group(group)
    return partial(store.sorting.kinds, check_topic(topic), group=name)


def letter_chosen(
    topic: str, group: str | None, id: str | None, letter: DeadLetter[Any] | str | None
) -> Selection:
    """The letter that is meant, or those of a message of one group."""
    name = None if group is None else check_group(group)
    if letter is not None and id is None:
        return Selection(check_topic(topic), name, handles=[handle_of(letter)])
    if letter is not None or id is None or name is None:
        raise InvalidOption("say which letter is meant: letter=, or group= and id=")
    return Selection(check_topic(topic), name, ids=[check_id(id)])


def edit_steps(  # noqa: PLR0917 - as they are given
    run: Run,
    store: Store,
    chosen: Selection,
    payload: Any,
    headers: Mapping[str, str] | None,
    key: str | Place | None,
) -> Steps[bool]:
    """Make room for an edited letter, and give it back, once its arguments are checked.

    The new id is made here, once: by it a repeat knows that an earlier try was committed.
    """
    stored = chosen_key(key)
    data, encoding = encode(payload)
    own = None if headers is None else encode_headers(check_headers(headers))
    edit = Edit(data, int(encoding), own, keeps_headers=headers is None, id=new_id())
    rewriting, done = store.rewriting, None
    while done is None:
        yield partial(run, partial(rewriting.make_room, chosen, key=stored, edit=edit))
        done = yield partial(run, partial(rewriting.redrive, chosen, key=stored, edit=edit))
    return bool(done)
