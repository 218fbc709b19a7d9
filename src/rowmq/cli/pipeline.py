"""`rowmq pipeline`: what is done with topics and queues on Spark."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import Code
from rowmq.cli.options import Database
from rowmq.cli.pipeline_replay import replay
from rowmq.cli.pipeline_transform import transform
from rowmq.cli.showing import emit, facts, out, plural, pulse, visible
from rowmq.cli.sparking import Sparking, opened, sparking, stopping, storage
from rowmq.cli.values import DURATION, MOMENT

__all__ = ["pipeline"]


class Pipelines(Section):
    """Commands that have no default among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            raise click.exceptions.Exit(Code.USAGE)
        return click.Group.parse_args(self, ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        return click.Group.shell_complete(self, ctx, incomplete)


@click.group(cls=Pipelines)
def pipeline() -> None:
    """Archive, report, replay or transform with Spark.

    Each is an ordinary Spark job: on this machine, unless --master names another. What they need is
    installed by: pip install 'rowmq[spark]'

    For example:
      rowmq pipeline archive lake
      rowmq pipeline archive s3://bucket/lake --every 10s --gc
      rowmq pipeline report lake --out report.html
      rowmq pipeline replay lake --id fix-7 --topic orders --to-group billing
    """


pipeline.add_command(replay)
pipeline.add_command(transform)


def listed(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str] | None:
    """Names that were given one by one; None if there were none."""
    return list(values) or None


@pipeline.command()
@click.argument("lake")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=listed,
    shell_complete=names.topics,
    help="Only this topic, and no queue that is not named; may be given again.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    callback=listed,
    shell_complete=names.queues,
    help="Only this queue, and no topic that is not named; may be given again.",
)
@click.option("--no-topics", is_flag=True, help="No topics, only queues.")
@click.option("--no-queues", is_flag=True, help="No queues, only topics.")
@click.option("--no-dead-letters", is_flag=True, help="No dead letters.")
@click.option(
    "--group",
    default="lake",
    show_default=True,
    help="The consumer group that garbage collection waits for.",
)
@click.option(
    "--every",
    type=DURATION,
    metavar="DURATION",
    help="Go on for ever, a pass each so often. Without it, until it has caught up.",
)
@click.option("--gc", is_flag=True, help="Then delete what every group has acked.")
@click.option("--allow-loss", is_flag=True, help="Go on without messages that retention took.")
@click.option(
    "--max-records",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="How much one pass takes.",
)
@click.option(
    "--compact-every",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="After how many commits small files become large ones.",
)
@click.option(
    "--vacuum",
    type=DURATION,
    metavar="DURATION",
    help="Delete files that have not been part of the lake for so long, such as 7d.",
)
@storage
@options.database
@sparking
@options.as_json
def archive(
    sparking: Sparking,
    database: Database,
    lake: str,
    *,
    topics: list[str] | None,
    queues: list[str] | None,
    no_topics: bool,
    no_queues: bool,
    no_dead_letters: bool,
    group: str,
    every: timedelta | None,
    gc: bool,
    allow_loss: bool,
    max_records: int,
    compact_every: int,
    vacuum: timedelta | None,
    storage: dict[str, str],
    as_json: bool,
) -> None:
    """Archive topics, dead letters and finished jobs to a Delta lake, each row once.

    What is archived may be collected: rowmq gc, or --gc, deletes it from the database as soon as
    every group has acked it. It may be killed at any time, and goes on where the lake ends.

    For example:
      rowmq pipeline archive lake
      rowmq pipeline archive /var/lake --topic orders --every 10s --gc
      rowmq pipeline archive s3://bucket/lake --storage AWS_REGION=eu-west-1
    """
    if (topics and no_topics) or (queues and no_queues):
        raise click.UsageError("name topics or queues, or say that there are to be none")
    opened(database)
    with sparking.session("rowmq archive", quiet=as_json) as spark, stopping() as stop:
        from rowmq.spark import pipelines  # noqa: PLC0415 - only here

        told = pipelines.ArchiveResult()
        with pulse("archiving", quiet=as_json) as update:

            def tell(progress: pipelines.ArchiveProgress) -> None:
                nonlocal told
                result = progress.result
                update(doing=f"{progress.doing}: {plural(result.rows, 'row')} archived")
                if every is not None and as_json and result.rows != told.rows:
                    emit(msgspec.structs.asdict(result))
                    told = result

            result = pipelines.archive(
                spark,
                url=database.url,
                prefix=database.prefix,
                schema=database.schema,
                lake=lake,
                topics=[] if no_topics or (queues and not topics) else topics,
                queues=[] if no_queues or (topics and not queues) else queues,
                dead_letters=not no_dead_letters,
                group=group,
                once=every is None,
                every=every or timedelta(),
                gc=gc,
                fail_on_loss=not allow_loss,
                records_max=max_records,
                compact_every=compact_every,
                vacuum_after=vacuum,
                storage_options=storage,
                progress=tell,
                stop=stop,
            )
    show_archived(result, as_json=as_json)


