"""Errors of one kind have one pattern; others have another."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from rowmq.likeness import LOOKED_AT_CHARS, pattern_of

KINDS = {
    "ValueError: no customer <n>": ["ValueError: no customer 17", "ValueError:  no customer 4,711"],
    "KeyError: '…'": ["KeyError: 'a'", 'KeyError: "it\'s"', "KeyError: `b`", "KeyError: «c»"],
    "can't open '…'": ["can't open '/tmp/x'", "can't open '/tmp/y/z'"],
    "user <id> is gone": ["user 0195a2c4-77aa-7c11-8f00-c0ffee123456 is gone"],
    "object at <hex>": ["object at 0x7f00deadbeef", "object at 0X1"],
    "commit <hex> failed": ["commit deadbee1 failed", "commit 0a1b2c3d4e5f failed"],
    "not before <time>": [
        "not before 2026-01-01",
        "not before 2026-01-01T12:00:00.5Z",
        "not before 2026-01-01 12:00+01:00",
    ],
    "after <n>s at <n>": ["after 30s at 10.0.0.1:5432", "after 2.5s at 127.0.0.1"],
    "a defaced facade": ["a defaced facade"],
}


@pytest.mark.parametrize(
    ("pattern", "error"), [(kind, error) for kind, errors in KINDS.items() for error in errors]
)
def test_what_differs_is_left_out(pattern: str, error: str) -> None:
    assert pattern_of(error) == pattern
    assert pattern_of(f"\n {error}\nand what follows") == pattern


@pytest.mark.parametrize("error", [None, "", "\n", " "])
def test_without_an_error_there_is_no_pattern(error: str | None) -> None:
    assert pattern_of(error) == ""


@given(st.text(alphabet="a1'\"`0xf-« \n", max_size=400) | st.text())
@example("'" * 400)
def test_a_pattern_stands_for_itself_and_for_one_line(error: str) -> None:
    pattern = pattern_of(error)
    assert len(pattern.splitlines()) <= 1
    assert pattern_of(error[:LOOKED_AT_CHARS]) == pattern
