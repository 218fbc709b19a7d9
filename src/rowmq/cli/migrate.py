"""`rowmq migrate`: bring the tables up to date."""

from typing import Annotated

import msgspec
import typer

import rowmq
from rowmq.cli.options import URL, AsJSON, Prefix, Schema

__all__ = ["migrate"]


def migrate(
    url: URL,
    prefix: Prefix = rowmq.DEFAULT_PREFIX,
    schema: Schema = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the SQL that would run, and change nothing.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Create RowMQ's tables, or bring them up to date. Safe to run from many places at once."""
    with rowmq.connect(url, prefix=prefix, schema=schema, auto_migrate=False) as mq:
        migrations = mq.migrate(dry_run=dry_run)
    if as_json:
        typer.echo(msgspec.json.encode(migrations))
    elif dry_run:
        typer.echo("\n".join(migration.sql for migration in migrations) or "-- up to date")
    elif migrations:
        for migration in migrations:
            typer.echo(f"applied {migration.version:04} {migration.name}")
    else:
        typer.echo("up to date")