def show_archived(result: Any, *, as_json: bool) -> None:
    found = msgspec.structs.asdict(result)
    if as_json:
        emit(found)
    elif not result.rows and not result.lost:
        out().print("nothing is new: the lake has it all")
    else:
        facts({name.replace("_", " "): count for name, count in found.items() if count})


@pipeline.command()
@click.argument("lake", required=False)
@click.option(
    "--out",
    "-o",
    default="report.html",
    show_default=True,
    metavar="FILE",
    help="The page to write; the figures go beside it, as Parquet.",
)
@click.option("--since", type=MOMENT, metavar="TIME", help="Only what came at this time or later.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Only what came before this time.")
@click.option("--bucket", type=DURATION, metavar="DURATION", help="How long a step of a plot is.")
@click.option("--title", default="RowMQ report", show_default=True, help="What the page is called.")
@storage
@click.option(
    "--url",
    envvar="ROWMQ_URL",
    show_envvar=True,
    help="The database whose live tables are told of too; may be left out, if there is a lake.",
)
@options.prefix
@options.schema
@sparking
@options.as_json
def report(
    sparking: Sparking,
    lake: str | None,
    *,
    out: str,
    since: datetime | None,
    until: datetime | None,
    bucket: timedelta | None,
    title: str,
    storage: dict[str, str],
    url: str | None,
    prefix: str,
    schema: str | None,
    as_json: bool,
) -> None:
    """Write a page about what topics and queues did.

    From the lake at LAKE, from the database, or from both: throughput, latencies, retries, reasons
    of failures, lag and hot keys, with plots, in one file that needs nothing else.

    For example:
      rowmq pipeline report lake --out monday.html --since 2026-03-02T00:00:00Z
      rowmq pipeline report --url postgresql://user:password@host/database
    """
    if lake is None and not url:
        raise click.UsageError("a report of what? Name a lake, or a database by --url or ROWMQ_URL")
    if url:
        opened(Database(url, prefix, schema))
    with sparking.session("rowmq report", quiet=as_json) as spark:
        from rowmq.spark import pipelines  # noqa: PLC0415 - only here

        with pulse("looking", quiet=as_json) as update:
            result = pipelines.report(
                spark,
                lake=lake,
                url=url or None,
                prefix=prefix if url else None,
                schema=schema if url else None,
                out=out,
                since=since,
                until=until,
                bucket=bucket,
                title=title,
                storage_options=storage,
                progress=lambda doing: update(doing=doing),
            )
    show_report(result, as_json=as_json)


def show_report(result: Any, *, as_json: bool) -> None:
    page, figures = Path(result.page), Path(result.figures)
    if as_json:
        found = msgspec.to_builtins(result.totals)
        times = {"since": result.since, "until": result.until}
        where = {"page": str(page), "figures": str(figures)}
        emit({**where, **times, "totals": found, "findings": list(result.findings)})
        return
    facts({"page": str(page), "figures": str(figures)})
    for finding in result.findings:
        out().print("- ", visible(finding))
