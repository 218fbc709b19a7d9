"""Options that several commands share, and the database that they name."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec
from click.shell_completion import CompletionItem

import rowmq
from rowmq.cli.failing import Declined, NotFound
from rowmq.cli.showing import err, visible
from rowmq.store.keys import SHARDS, Place

__all__ = [
    "Database",
    "as_json",
    "confirm",
    "database",
    "dry_run",
    "files",
    "place_chosen",
    "prefix",
    "schema",
    "shard",
    "url",
    "yes",
]

F = TypeVar("F", bound=Callable[..., Any])


def needed(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """A URL, or a sentence that says how to give one."""
    if not value and not ctx.resilient_parsing:
        raise click.UsageError(
            "no database is named: give --url, or set ROWMQ_URL, for example to sqlite:///queue.db "
            "or postgresql://user:password@host/database",
            ctx,
        )
    return value


url = click.option(
    "--url",
    envvar="ROWMQ_URL",
    show_envvar=True,
    callback=needed,
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

yes = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")

dry_run = click.option("--dry-run", is_flag=True, help="Say what would happen, and do nothing.")

shard = click.option(
    "--shard",
    type=click.IntRange(0, SHARDS - 1),
    metavar="N",
    help="Only this shard of the messages without a key.",
)


def place_chosen(key: str | None, shard: int | None) -> Place | None:
    """The one partition that --key or --shard names, if one does."""
    if key is not None and shard is not None:
        raise click.UsageError(
            "give --key or --shard, but not both: only messages without a key have shards"
        )
    if shard is not None:
        return None, shard
    return None if key is None else (key, 0)


def file_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Has the shell complete the names of files, which it does best."""
    return [CompletionItem(incomplete, type="file")]


files = click.option(
    "--file",
    "-f",
    "files",
    multiple=True,
    metavar="F",
    shell_complete=file_names,
    help="Read lines of a file; - is stdin.",
)


class Database(msgspec.Struct, frozen=True):
    """The database that a command works on."""

    url: str
    prefix: str
    schema: str | None

    @property
    def missing_file(self) -> str | None:
        """The SQLite file that the URL names, if there is none."""
        try:
            parts = urlsplit(self.url.strip())
        except ValueError:  # which connecting says better
            return None
        path = unquote(parts.path.removeprefix("/"))
        if not parts.scheme.startswith("sqlite") or parts.netloc or path in ("", ":memory:"):
            return None
        return None if Path(path).exists() else path

    @contextmanager
    def open(self, *, create: bool = False) -> Iterator[rowmq.RowMQ]:
        """A client. With `create`, an SQLite file and its tables are made if they are missing:
        what only looks at a database must not make one.
        """
        path = None if create else self.missing_file
        if path is not None:
            raise no_file(path)
        # Few statements run twice in a command, and without preparing them PgBouncer is no matter.
        with rowmq.connect(
            self.url,
            prefix=self.prefix,
            schema=self.schema,
            auto_migrate=create,
            prepared_statements=False,
        ) as mq:
            yield mq


def no_file(path: str) -> NotFound:
    folder = Path(path).parent
    if not folder.is_dir():
        return NotFound(
            f"there is no file {visible(path)}, and no folder {visible(str(folder))} for it: make "
            f"that, or correct the URL"
        )
    return NotFound(
        f"there is no file {visible(path)}: rowmq migrate makes it, and so does the first message "
        f"or job"
    )


def database(function: F) -> F:
    """Options that name a database; the command gets it as its first argument."""

    @functools.wraps(function)
    def call(*args: Any, url: str, prefix: str, schema: str | None, **options: Any) -> Any:
        return function(Database(url, prefix, schema), *args, **options)

    return url(prefix(schema(call)))  # type: ignore[return-value]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal whether to go on; elsewhere only `--yes` lets it."""
    if yes:
        return
    asked = sys.stdin is not None and sys.stdin.isatty() and err().is_terminal
    if not asked:
        raise click.UsageError(f"{question} Say --yes to do it without being asked.")
    if not click.confirm(visible(question) + " Go on?", err=True):
        raise Declined("nothing was changed")
