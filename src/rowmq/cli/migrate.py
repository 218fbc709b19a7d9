"""`rowmq migrate`: bring the tables up to date."""

import click
import msgspec

import rowmq
from rowmq.cli import options

__all__ = ["migrate"]


@click.command()
@options.url
@options.prefix
@options.schema
@click.option("--dry-run", is_flag=True, help="Print the SQL that would run, and run none of it.")
@options.as_json
def migrate(url: str, prefix: str, schema: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Create RowMQ's tables, or bring them up to date.

    Safe to run from many places at once.
    """
    with rowmq.connect(url, prefix=prefix, schema=schema, auto_migrate=False) as mq:
        migrations = mq.migrate(dry_run=dry_run)
    if as_json:
        click.echo(msgspec.json.encode(migrations))
    elif dry_run:
        click.echo("\n".join(migration.sql for migration in migrations) or "-- up to date")
    elif migrations:
        for migration in migrations:
            click.echo(f"applied {migration.version:04} {migration.name}")
    else:
        click.echo("up to date")
