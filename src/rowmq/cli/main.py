"""The `rowmq` command: one file per subcommand, each using the public API only."""

import sys
from typing import Annotated

import typer
from rich.console import Console

import rowmq
from rowmq.cli.demo import demo
from rowmq.cli.migrate import migrate
from rowmq.cli.sql import sql
from rowmq.errors import RowMQError

__all__ = ["app", "main"]

app = typer.Typer(
    name="rowmq",
    help="The message queue inside the database you already run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(migrate)
app.command()(sql)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rowmq {rowmq.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """The message queue inside the database you already run."""


def main() -> None:
    """Run the command; an error of RowMQ's is a sentence, not a traceback."""
    try:
        app()
    except RowMQError as error:
        Console(stderr=True, highlight=False).print(
            f"[bold red]error:[/] {type(error).__name__}:", end=" "
        )
        typer.echo(str(error), err=True)
        sys.exit(1)
