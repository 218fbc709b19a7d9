"""Options that several commands share."""

import click

import rowmq

__all__ = ["as_json", "prefix", "schema", "url"]

url = click.option(
    "--url",
    envvar="ROWMQ_URL",
    show_envvar=True,
    required=True,
    help="The database, as in postgresql://user:password@host/database.",
)

prefix = click.option(
    "--prefix",
    envvar="ROWMQ_PREFIX",
    show_envvar=True,
    default=rowmq.DEFAULT_PREFIX,
    show_default=True,
    help="What the tables' names begin with.",
)

schema = click.option(
    "--schema",
    envvar="ROWMQ_SCHEMA",
    show_envvar=True,
    help="The PostgreSQL schema of the tables.",
)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
