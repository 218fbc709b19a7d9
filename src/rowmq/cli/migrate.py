"""`rowmq migrate`: bring the tables up to date."""

import click

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.options import Database
from rowmq.cli.showing import emit

__all__ = ["migrate"]


@click.command(cls=Command)
@options.database
@click.option("--dry-run", is_flag=True, help="Print the SQL that would run, and run none of it.")
@options.as_json
def migrate(database: Database, *, dry_run: bool, as_json: bool) -> None:
    """Create RowMQ's tables, or bring them up to date.

    Safe to run from many places at once, and when there is nothing to do.

    For example:
      rowmq migrate --url postgresql://user:password@localhost/app
      rowmq migrate --dry-run > review.sql
    """
    migrations = apply(database, dry_run=dry_run)
    if as_json:
        emit([{"version": m.version, "name": m.name, "sql": m.sql} for m in migrations])
    elif dry_run:
        click.echo("\n".join(migration.sql for migration in migrations) or "-- up to date")
    elif migrations:
        for migration in migrations:
            click.echo(f"applied {migration.version:04} {migration.name}")
    else:
        click.echo("up to date")


def apply(database: Database, *, dry_run: bool) -> list[rowmq.Migration]:
    """What was applied, or would be; to look makes no file."""
    url = "sqlite://" if dry_run and database.missing_file else database.url
    with rowmq.connect(
        url, prefix=database.prefix, schema=database.schema, auto_migrate=False
    ) as mq:
        return mq.migrate(dry_run=dry_run)
