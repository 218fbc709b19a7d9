"""`rowmq bench`: RowMQ, its peers and the raw limit, measured here and now."""

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from rowmq.bench import benchmark
from rowmq.bench.results import Results
from rowmq.cli.bench_tables import show
from rowmq.cli.commands import Command
from rowmq.cli.failing import Code
from rowmq.cli.showing import err, table, visible
from rowmq.errors import InvalidOption

__all__ = ["bench"]

SOON_SECONDS = 10.0
"""Before so long, nobody knows how long it will take."""


@click.command(cls=Command)
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="A server, or a file beside which to work; may be given again. Without it, SQLite in a "
    "temporary folder, also where ROWMQ_URL is set: no server is measured that was not named.",
)
@click.option("--peers", is_flag=True, help="Measure the peers too; installs them, once.")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only this scenario, or those whose names begin so, as in queues; may be given again.",
)
@click.option("--list", "as_list", is_flag=True, help="List the scenarios, and measure nothing.")
@click.option("--quick", is_flag=True, help="Measure less, once: a look of some minutes.")
@click.option("--full", is_flag=True, help="Have 5 million jobs wait on all databases.")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    help="How often each is measured; the median counts.  [default: 3; with --quick, 1]",
)
@click.option("--json", "json_file", metavar="FILE", help="Write all figures as JSON; - is stdout.")
@click.option("--plots", metavar="FOLDER", help="Draw plots as SVG files into a folder.")
def bench(
    *,
    urls: tuple[str, ...],
    peers: bool,
    only: tuple[str, ...],
    as_list: bool,
    quick: bool,
    full: bool,
    repeat: int | None,
    json_file: str | None,
    plots: str | None,
) -> None:
    """Measure RowMQ on this machine, against the raw limit of the database.

    It works in databases of its own, which it makes and drops: nothing else there is touched.
    Everything is measured several times, in turns; look at the ratios, since absolute figures do
    not travel. With --peers, procrastinate, pgqueuer, pgmq, huey and faststream-sqlbroker play too,
    in an environment of their own.

    For example:
      rowmq bench --quick
      rowmq bench --url postgresql://user:password@host/database --peers --only queues
      rowmq bench --json results.json --plots plots
    """
    try:
        scenarios = benchmark.chosen(only)
    except InvalidOption as error:
        raise click.BadParameter(str(error), param_hint="--only") from error
    if as_list:
        table(("scenario", "what is measured"), scenarios.items(), empty="")
        return
    if quick and full:
        raise click.UsageError("--quick or --full, but not both")
    check_places(json_file, plots)
    with ended_gently(), somewhere(urls) as places, bar() as tell:
        choice = benchmark.Choice(
            urls=places,
            only=only,
            repeat=repeat or (1 if quick else 3),
            size="quick" if quick else "full" if full else "usual",
            peers=commands_of_peers() if peers else {},
        )
        results = benchmark.measure(choice, tell)
    if results.complete and not results.lines:
        raise click.UsageError(
            "there is nothing to measure of that on this database; on PostgreSQL there is"
        )
    present(results, json_file, plots)
    if not results.complete:
        raise click.exceptions.Exit(Code.INTERRUPTED)


def check_places(json_file: str | None, plots: str | None) -> None:
    """Refuse where nothing can be written, before it is measured for half an hour."""
    if json_file not in (None, "-"):
        path = Path(str(json_file))
        if path.is_dir() or not path.parent.is_dir():
            what = "is a folder" if path.is_dir() else f"has no folder {path.parent}"
            raise click.BadParameter(f"{json_file} {what}", param_hint="--json")
    if plots is not None and Path(plots).exists() and not Path(plots).is_dir():
        raise click.BadParameter(f"{plots} is a file, and a folder is wanted", param_hint="--plots")


@contextlib.contextmanager
def ended_gently() -> Iterator[None]:
    """Whoever ends it, as by Ctrl-C: no database is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def present(results: Results, json_file: str | None, plots: str | None) -> None:
    """Show what was found, and write it where it was asked for."""
    if json_file == "-":
        click.echo(json_of(results))
    else:
        show(results)
    if json_file not in (None, "-"):
        Path(str(json_file)).write_text(json_of(results) + "\n", encoding="utf-8")
    if plots is not None:
        from rowmq.bench.plots import draw  # noqa: PLC0415 - mostly nobody asks for it

        for path in draw(results, Path(plots)):
            err().print(visible(str(path)))


def json_of(results: Results) -> str:
    return msgspec.json.format(msgspec.json.encode(results), indent=1).decode()


@contextlib.contextmanager
def somewhere(urls: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The databases that were named, or a file in a temporary folder."""
    if urls:
        yield urls
        return
    with tempfile.TemporaryDirectory(prefix="rowmq-bench-") as folder:
        yield (f"sqlite:///{folder}/bench.db",)


def commands_of_peers() -> dict[str, list[str]]:
    """How the peers are started: by an interpreter of their own, which is made if it is missing."""
    from rowmq.bench.environment import ensure  # noqa: PLC0415 - mostly nobody asks for it

    python = ensure(tell=lambda said: err().print(visible(said)))
    scripts = benchmark.peer_scripts()
    return {name: [str(python), str(script)] for name, script in scripts.items()}


@contextlib.contextmanager
def bar() -> Iterator[benchmark.Tell]:
    """Shows on stderr what is measured, and about how long it will take: a bar on a terminal, and
    elsewhere a line for each scenario.
    """
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - only here

    columns: tuple[Any, ...] = (
        BarColumn(bar_width=20),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.description}", markup=False),
    )
    console = err()
    began = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as it:
        task = it.add_task("", total=1.0, left="", scenario="")

        def tell(done: float, scenario: str, entry: str) -> None:
            left = time_left(began, done)
            if not console.is_terminal and scenario != it.tasks[0].fields["scenario"]:
                console.print(f"{100 * done:3.0f} %  {left:>12}  {visible(scenario)}")
            doing = visible(f"{scenario}: {entry}")
            it.update(task, completed=done, description=doing, left=left, scenario=scenario)

        yield tell


def time_left(began: float, done: float) -> str:
    """How long it will take, if it goes on like that."""
    took = time.monotonic() - began
    if took < SOON_SECONDS or done <= 0:
        return ""
    left = took / done - took
    return f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left"
