"""`rowmq completion`: what a shell needs to complete commands, options and names."""

import click
from click.shell_completion import get_completion_class

from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.showing import emit

__all__ = ["completion"]

INSTALL = {
    "bash": 'add to ~/.bashrc:  eval "$(rowmq completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit:  eval "$(rowmq completion zsh)"',
    "fish": "run once:  rowmq completion fish > ~/.config/fish/completions/rowmq.fish",
}


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(list(INSTALL)))
@options.as_json
@click.pass_context
def completion(ctx: click.Context, shell: str, *, as_json: bool) -> None:
    """Print the completion script of a shell.

    Topics, groups, queues and schedules are completed too, where ROWMQ_URL is set.

    Install it:
      bash   echo 'eval "$(rowmq completion bash)"' >> ~/.bashrc
      zsh    echo 'eval "$(rowmq completion zsh)"' >> ~/.zshrc
      fish   rowmq completion fish > ~/.config/fish/completions/rowmq.fish
    """
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - the shells are click's own
    script = found(ctx.find_root().command, {}, "rowmq", "_ROWMQ_COMPLETE").source()
    if as_json:
        emit({"shell": shell, "script": script, "install": INSTALL[shell]})
    else:
        click.echo(f"# {INSTALL[shell]}\n{script.strip()}")
