"""`rowmq sql`: the schema as text."""

import click

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.showing import emit

__all__ = ["sql"]


@click.command(cls=Command)
@click.argument("database", type=click.Choice(["postgresql", "mysql", "mariadb", "sqlite"]))
@options.prefix
@options.schema
@options.as_json
def sql(database: str, prefix: str, schema: str | None, *, as_json: bool) -> None:
    """Print the SQL that creates all tables.

    For review, or for Alembic and Django. The text is the same every time. A database it was
    applied to needs no `rowmq migrate`.

    For example:
      rowmq sql postgresql
      rowmq sql mysql --prefix queue_ > schema.sql
    """
    text = rowmq.schema_sql(database, prefix=prefix, schema=schema)
    if as_json:
        emit({"database": database, "sql": text})
    else:
        click.echo(text, nl=False)
