"""`rowmq doctor`: examine the database and the work in it, and say what to do."""

import typing
from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.text import Text

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.failing import Code
from rowmq.cli.options import Database
from rowmq.cli.showing import Cell, emit, out, plural, table, visible
from rowmq.cli.values import DURATION, SIZE
from rowmq.doctor.checks import CHECKS
from rowmq.doctor.thresholds import threshold_defaults
from rowmq.doctor.wording import figures_of
from rowmq.times import Duration

__all__ = ["doctor"]

SYMBOLS = {
    rowmq.Level.OK: ("✓", "green"),
    rowmq.Level.NOTE: ("·", "cyan"),
    rowmq.Level.WARNING: ("!", "bold yellow"),
    rowmq.Level.PROBLEM: ("✗", "bold red"),
}

WIDTH = max(len(check.name) for check in CHECKS) + 4


def list_checks(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print what there is, and end: for that no database is needed."""
    if value and not ctx.resilient_parsing:
        if ctx.obj:  # JSON is wanted: see `Root`
            known = [{"check": check.name, "about": check.about} for check in CHECKS]
            emit({"checks": known, "thresholds": threshold_defaults()})
            ctx.exit()
        table(("check", "what it looks at"), [(c.name, c.about) for c in CHECKS], empty="")
        out().print("")
        thresholds: list[tuple[Cell, ...]] = [(k, str(v)) for k, v in threshold_defaults().items()]
        table(("threshold", "default"), thresholds, empty="")
        ctx.exit()


@click.command(cls=Command)
@click.option(
    "--check",
    "checks",
    multiple=True,
    type=click.Choice([check.name for check in CHECKS]),
    metavar="NAME",
    help="Make only this check, one of --list; may be given several times.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="NAME=VALUE",
    help="Warn from another value on, as in long_transaction=5m; may be given several times.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=list_checks,
    help="List the checks and the thresholds, and do nothing else.",
)
@options.database
@options.as_json
def doctor(
    database: Database, *, checks: tuple[str, ...], thresholds: tuple[str, ...], as_json: bool
) -> int:
    """Examine the database and the work in it, and say what to do.

    Nothing is changed, and nothing large is read. The exit code is 0 if all is well, or there are
    only notes, and 4 if there are warnings or problems; 1 if the database could not be examined.

    For example:
      rowmq doctor
      rowmq doctor --check lag --check stuck
      rowmq doctor --threshold long_transaction=5m --threshold failures=10
      rowmq doctor --json
    """
    given = thresholds_of(thresholds)
    with database.open() as mq:
        checkup = mq.doctor(checks=checks or None, thresholds=given)
    if as_json:
        emit(
            {
                "healthy": checkup.healthy,
                "level": checkup.level.value,
                "findings": [msgspec.structs.asdict(finding) for finding in checkup],
            }
        )
    else:
        show(checkup)
    return Code.OK if checkup.healthy else Code.UNHEALTHY


def thresholds_of(given: tuple[str, ...]) -> rowmq.Thresholds:
    """Thresholds of NAME=VALUE; a time may be written as 5m, a size as 64MiB."""
    kinds = typing.get_type_hints(rowmq.Thresholds)
    values: dict[str, Any] = {}
    for pair in given:
        name, _, text = pair.partition("=")
        if name not in kinds or not text:
            known = ", ".join(kinds)
            raise click.BadParameter(
                f"{pair!r} is no threshold: write NAME=VALUE, where NAME is one of {known}",
                param_hint="--threshold",
            )
        values[name] = value_of(name, text, kinds[name])
    return rowmq.Thresholds(**values)


def value_of(name: str, text: str, kind: Any) -> Any:
    try:
        return float(text) if kind is not int else int(text)
    except ValueError:
        pass
    if kind is float:
        raise click.BadParameter(f"{name} is a share, as in 0.5", param_hint="--threshold")
    parse = DURATION if kind == Duration else SIZE
    try:
        return parse.convert(text, None, None)
    except click.BadParameter as error:
        raise click.BadParameter(f"{name}: {error.message}", param_hint="--threshold") from None


# --- the report -----------------------------------------------------------------------------------


def show(checkup: rowmq.Checkup) -> None:
    """Print the findings under their checks, and what they come to."""
    screen = out()
    last = ""
    for finding in checkup:
        symbol, style = SYMBOLS[finding.level]
        title = "" if finding.check == last else finding.check
        last = finding.check
        strong = finding.level in (rowmq.Level.WARNING, rowmq.Level.PROBLEM)
        summary = Text(visible(finding.summary), "bold" if strong else "")
        head = Text.assemble((f"{symbol} ", style), (title.ljust(WIDTH - 2), "bold"))
        for text in (summary, *under(finding)):
            for line in text.wrap(screen, max(20, screen.width - WIDTH)):
                line.rstrip()
                screen.print(Text.assemble(head, line), soft_wrap=True)
                head = Text(" " * WIDTH)
    screen.print("")
    screen.print(verdict(checkup))


def under(finding: rowmq.Finding) -> Iterator[Text]:
    """What stands below a finding: the figures, and what to do."""
    if finding.level is rowmq.Level.OK:
        return
    figures = [f"{name} {figure}" for name, figure in figures_of(finding)]
    if figures:
        yield Text(visible(" · ".join(figures)), "dim")
    if finding.advice:
        yield Text.assemble(("→ ", "bold"), visible(finding.advice))


def verdict(checkup: rowmq.Checkup) -> Text:
    """What the findings come to, in one line."""
    counts = {level: sum(f.level is level for f in checkup) for level in rowmq.Level}
    told = [
        plural(counts[level], level.value)
        for level in (rowmq.Level.PROBLEM, rowmq.Level.WARNING, rowmq.Level.NOTE)
        if counts[level]
    ]
    said = f": {', '.join(told)}" if told else ""
    if checkup.healthy:
        return Text.assemble(("healthy", "bold green"), said)
    return Text.assemble(("not healthy", SYMBOLS[checkup.level][1]), said)
