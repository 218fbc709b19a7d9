"""Whether a name may stand in a text that cannot be read as JSON: then what it names may, too.

Whatever the text is (lines of JSON, a form, YAML, a table, bytes with names in them), a name stands
in it as itself, or with characters written as codes. This looks for it with the codes undone. It
finds rather too much than too little.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Words"]

WILD = re.compile(r"(\*|\?|\[[^\]]*\])")

BETWEEN = r".{0,100}?"
"""What a star stands for in the middle of a pattern: not half of the text."""

CODES = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))|%([0-9a-fA-F]{2})")
"""How JSON, other languages and forms write a character. A run of backslashes is tried once, from
its first: from each of them, a long one would take its length by its length.
"""

BEGINS = r"(?:(?<!\w)|(?<=\\[0abefnrtv]))"
"""Where a name may begin: also after a line's end and its like, which are written with a letter."""

DROPPED = ("-", "_", "\ufeff")
"""What names are compared without."""

GIVEN = r"\w{0,40}[\\\"']{0,8}\s{0,4}[:=>]\s{0,4}\S"
"""What comes after a name that is given a value."""


class Word(NamedTuple):
    """A pattern: what must be there for it to match, and what matches it."""

    part: str
    anywhere: re.Pattern[str]
    given: re.Pattern[str]

    def is_in(self, plain: str) -> bool:
        """Whether it is there; its longest part, which most texts do not have, is quickly seen."""
        return self.part in plain and self.anywhere.search(plain) is not None

    def is_given_in(self, plain: str) -> bool:
        """Whether it is there, and given a value."""
        return self.part in plain and self.given.search(plain) is not None


class Words:
    """Patterns of names, to be looked for in text: without case, - and _, as they are given.
    Those of one of `together` only count all at once.
    """

    def __init__(self, patterns: Iterable[str], together: Iterable[Sequence[str]] = ()) -> None:
        self._words = tuple(map(word_of, patterns))
        self._together = tuple(tuple(map(word_of, some)) for some in together if some)

    def may_be_in(self, text: str | bytes) -> bool:
        """Whether names stand anywhere in a text."""
        plain = plain_text(text)
        return any(word.is_in(plain) for word in self._words) or any(
            all(word.is_in(plain) for word in some) for some in self._together
        )

    def are_given_in(self, text: str) -> bool:
        """Whether a name in a text is given a value: `password=x`, `password: x`."""
        if not any(sign in text for sign in ":=>%"):
            return False
        plain = plain_text(text)
        return any(word.is_given_in(plain) for word in self._words)


def plain_text(text: str | bytes) -> str:
    """A text as names are compared, with codes as what they stand for."""
    found = text if isinstance(text, str) else text.decode(errors="replace")
    if "\\" in found or "%" in found:
        found = CODES.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), found)
    found = found.casefold()
    for char in DROPPED:
        found = found.replace(char, "")
    if "\0" in found:
        # They stand between names, or beside each letter, as in UTF-16: so it is read in both ways.
        return found + "\0" + found.replace("\0", "")
    return found


def word_of(pattern: str) -> Word:
    """What a pattern of names looks like within a text."""
    parts = WILD.split(pattern)
    begins = "" if pattern.startswith("*") else BEGINS
    ends = "" if pattern.endswith("*") else r"(?!\w)"
    inner = "".join(map(expression_of, parts)).removeprefix(BETWEEN).removesuffix(BETWEEN)
    return Word(
        max((part for part in parts if not WILD.fullmatch(part)), key=len),
        re.compile(begins + inner + ends, re.DOTALL),
        re.compile(begins + inner + ends + GIVEN, re.DOTALL),
    )


def expression_of(part: str) -> str:
    """A part of a pattern as an expression."""
    if part == "*":
        return BETWEEN
    return "." if WILD.fullmatch(part) else re.escape(part)
