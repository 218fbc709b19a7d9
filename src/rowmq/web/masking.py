"""What payloads and headers do not show: rules by the name of a header, by field or path of JSON.

    header:authorization     a header of this name; * stands for anything
    field:*password*         a member of this name, at whatever depth
    path:customer.cards[*].number    a member at this place; * stands for any name or index
    payload                  every payload, whole

Names are compared without case, - and _: apiKey, API-Key and api_key are one. Where a rule has one
of these, a name may have a space or a dot. A name of several, such as `user[token]`, is each of
them, too.

Text with JSON in it is looked into, be it a payload or a member of one. What looks as if it could
hold a field, and cannot be read for certain, is masked whole: of two readings of a text, one might
show it.

What is masked is a copy: nothing of this touches what is stored, or what consumers are given.
"""

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from rowmq.codec import Beginning
from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.web.likely import Words

__all__ = ["DEFAULT_MASKS", "MASKED", "Mask", "check_masks"]

MASKED = "•••"

DEPTH_MAX = 100

DEFAULT_MASKS = (
    "header:*authorization*",
    "header:*cookie*",
    "header:*api-key*",
    "header:*password*",
    "header:*secret*",
    "header:*token*",
    "field:*password*",
    "field:*passwd*",
    "field:*passphrase*",
    "field:*secret*",
    "field:*private_key*",
    "field:*api_key*",
    "field:*access_token*",
    "field:*refresh_token*",
    "field:*token",
    "field:authorization",
)
"""What hardly anybody wants to see on a screen."""

STEP = re.compile(r"\[(\*|\d+)\]|\.?([^.\[\]]+)")

JOINTS = re.compile(r"(\[[^\]]*\])|[-_]")
"""What joins the words of a pattern; not what stands in it for one of several characters."""

SEPARATE = re.compile(r"\W+")
"""What is between the names that a name may be made of: user[token], user.token."""

REMEMBERED_CHARS_MAX = 200

UNREAD = object()


class Rules(NamedTuple):
    """Rules, as they are asked: patterns of names, and paths as patterns of their steps. `words`
    are what a text has in it in which one of these names may stand.
    """

    headers: re.Pattern[str] | None
    fields: re.Pattern[str] | None
    paths: tuple[tuple[str, ...], ...]
    whole: bool
    words: Words


def check_masks(masks: Iterable[str]) -> Rules:
    """Rules of masks, or `InvalidOption`."""
    if isinstance(masks, str):
        raise InvalidOption(f"masks must be a list of rules, not {quoted(masks)}")
    found: dict[str, list[str]] = {"header": [], "field": [], "path": [], "payload": []}
    for mask in masks:
        kind, _, pattern = mask.partition(":")
        if kind not in found or bool(pattern) == (kind == "payload"):
            raise InvalidOption(
                f"a mask is header:NAME, field:NAME, path:a.b[*].c or payload, not {quoted(mask)}"
            )
        found[kind].append(pattern)
    paths = tuple(map(steps_of, found["path"]))
    return Rules(
        headers=any_of(found["header"]),
        fields=any_of(found["field"]),
        paths=paths,
        whole=bool(found["payload"]),
        words=Words(chain.from_iterable(map(patterns_of, found["field"])), map(names_in, paths)),
    )


def plain_name(name: str) -> str:
    """A name as it is compared."""
    return name.casefold().replace("-", "").replace("_", "")


def patterns_of(pattern: str) -> list[str]:
    """What a pattern looks for in names as they are compared: its words joined by nothing, or by
    what joins them where names are written for people.
    """

    def joined(joint: str) -> str:
        return JOINTS.sub(lambda match: match[1] or joint, pattern.casefold())

    return [joined(""), joined("[ .]")]


