"""The `rowmq` command: one file per subcommand, each using the public API only."""

import io
import sys

import click

import rowmq
from rowmq.cli.commands import Entry, Root
from rowmq.cli.failing import CODES

__all__ = ["ENTRIES", "app", "main"]

MESSAGES, QUEUES, OPERATIONS = "Messages", "Jobs", "Operations"

ENTRIES = {
    "publish": Entry(MESSAGES, "Publish messages from arguments, files or stdin."),
    "tail": Entry(MESSAGES, "Follow a topic, without consuming it."),
    "topics": Entry(MESSAGES, "List topics, look at one, or configure it."),
    "groups": Entry(MESSAGES, "List, create or drop a topic's consumer groups."),
    "lag": Entry(MESSAGES, "Show how far consumer groups are behind."),
    "seek": Entry(MESSAGES, "Move a consumer group to another place."),
    "dlq": Entry(MESSAGES, "List, redrive or purge dead letters."),
    "queues": Entry(QUEUES, "List queues; pause, resume or configure one."),
    "jobs": Entry(QUEUES, "List, show, put, retry, drop or prune jobs."),
    "schedules": Entry(QUEUES, "List schedules; pause, resume, run or remove one."),
    "worker": Entry(OPERATIONS, "Run the handlers of an app."),
    "workers": Entry(OPERATIONS, "List the workers, and what they are at work on."),
    "migrate": Entry(OPERATIONS, "Create RowMQ's tables, or bring them up to date."),
    "sql": Entry(OPERATIONS, "Print the SQL that creates all tables."),
    "gc": Entry(OPERATIONS, "Delete messages that nobody needs any more."),
    "doctor": Entry(OPERATIONS, "Examine the database and the work in it, and say what to do."),
    "dashboard": Entry(OPERATIONS, "Serve the dashboard and the HTTP API."),
    "tokens": Entry(OPERATIONS, "List, create or revoke tokens of the dashboard and the HTTP API."),
    "audit": Entry(OPERATIONS, "Show who did what by the dashboard, or prune that trail."),
    "pipeline": Entry(OPERATIONS, "Archive, report, replay or transform with Spark."),
    "bench": Entry(OPERATIONS, "Measure RowMQ here, against the raw limit and its peers."),
    "demo": Entry(OPERATIONS, "See it work, on SQLite, in a minute."),
    "completion": Entry(OPERATIONS, "Print the completion script of a shell."),
}
"""Each command is in the module of its name, under its name."""

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:<5}{story}" for code, story in CODES.items())


@click.group(
    "rowmq",
    cls=Root,
    entries=ENTRIES,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(rowmq.__version__, prog_name="rowmq", message="%(prog)s %(version)s")
def app() -> None:
    """The message queue inside the database you already run.

    Commands take the database from --url or ROWMQ_URL, print tables for people, and JSON for
    programs with --json.
    """


def main() -> None:
    """Run the command, which ends the process. Where the terminal's encoding lacks a character, it
    is shown as an escape.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
