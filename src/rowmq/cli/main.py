"""The `rowmq` command: one file per subcommand, each using the public API only."""

import sys

import click

import rowmq
from rowmq.cli.demo import demo
from rowmq.cli.migrate import migrate
from rowmq.cli.sql import sql
from rowmq.errors import RowMQError

__all__ = ["app", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(rowmq.__version__, prog_name="rowmq", message="%(prog)s %(version)s")
def app() -> None:
    """The message queue inside the database you already run."""


app.add_command(demo)
app.add_command(migrate)
app.add_command(sql)


def main() -> None:
    """Run the command; an error of RowMQ's is a sentence, not a traceback."""
    try:
        app()
    except RowMQError as error:
        click.secho("error: ", fg="red", bold=True, err=True, nl=False)
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
