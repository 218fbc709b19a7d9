"""What is shown: no character of data acts on a terminal, and nothing is cut to nonsense."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rowmq.cli import showing
from rowmq.cli.showing import duration, json_text, lines_of, moment, plural, size, table_of, visible

HARMFUL = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJmIC8=\x07",
    "\x9b2J",
    "a\rb",
    "a\nb",
    "a\tb",
    "a\bb",
    "\x00\x7f",
    "\u202eevil\u202c",
    "\u2066x\u2069",
    "zero\u200bwidth",
    "line\u2028separator",
    "\ufeff",
    "\U000e0041",
]


@pytest.mark.parametrize("text", HARMFUL)
def test_what_a_terminal_would_act_on_is_shown_as_an_escape(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert "\\" in shown


@given(st.text())
def test_whatever_is_shown_is_printable(text: str) -> None:
    assert all(char.isprintable() or char.isspace() for char in visible(text))
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in visible(text))


@pytest.mark.parametrize("text", ["plain", "ß😀日本", "全角\u3000space", "[bold]", "C:\\temp", ""])
def test_what_is_harmless_is_shown_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.recursive(st.none() | st.booleans() | st.text(), st.lists))
def test_json_for_programs_is_what_was_given_and_acts_on_no_terminal(value: Any) -> None:
    text = json_text(value)
    assert json.loads(text) == value
    assert text.isprintable()


@pytest.mark.parametrize("text", HARMFUL)
def test_a_payload_over_several_lines_acts_on_no_terminal(text: str) -> None:
    for payload in (text, {"a": [text]}, text.encode()):
        assert all(line.isprintable() for line in lines_of(payload).split("\n"))


def test_json_has_iso_times_and_seconds() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=timezone(timedelta(hours=1)))
    value = {"at": at, "for": timedelta(minutes=1), "rows": [(at,)]}
    iso = "2026-01-02T02:04:05.000600Z"
    assert json.loads(json_text(value)) == {"at": iso, "for": 60.0, "rows": [[iso]]}


def rendered(table: Any, width: int) -> list[str]:
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_a_table_that_is_too_wide_cuts_texts_and_no_numbers() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = [("a key that goes on " * 9, 1_234_567, at, "an error that goes on " * 20)] * 2
    shown = rendered(table_of(("key", "lag", "failed", "error"), rows), 80)
    assert len(shown) == 3
    for line in shown[1:]:
        assert len(line) <= 80
        assert "1,234,567" in line
        assert "2026-01-02 03:04:05Z" in line
        assert line.count("…") == 2


JOBS = ("queue", "pending", "processing", "retryable", "completed", "failed")


@pytest.mark.parametrize("width", [120, 60, 40])
def test_a_narrow_screen_cuts_headers_before_names_and_numbers(width: int) -> None:
    rows = [("emails", 0, 1_234, 0, 5, 6), ("a queue whose name goes on", 0, 0, 0, 0, 0)]
    header, first, second = rendered(table_of(JOBS, rows), width)
    assert max(map(len, (header, first, second))) <= width
    assert first.split() == ["emails", "0", "1,234", "0", "5", "6"]
    assert second.startswith("a queue")
    assert [word.startswith("fai") for word in header.split()][-1]


def test_what_has_no_room_is_left_out_times_first_and_said_so() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = [("order-7", "billing", at, 3, "no such product")]
    made = table_of(("id", "group", "failed", "tries", "error"), rows)
    assert "2026-01-02 03:04:05Z" in rendered(made, 60)[1]
    header, row = rendered(made, 40)
    assert header.split() == ["id", "group", "tries", "error", "…"]
    assert row.split()[:3] == ["order-7", "billing", "3"]
    assert max(len(header), len(row)) <= 40


@pytest.mark.parametrize("width", [1, 5, 10, 18])
def test_the_name_of_a_row_is_shown_however_narrow_it_is(width: int) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    made = table_of(("name", "at", "n", "note"), [("orders", at, 1, "x" * 50)])
    assert rendered(made, width)[1].startswith("orders"[:width][: max(width - 1, 0)])


def test_markup_and_emoji_codes_are_data() -> None:
    (_, row) = rendered(table_of(("name",), [("[bold red]x[/] :smile: [link=http://x]",)]), 80)
    assert row.rstrip() == "[bold red]x[/] :smile: [link=http://x]"


def test_columns_without_any_value_are_left_out() -> None:
    header, *_ = rendered(table_of(("key", "owner", "lag"), [("a", None, 0), (None, None, 1)]), 80)
    assert header.split() == ["key", "lag"]


def test_the_screen_reads_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    showing.out().print("[bold]a[/bold] ", ("[red]b", "dim"))
    assert capsys.readouterr().out == "[bold]a[/bold] [red]b\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "0.25s"), (59, "59s"), (90, "1m30s"), (3600, "1h"), (604_800, "7d"),
     (93_784, "1d2h"), (0.148669, "0.149s"), (1.5, "1.5s")],
)  # fmt: skip
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (12, "12 bytes"),
        (1000, "1000 bytes"),
        (1024, "1 KiB"),
        (1025, "1025 bytes"),
        (2**22, "4 MiB"),
    ],
)
def test_sizes_can_be_given_back_as_they_are_shown(count: int, text: str) -> None:
    assert size(count) == text


def test_counts_are_worded() -> None:
    assert [plural(n, "message") for n in (0, 1, 1234)] == ["0 messages", "1 message",
                                                            "1,234 messages"]  # fmt: skip
    assert moment(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02 00:00:00Z"