def any_of(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """One pattern that matches whatever one of these does, as it is written and as it is compared:
    one may ask for what joins the words of a name.
    """
    written = {each: None for one in patterns for each in (*patterns_of(one), one.casefold())}
    return re.compile("|".join(map(fnmatch.translate, written))) if written else None


def is_one(pattern: re.Pattern[str] | None, name: str) -> bool:
    """Whether a name is one of those."""
    if pattern is None:
        return False
    matched = remembered if len(name) <= REMEMBERED_CHARS_MAX else matches
    return matched(pattern, name)


def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a pattern matches a name, as it is written or as it is compared, or one within it."""
    plain = plain_name(name)
    return any(map(pattern.match, (plain, name.casefold(), *SEPARATE.split(plain))))


remembered = lru_cache(2_000)(matches)
"""The members of a payload are mostly called as those of the one before."""


def names_in(path: Sequence[str]) -> list[str]:
    """The names on a path; there are none in one of indexes only."""
    return [step for step in path if not step.isdigit() and step != "*"]


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path, such as `customer.cards[*].number`, with or without `$` before it."""
    rest = path.removeprefix("$").removeprefix(".")
    steps: list[str] = []
    place = 0
    while place < len(rest):
        match = STEP.match(rest, place)
        if match is None:
            raise InvalidOption(f"a mask's path looks like customer.cards[*].number, not {path!r}")
        steps.append(plain_name(match[1] or match[2]))
        place = match.end()
    if not steps:
        raise InvalidOption("a mask's path names nothing; write payload to mask all of it")
    return tuple(steps)


class Mask:
    """The rules of a site, at work."""

    def __init__(self, masks: Iterable[str]) -> None:
        self.rules = check_masks(masks)

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Headers with the values masked that are not to be seen."""
        if not any(map(self.hides_header, headers)):
            return headers
        return {name: MASKED if self.hides_header(name) else v for name, v in headers.items()}

    def hides_header(self, name: str) -> bool:
        """Whether the value of a header is masked."""
        return is_one(self.rules.headers, name)

    def sought(self, headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Headers that something is looked for by; `InvalidOption` if one is masked: who tries
        values until one is found would know it.
        """
        for name in headers or {}:
            if self.hides_header(name):
                raise InvalidOption(
                    f"header {quoted(name)} is masked here, so nothing can be looked for by it"
                )
        return headers

    def payload(self, payload: Any) -> Any:
        """A payload with what is not to be seen masked; the same object if that is nothing. Of the
        beginning of one, nothing is shown if a field may be in it: it cannot be read as JSON.
        """
        rules = self.rules
        if isinstance(payload, Beginning):
            shown = self.beginning(payload.data)
            return payload if shown is payload.data else shown
        if rules.whole:
            return MASKED
        if rules.fields is None and not rules.paths:
            return payload
        if isinstance(payload, str | bytes):
            return self._text(payload, rules.paths, DEPTH_MAX)
        return self._value(payload, rules.paths, DEPTH_MAX)

    def hides(self, payload: Any) -> bool:
        """Whether anything of a payload is masked: then what is shown must not be sent back."""
        return self.payload(payload) is not payload

    def beginning(self, payload: str | bytes) -> str | bytes:
        """The beginning of a text, the rest of which nobody has read."""
        rules = self.rules
        unnamed = any(not names_in(path) for path in rules.paths) and is_json(payload)
        return MASKED if rules.whole or unnamed or rules.words.may_be_in(payload) else payload

    def _text(self, payload: str | bytes, paths: Sequence[tuple[str, ...]], depth: int) -> Any:
        """Text in which there is JSON is written anew if anything in it is masked."""
        if not is_json(payload):
            return MASKED if self.rules.words.may_be_in(payload) else payload
        value = read(payload)
        if value is UNREAD:
            unnamed = any(not names_in(path) for path in paths)
            return MASKED if unnamed or self.rules.words.may_be_in(payload) else payload
        masked = self._value(value, paths, depth)
        if masked is value:
            return payload
        try:
            text = msgspec.json.encode(masked)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return MASKED
        return text if isinstance(payload, bytes) else text.decode()

    def _within(self, text: str, paths: Sequence[tuple[str, ...]], depth: int) -> str:
        """A text that is a member of a payload."""
        if is_json(text):
            return MASKED if depth == 0 else str(self._text(text, paths, depth - 1))
        return MASKED if self.rules.words.are_given_in(text) else text

    def _value(self, value: Any, paths: Sequence[tuple[str, ...]], depth: int) -> Any:
        """A value of JSON; the same object if nothing in it is masked."""
        if isinstance(value, str):
            return self._within(value, paths, depth)
        if not isinstance(value, dict | list):
            return value
        if depth == 0:
            return MASKED  # deeper than anybody reads, and than this looks
        changed = self._changed(value, paths, depth)
        if not changed:
            return value
        if isinstance(value, dict):
            return value | changed
        return [changed.get(place, member) for place, member in enumerate(value)]

    def _changed(
        self, value: dict[Any, Any] | list[Any], paths: Sequence[tuple[str, ...]], depth: int
    ) -> dict[Any, Any]:
        """The members in which anything is masked, by their names or places."""
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        fields = self.rules.fields
        changed: dict[Any, Any] = {}
        for name, member in pairs:
            inner = [path[1:] for path in paths if fits(path[0], name)]
            masked = MASKED
            if () not in inner and not (isinstance(name, str) and is_one(fields, name)):
                masked = self._value(member, inner, depth - 1)
            if masked is not member:
                changed[name] = masked
        return changed


def fits(step: str, name: Any) -> bool:
    """Whether a step of a path goes to this member or index."""
    return step == "*" or fnmatch.fnmatchcase(plain_name(str(name)), step)


# --- text with JSON in it -------------------------------------------------------------------------


def is_json(text: str | bytes) -> bool:
    """Whether a text begins as an object or an array does."""
    return text.lstrip()[:1] in (b"{", b"[", "{", "[")


def read(text: str | bytes) -> Any:
    """What a text says in JSON, if it can be read in one way only; else `UNREAD`."""
    try:
        return json.loads(
            text if isinstance(text, str) else text.decode(),
            object_pairs_hook=once,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError):
        return UNREAD


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object. Of a name that is there twice, each reader takes another one."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members


def refuse(constant: str) -> Any:
    """NaN and its like are no JSON."""
    raise ValueError(constant)
