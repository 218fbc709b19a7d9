"""`rowmq pipeline replay`: from the lake back to a topic, a queue or one group."""

import re
from typing import Any

import click
import msgspec

from rowmq.cli import names, options
from rowmq.cli.commands import Command
from rowmq.cli.failing import Code
from rowmq.cli.options import Database
from rowmq.cli.showing import emit, out, plural, pulse, visible
from rowmq.cli.sparking import Sparking, opened, sparking, stopping, storage
from rowmq.cli.values import MOMENT
from rowmq.errors import InvalidOption

__all__ = ["replay"]


@click.command(cls=Command)
@click.argument("lake")
@click.option("--id", "id", required=True, help="Names this replay: nothing is done twice for it.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=names.topics,
    help="Replay the messages of this topic; may be given again.",
)
@click.option("--queue", shell_complete=names.queues, help="Replay the jobs of this queue.")
@click.option("--to-topic", metavar="TOPIC", help="Publish them to this topic.")
@click.option("--to-queue", metavar="QUEUE", help="Put them into this queue.")
@click.option("--to-group", metavar="GROUP", help="Give them back to this group, and to no other.")
@click.option("--since", type=MOMENT, metavar="TIME", help="Only what came at this time or later.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Only what came before this time.")
@click.option("--key", help="Only what has this key.")
@click.option(
    "--where",
    metavar="SQL",
    help="Only rows for which this holds, a condition on the lake's columns.",
)
@click.option("--keep-ids", is_flag=True, help="Publish messages under the ids that they had.")
@click.option("--rate", type=float, metavar="N", help="At most so many a second.")
@storage
@options.database
@sparking
@options.dry_run
@options.as_json
def replay(
    sparking: Sparking,
    database: Database,
    lake: str,
    *,
    storage: dict[str, str],
    dry_run: bool,
    as_json: bool,
    **choice: Any,
) -> int:
    """Replay what the lake at LAKE holds, never twice for the same --id.

    It goes back in the order that it had. A replay that was stopped, or killed, goes on where it
    was: give the same --id and the same choice again. To a topic or a queue of another database: by
    --url.

    For example:
      rowmq pipeline replay lake --id fix-7 --topic orders --to-group billing --key customer-42
      rowmq pipeline replay lake --id test --topic orders --to-topic orders-test --rate 500
      rowmq pipeline replay lake --id x --queue emails --to-queue emails --where "state = 'failed'"
    """
    check(choice)
    opened(database)
    with sparking.session("rowmq replay", quiet=as_json) as spark, stopping() as stop:
        from rowmq.spark import pipelines  # noqa: PLC0415 - only here

        with pulse("looking for what there is", quiet=as_json) as update:

            def tell(progress: pipelines.ReplayProgress) -> None:
                update(doing=f"replayed {progress.done:,} of {plural(progress.total, 'row')}")

            result = pipelines.replay(
                spark,
                url=database.url,
                prefix=database.prefix,
                schema=database.schema,
                lake=lake,
                storage_options=storage,
                dry_run=dry_run,
                progress=tell,
                stop=stop,
                **choice,
            )
    show(result, as_json=as_json)
    return Code.OK if result.done or dry_run or not result.rows else Code.INTERRUPTED


def check(choice: dict[str, Any]) -> None:
    """What can be said before Spark is started."""
    from rowmq.spark.pipelines.replaying.asked import (  # noqa: PLC0415 - only here
        check_id,
        chunk_size,
        selection_of,
    )

    known = {name: value for name, value in choice.items() if name not in ("id", "rate")}
    try:
        chunk_size(selection_of(**known), None, choice["rate"])
        check_id(choice["id"])
    except InvalidOption as error:
        raise click.UsageError(PARAMETER.sub(as_option, str(error))) from error


PARAMETER = re.compile(r"\b(to_topic|to_queue|to_group|keep_ids)\b")


def as_option(name: re.Match[str]) -> str:
    """A parameter of Python's by the name that it has here."""
    return "--" + name[0].replace("_", "-")


def show(result: Any, *, as_json: bool) -> None:
    if as_json:
        emit(msgspec.structs.asdict(result) | {"done": result.done})
    elif result.dry_run:
        out().print(f"would be replayed: {plural(result.rows, 'row')}")
    elif not result.rows:
        out().print("there is nothing to replay")
    elif result.done:
        before = "" if result.chunks else " (it was done before)"
        out().print(f"replayed {plural(result.rows, 'row')}{before}")
    else:
        out().print(
            f"replayed {result.replayed:,} of {plural(result.rows, 'row')}: give --id "
            f"{visible(result.id)} again to go on"
        )
