"""`rowmq sql`: the schema as text."""

from enum import StrEnum
from typing import Annotated

import typer

import rowmq
from rowmq.cli.options import Prefix, Schema

__all__ = ["sql"]


class Database(StrEnum):
    """A database whose SQL can be printed."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"
    SQLITE = "sqlite"


def sql(
    database: Annotated[Database, typer.Argument(help="Which database the SQL is for.")],
    prefix: Prefix = rowmq.DEFAULT_PREFIX,
    schema: Schema = None,
) -> None:
    """Print the SQL that creates all tables: for review, or for Alembic and Django.

    The text is the same every time. A database it was applied to needs no `rowmq migrate`.
    """
    typer.echo(rowmq.schema_sql(database.value, prefix=prefix, schema=schema), nl=False)
