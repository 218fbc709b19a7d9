"""What others chose is quoted in one line, shortly, and whatever it is."""

import pytest

from rowmq.quoting import CHARS_MAX, SAID_CHARS_MAX, in_line, quoted, visible


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("a bug of somebody's")


class Loud:
    def __repr__(self) -> str:
        return "first\nsecond\x1b[2J\ud800"


SHORT: dict[str, object] = {
    '"it\'s"': "it's",
    r"b'a\x00'": b"a\0",
    r"'\u202ered\n'": "\u202ered\n",
    "a number too long to show": 10**5000,
    "<list>": [10**5000],
    "<Unspeakable>": Unspeakable(),
    r"first\nsecond\x1b[2J\ud800": Loud(),
    "None": None,
}


@pytest.mark.parametrize("shown", SHORT)
def test_a_value_is_quoted_in_one_line(shown: str) -> None:
    assert quoted(SHORT[shown]) == shown


LONG = {
    "text": "x" * 2**24,
    "bytes": b"\xff" * 2**24,
    "list": ["x" * 2**20],
    "surrogates": "\ud800" * 2**20,
    "bytearray": bytearray(2**20),
}


@pytest.mark.parametrize("kind", LONG)
def test_what_is_long_is_cut(kind: str) -> None:
    assert quoted(LONG[kind]).endswith("...")
    assert len(quoted(LONG[kind])) == CHARS_MAX + len("...")


def test_what_is_plainly_visible_stays() -> None:
    text = "größe 大\u3000😀 %s {x} [red]"
    assert visible(text) == text


def test_what_others_say_is_one_line_that_is_not_long() -> None:
    assert in_line("one\n  two\r\n\x1b[2J\u2028three") == r"one two \x1b[2J three"
    for long in ("x" * 2**24, "\x1b" * SAID_CHARS_MAX, "\ud800\n" * 2**20):
        assert in_line(long).endswith("...")
        assert len(in_line(long)) == SAID_CHARS_MAX + len("...")
