"""`rowmq sql`: the schema as text."""

import re

import click

import rowmq
from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.showing import emit

__all__ = ["sql"]

TABLE = re.compile(r"^CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(\S+) \(", re.MULTILINE)


@click.command(cls=Command)
@click.argument("database", type=click.Choice(["postgresql", "mysql", "mariadb", "sqlite"]))
@click.option("--drop", is_flag=True, help="Print the SQL that deletes all tables instead.")
@options.prefix
@options.schema
@options.as_json
def sql(database: str, prefix: str, schema: str | None, *, drop: bool, as_json: bool) -> None:
    """Print the SQL that creates all tables.

    For review, or for Alembic and Django. The text is the same every time. A database it was
    applied to needs no `rowmq migrate`. Nothing is run, also not with --drop.

    For example:
      rowmq sql postgresql
      rowmq sql mysql --prefix queue_ > schema.sql
      rowmq sql postgresql --drop
    """
    text = rowmq.schema_sql(database, prefix=prefix, schema=schema)
    if drop:
        text = dropping(text)
    if as_json:
        emit({"database": database, "sql": text})
    else:
        click.echo(text, nl=False)


def dropping(script: str) -> str:
    """The SQL that takes back what a script makes, the newest table first. The table of migrations
    goes last: until then it can be run again.
    """
    tables = reversed(TABLE.findall(script))
    return "".join(f"DROP TABLE IF EXISTS {table};\n" for table in tables)
