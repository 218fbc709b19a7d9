"""How commands are found, listed and ended: groups of commands, made of click's.

Commands are imported when they are called, so that `rowmq --help` and completion answer at once.
"""

import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from rowmq.cli.failing import Code, explain
from rowmq.errors import RowMQError

__all__ = ["Command", "Entry", "Root", "Section"]

EXAMPLES = re.compile(r"^( *)(For example|Install it):$", re.MULTILINE)
"""What begins a part of a help text whose lines stay as they are."""


class Entry(NamedTuple):
    """A command that is not imported yet."""

    heading: str
    summary: str


class Root(click.Group):
    """All commands, under headings. It ends the process: with a code, and without traceback."""

    def __init__(self, *args: Any, entries: dict[str, Entry], **options: Any) -> None:
        super().__init__(*args, **options)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.entries:
            return None
        module = importlib.import_module(f"rowmq.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            raise click.exceptions.Exit(Code.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.entries and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.entries, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(map(len, self.entries))
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.entries.items():
            rows = headings.setdefault(entry.heading, [])
            rows.append((name.ljust(width), entry.summary))
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - click's signature
        **extra: Any,
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        sys.exit(self._run(words, prog_name or "rowmq", complete_var, **extra))

    def _run(self, words: list[str], name: str, complete_var: str | None, **extra: Any) -> int:
        as_json = "--json" in words[: words.index("--") if "--" in words else None]
        as_json = as_json and words[0] != "bench"  # which writes its figures to a file of that name
        try:
            extra |= {"standalone_mode": False, "obj": as_json}
            result = super().main(words, name, complete_var, **extra)
            sys.stdout.flush()
            return result if isinstance(result, int) else Code.OK
        except (RowMQError, click.ClickException) as error:
            return explain(error, as_json=as_json)
        except click.Abort:
            click.echo(err=True)
            return leave_interrupted()
        except RuntimeError as error:
            # Until Python 3.12, a class being made dresses an interrupt up, also while importing.
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            return leave_interrupted()
        except BrokenPipeError:
            return leave_pipe()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # which click would end with 1
            raise click.exceptions.Exit(leave_pipe()) from None


def leave_interrupted() -> int:
    """Have Python end with the exit code. Where an interrupt came while a string was executed, as
    dataclasses do, it remembers that as unhandled, and would end by the signal; executing forgets.
    """
    exec("")  # noqa: S102
    return Code.INTERRUPTED


def leave_pipe() -> int:
    """Write no more: the flush at the very end must not fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return Code.BROKEN_PIPE


def preformatted(help: str | None) -> str | None:
    """A help text whose examples are not wrapped: click has a mark for that."""
    return None if help is None else EXAMPLES.sub("\\1\b\n\\1\\2:", help)


class Command(click.Command):
    """A command whose help has examples."""

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:
        super().__init__(name, help=preformatted(help), **options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            self._refuse_swallowed(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_swallowed(self, ctx: click.Context, args: list[str]) -> None:
        """An option that stands where another one's value was forgotten is no value: click would
        take it for one, and the command would do something else than was asked for.
        """
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
        valued = {name for o in options if not (o.is_flag or o.count) for name in o.opts}
        words = args[: args.index("--")] if "--" in args else args
        for name, value in pairwise(words):
            if name in valued and value in names:
                raise click.BadOptionUsage(
                    name,
                    f"option {name!r} needs a value, and {value!r} is an option; if it is the "
                    f"value, write {written(name, value)}",
                    ctx,
                )


def written(name: str, value: str) -> str:
    """An option and a value that looks like an option."""
    return f"{name}={value}" if name.startswith("--") else f"{name}{value}"


class Section(click.Group):
    """Commands about one noun. Without a command of its own name, `ls` is meant: `rowmq topics`
    and `rowmq topics orders` list, `rowmq topics ls configure` lists the topic `configure`.
    """

    default = "ls"
    command_class = Command

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:
        super().__init__(name, help=preformatted(help), **options)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._is_default(ctx, args):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _is_default(self, ctx: click.Context, args: list[str]) -> bool:
        if not args:
            return not ctx.resilient_parsing  # then both are completed: commands and names
        return args[0] not in self.commands and args[0] not in ctx.help_option_names

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        command = self.commands[self.default]
        for param in command.params:
            if isinstance(param, click.Argument):
                return found + param.shell_complete(ctx, incomplete)
        return found
