"""What commands print: tables for people, JSON for programs.

Names, payloads and errors are data that anybody may have written. `visible` shows every character
of them that a terminal would act on as an escape; consoles made here read no markup. So nothing
that was published can colour, move, hide or type anything on an operator's screen.
"""

import base64
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NoReturn

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rowmq.cli.fitting import Column, FittedTable
from rowmq.quoting import visible
from rowmq.spelling import duration, size

__all__ = [
    "NEW",
    "Cell",
    "Screen",
    "compact",
    "duration",
    "emit",
    "err",
    "facts",
    "json_text",
    "lines_of",
    "marked",
    "moment",
    "out",
    "payload_fields",
    "plural",
    "pulse",
    "show_payload",
    "size",
    "table",
    "table_of",
    "visible",
    "visible_lines",
]

WIDE = 10_000
"""The width of what is no terminal: there nothing is cut."""

CELL_CHARS_MAX = 160
"""How much of a payload or an error stands in a table."""

PULSE_AFTER_SECONDS = 0.4
"""How long work takes before a bar is shown."""

NEW = " (new)"
"""Stands after the name of what was made by being named: it may have been misspelt."""

Cell = str | int | float | datetime | timedelta | Enum | Text | None


def visible_lines(text: str) -> str:
    """The same over several lines: line breaks stay, where nothing else can be taken for them."""
    return "\n".join(visible(line) for line in text.split("\n"))


class Screen(Console):
    """A console that takes strings as they are, and ends quietly if its reader goes."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        if not self.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            self.width = WIDE

    def print(self, *parts: Any, **options: Any) -> None:
        """Print parts one after the other, each a text, or a text with its style."""
        if all(isinstance(part, str | tuple) for part in parts):
            parts = (Text.assemble(*parts),)
        super().print(*parts, **options)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def out() -> Screen:
    """Where answers go."""
    return Screen(stderr=False)


def err() -> Screen:
    """Where errors, questions and progress go."""
    return Screen(stderr=True)


# --- tables -------------------------------------------------------------------------------------

STYLES = {
    "pending": "cyan",
    "processing": "yellow",
    "retryable": "magenta",
    "completed": "green",
    "failed": "red",
    "paused": "yellow",
    "relaxed": "yellow",
    "gone": "red",
    "alive": "green",
}


def marked(text: str) -> Text:
    """A word for a state, in its colour."""
    return Text(visible(text), STYLES.get(text, ""))


def cell(value: Cell) -> Text:
    """A value as it stands in a table, on one line."""
    if isinstance(value, Text):
        shown = value
    elif value is None or value == "":
        shown = Text("-", "dim")
    elif isinstance(value, bool):
        shown = Text("yes" if value else "no")
    elif isinstance(value, int | float):
        shown = Text(f"{value:,}")
    elif isinstance(value, datetime):
        shown = Text(moment(value))
    elif isinstance(value, timedelta):
        shown = Text(duration(value))
    elif isinstance(value, Enum):
        shown = marked(str(value.value))
    else:
        shown = Text(visible(value[:CELL_CHARS_MAX]) + ("…" if value[CELL_CHARS_MAX:] else ""))
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def shard_shown(key: str | None, shard: int) -> int | None:
    """A partition's shard, where it takes one to know it."""
    return shard if key is None else None


def table_of(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> FittedTable:
    """A table: numbers to the right; where it is too wide, texts are cut and numbers are not.
    Columns without any value are left out.
    """
    rows = list(rows)
    made = []
    for place, name in enumerate(columns):
        values = [row[place] for row in rows]
        if all(value in (None, "") for value in values):
            continue
        number = any(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        fixed = number or any(isinstance(v, datetime | timedelta | Enum) for v in values)
        made.append(Column(name, list(map(cell, values)), fixed=fixed, number=number))
    return FittedTable(made)


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str) -> None:
    """Print a table, or, if it has no rows, a sentence on stderr."""
    rows = list(rows)
    if rows:
        out().print(table_of(columns, rows))
    else:
        err().print((visible(empty), "dim"))


def facts(pairs: Mapping[str, Cell]) -> None:
    """Print what is known of one thing: a name and a value to a line, unless there is none."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs.items():
        if value is None:
            continue
        shown = Text(visible(value)) if isinstance(value, str) and value else cell(value)
        shown.no_wrap, shown.overflow = False, "fold"
        grid.add_row(visible(name), shown)
    out().print(grid)


# --- values ---------------------------------------------------------------------------------------


def moment(value: datetime) -> str:
    """A time for people: UTC, to the second."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plural(count: int, noun: str) -> str:
    """A number and what it counts: 1 message, 2 messages."""
    many = noun[:-1] + "ies" if noun.endswith("y") and noun[-2:] != "ey" else noun + "s"
    return f"{count:,} {noun if count == 1 else many}"


def compact(payload: Any) -> str:
    """A payload in one line for people."""
    if isinstance(payload, bytes):
        return repr(payload)
    return payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()


def lines_of(payload: Any) -> str:
    """A payload for people, whole, JSON over several lines; all of it visible."""
    if isinstance(payload, bytes):
        return repr(payload)
    if not isinstance(payload, str):
        payload = msgspec.json.format(msgspec.json.encode(payload), indent=2).decode()
    return visible_lines(payload)


def show_payload(payload: Any) -> None:
    """Print a payload below what else was told."""
    screen = out()
    screen.print()
    screen.print(("payload", "bold"))
    screen.print(lines_of(payload), soft_wrap=True)


# --- JSON -----------------------------------------------------------------------------------------


def emit(value: Any) -> None:
    """Print a JSON document in one line."""
    text = json_text(value)
    if not text.isascii() and not (sys.stdout.encoding or "").lower().startswith("utf"):
        text = "".join(char if char.isascii() else json_escape(char) for char in text)
    click.echo(text)


def json_text(value: Any) -> str:
    """JSON in one line, in which nothing acts on a terminal: times are ISO, durations seconds."""
    text = msgspec.json.encode(plain(value)).decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json_escape(char) for char in text)


def json_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def plain(value: Any) -> Any:
    """A value with times and durations as JSON has them."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value


def payload_fields(payload: Any) -> dict[str, Any]:
    """A payload in JSON, and how it was stored: as json, as text, or as bytes, in base64."""
    if isinstance(payload, bytes):
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}
    return {"payload": payload, "encoding": "text" if isinstance(payload, str) else "json"}


# --- progress -------------------------------------------------------------------------------------


@contextmanager
def pulse(doing: str, *, total: float | None = None, quiet: bool = False) -> Iterator[Any]:
    """Show on stderr that work goes on, if somebody looks: a bar, which `update` moves."""
    from rich.progress import (  # noqa: PLC0415 - most commands need no bar
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = err()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    task = bar.add_task(visible(doing), total=total)

    def update(completed: float | None = None, doing: str | None = None) -> None:
        text = None if doing is None else visible(doing)
        bar.update(task, completed=completed, description=text)

    # What is done at once needs no bar.
    starter = threading.Timer(PULSE_AFTER_SECONDS, bar.start)
    if console.is_terminal and not quiet:
        starter.start()
    try:
        yield update
    finally:
        starter.cancel()
        if starter.ident is not None:
            starter.join()
        if bar.live.is_started:  # else it would end a line that was never begun
            bar.stop()
