"""Options that several commands share."""

from typing import Annotated

import typer

__all__ = ["URL", "AsJSON", "Prefix", "Schema"]

URL = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="ROWMQ_URL",
        help="The database, as in postgresql://user:password@host/database.",
        show_envvar=True,
    ),
]

Prefix = Annotated[
    str,
    typer.Option("--prefix", envvar="ROWMQ_PREFIX", help="What the tables' names begin with."),
]

Schema = Annotated[
    str | None,
    typer.Option("--schema", envvar="ROWMQ_SCHEMA", help="The PostgreSQL schema of the tables."),
]

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
