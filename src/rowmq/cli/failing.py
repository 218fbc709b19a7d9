"""How a command ends: exit codes that mean something, and errors of one sentence.

An error goes to stderr, so that whatever reads stdout sees data or nothing. No password is ever
part of it, also if a URL stands where it was not asked for.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from itertools import islice

import click

from rowmq.errors import RowMQError, UnknownGroup, UnknownSchedule

__all__ = ["CODES", "Code", "Declined", "NotFound", "explain", "redacted", "unknown"]


class Code(IntEnum):
    """What a command's exit code says."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    UNHEALTHY = 4
    WORK_LEFT = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141


CODES = {
    Code.OK: "done",
    Code.ERROR: "RowMQ or the database refused",
    Code.USAGE: "the command was called wrongly",
    Code.NOT_FOUND: "what was named does not exist",
    Code.UNHEALTHY: "doctor found warnings or problems",
    Code.WORK_LEFT: "a worker stopped before its handlers were done",
    Code.INTERRUPTED: "interrupted by Ctrl-C",
    Code.BROKEN_PIPE: "whoever read the output has gone",
}


class NotFound(click.ClickException):
    """Something that was named is not there."""

    exit_code = Code.NOT_FOUND


class Declined(click.ClickException):
    """The user was asked, and said no."""

    exit_code = Code.ERROR


NAMES_MAX = 1_000
"""Among how many names one is looked for that may have been meant."""


def unknown(what: str, name: str, known: Iterable[str], *, listed_by: str) -> NotFound:
    """That there is nothing of a name, and what may have been meant; else what lists those there
    are.
    """
    near = get_close_matches(name, islice(known, NAMES_MAX), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"{listed_by} lists them"
    return NotFound(f"{what}: {hint}")


EXAMPLE = "user:password@host"
"""What stands in the URLs that we show as examples: nobody's password, and to be read."""

IN_URL = re.compile(rf"(\w://(?!{EXAMPLE}(?![\w.-])[^\s@]*(?!\S))[^\s:/@]*:)\S*@")
"""User and password of a URL, whatever stands around it; but not of an example."""


def redacted(text: str) -> str:
    """Text without the passwords of URLs."""
    return IN_URL.sub(r"\1***@", text)


def explain(error: Exception, *, as_json: bool) -> int:
    """Say on stderr what went wrong, and give the exit code."""
    from rowmq.cli.showing import err, json_text, visible  # noqa: PLC0415 - help needs none of it

    code, name, message = story_of(error)
    message = redacted(message)
    if as_json:
        click.echo(json_text({"error": name, "message": message}), err=True)
        return code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
        click.echo(f"Try '{error.ctx.command_path} --help' for help.\n", err=True)
    called = f"{name}: " if isinstance(error, RowMQError) else ""
    sentence = visible(f"{called}{message}")
    err().print(("error: ", "bold red"), sentence, soft_wrap=True)
    return code


def story_of(error: Exception) -> tuple[int, str, str]:
    """The exit code of an error, what it is called, and what it says."""
    if isinstance(error, click.MissingParameter):  # click lists choices on lines of their own
        return Code.USAGE, "UsageError", " ".join(error.format_message().split())
    if isinstance(error, click.UsageError):
        return Code.USAGE, "UsageError", error.format_message()
    if isinstance(error, click.ClickException):
        name = "Error" if type(error) is click.ClickException else type(error).__name__
        return error.exit_code, name, error.format_message()
    missing = isinstance(error, UnknownGroup | UnknownSchedule)
    return Code.NOT_FOUND if missing else Code.ERROR, type(error).__name__, str(error)
