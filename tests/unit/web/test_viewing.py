"""Payloads as people see them."""

import html
import re
from typing import Any

import pytest

from rowmq.web import viewing


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def test_json_is_coloured_and_stays_what_it_is() -> None:
    seen = viewing.see({"a": [1, -2.5e3, True, None, 'say "hi"'], "<b>": {}})
    assert seen.kind == "json"
    assert text_of(seen.markup) == seen.text
    assert '<span class="j-n">-2500.0</span>' in seen.markup
    assert '<span class="j-w">null</span>' in seen.markup
    assert "<b>" not in seen.markup


def test_text_and_bytes() -> None:
    assert viewing.see("a\tb\n<c>").markup == "a\tb\n&lt;c&gt;"
    seen = viewing.see(b"hello\x00<script>")
    assert (seen.kind, seen.bytes) == ("bytes", 14)
    assert "00000000" in seen.markup
    assert "68 65 6c 6c 6f 00 3c 73" in seen.markup
    assert "&lt;script&gt;" in seen.markup


@pytest.mark.parametrize("large", ["x" * 200_000, b"x" * 200_000, ["x" * 50] * 5_000])
def test_of_what_is_large_the_beginning_is_shown(large: Any) -> None:
    seen = viewing.see(large)
    assert seen.cut
    assert seen.text == "", "what is cut is not offered to be copied"
    assert len(seen.markup) < 250_000


def test_json_that_is_cut_within_a_string_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If each quote in it were tried as the beginning of a string, this would take an hour."""
    monkeypatch.setattr(viewing, "CHARS_MAX", 2_000_000)
    seen = viewing.see({"a": '"' * 2_000_000, "b": 1})
    assert seen.cut
    assert seen.markup.count("<span") == 3, "a mark, a key and what there is of the string"


@pytest.mark.parametrize("payload", [{"a": 1}, "text", "", b"\x00\xff", [], None, 2**70, "1"])
def test_what_a_form_shows_reads_back(payload: Any) -> None:
    from rowmq.web.fields import payload_of  # noqa: PLC0415 - both ways are one promise

    form, text = viewing.plain_text(payload)
    assert payload_of(text, form) == payload


def test_a_glance_is_one_line() -> None:
    assert viewing.glance("a\n\n  b" * 100, 20).count("\n") == 0
    assert len(text_of(viewing.glance({"k": "v" * 500}, 40))) <= 40
    assert viewing.glance(b"\x01\x02" * 100, 20).endswith(" …")
