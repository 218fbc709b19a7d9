"""`rowmq sql`: the schema as text."""

import click

import rowmq
from rowmq.cli import options

__all__ = ["sql"]


@click.command()
@click.argument("database", type=click.Choice(["postgresql", "mysql", "mariadb", "sqlite"]))
@options.prefix
@options.schema
def sql(database: str, prefix: str, schema: str | None) -> None:
    """Print the SQL that creates all tables in a DATABASE.

    For review, or for Alembic and Django. The text is the same every time. A database it was
    applied to needs no `rowmq migrate`.
    """
    click.echo(rowmq.schema_sql(database, prefix=prefix, schema=schema), nl=False)
