"""What `rowmq demo` shows: a line for each thing that happens, and, on a terminal, live figures."""

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rowmq.cli.demo_ledger import Figures
from rowmq.cli.demo_workers import Worker

__all__ = ["Show", "held", "summary"]

COLUMNS = ("published", "delivered", "again", "dead", "healed", "done", "left")


class Show:
    """The screen: lines that stay, and, below them on a terminal, what is so at the moment."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._spinner = Spinner("dots")
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Tell of something that has happened."""
        seconds = f"{time.monotonic() - self._began:5.1f} s  "
        line = Text.assemble((seconds, "dim"), (text, style))
        if self._live is None:
            self._console.print(line, soft_wrap=True)
        else:
            self._console.print(hanging(line, len(seconds)))

    def update(
        self,
        doing: str,
        figures: Iterable[Figures],
        workers: Sequence[Worker],
        done: Mapping[int, int],
    ) -> None:
        """Show how things are."""
        if self._live is None:
            return
        self._spinner.update(text=Text(doing, "bold"))
        self._live.update(Group("", table(figures), crew(workers, done), self._spinner))


def hanging(line: Text, width: int) -> RenderableType:
    """A line whose rest is indented, if it does not fit."""
    grid = Table.grid()
    grid.add_column(width=width, no_wrap=True)
    grid.add_column()
    head, rest = line.divide([width])
    grid.add_row(head, rest)
    return grid


def table(figures: Iterable[Figures]) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    made.add_column("", no_wrap=True)
    for column in COLUMNS:
        made.add_column(column, justify="right", no_wrap=True)
    kinds = {"billing": "group", "search": "group", "receipts": "queue", "ticks": "schedule"}
    for one in figures:
        name = Text.assemble((f"{kinds[one.name]} ", "dim"), (one.name, "cyan"))
        made.add_row(
            name,
            str(one.given),
            str(one.begun),
            colored(one.again, "yellow"),
            colored(one.dead, "red"),
            colored(one.healed, "green"),
            colored(one.done, "green"),
            str(one.left),
        )
    return made


def crew(workers: Sequence[Worker], done: Mapping[int, int]) -> Text:
    """Who is at work, and what each has done."""
    line = Text("workers", "bold")
    for worker in workers:
        state = ("killed", "red") if worker.killed else (f"{done.get(worker.pid, 0)} done", "green")
        line += Text.assemble((f"   {worker.pid} ", "dim"), state)
    return line


def colored(number: int, style: str) -> Text:
    return Text(str(number), style if number else "dim")


def summary(console: Console, figures: Iterable[Figures], seconds: float) -> None:
    """The figures at the end."""
    console.print(f"\n[bold]What happened[/], in {seconds:.0f} seconds:")
    console.print(table(figures))


def held(console: Console, promises: Mapping[str, bool]) -> bool:
    """Say what was promised and whether it held; whether all of it did."""
    console.print("\n[bold]What was promised[/], by the ledger that the handlers wrote:")
    for promise, kept in promises.items():
        mark = Text("   held  ", "green") if kept else Text(" BROKEN  ", "bold red")
        console.print(mark + Text(promise), soft_wrap=True)
    return all(promises.values())
