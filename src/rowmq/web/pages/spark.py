"""Spark: what its streams and archives read, what its sinks wrote, and how large its lake is."""

from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from rowmq.message import WriterInfo
from rowmq.rights import Role
from rowmq.web.asking import Ask
from rowmq.web.lake import Lake, Lakes
from rowmq.web.routing import Route
from rowmq.web.sampling import Snapshot

__all__ = ["ROUTES"]

KINDS = {"app:replay:": "replay", "app:": "batch", "query:": "stream", "replay:": "", "": "other"}
"""What a writer is, by how its line in the ledger begins: the first that fits."""


class Written(NamedTuple):
    """What a writer published last."""

    kind: str
    name: str
    info: WriterInfo


async def show_spark(ask: Ask) -> Response:
    """Pipelines as the database knows them, and the lake, if the settings name one."""
    # As it was seen lately, once for all who look: large topics take a while.
    seen: Snapshot = await ask.sampler.look(ask.mq)
    pipelines = seen.pipelines
    readers = [one for one in pipelines.readers if ask.caller.sees_topic(one.topic)]
    # A stream's line in the ledger does not tell where it writes to.
    writers = writers_of(pipelines.writers) if ask.caller.sees_everything else []
    lake = await lake_of(ask)
    moments = [one.moved_at for one in readers] + [one.info.written_at for one in writers]
    return ask.render(
        "spark.html",
        readers=readers,
        writers=writers,
        lag=sum(one.lag for one in readers),
        oldest=min((one.oldest_at for one in readers if one.oldest_at), default=None),
        last=max((moment for moment in moments if moment), default=None),
        capped=any(one.capped for one in readers),
        oldest_capped=any(one.oldest_capped for one in readers),
        lake=lake,
        lake_rows=0 if lake is None else sum(table.rows for table in lake.tables),
    )


async def lake_of(ask: Ask) -> Lake | None:
    """The lake; it has the messages of all topics."""
    if ask.settings.lake is None or not ask.caller.sees_everything:
        return None
    lakes: Lakes = ask.site.lakes
    return await lakes.look(ask.settings.lake)


def writers_of(found: Sequence[WriterInfo]) -> list[Written]:
    """Writers by what they are. The plan of a replay was not published: it is left out."""
    written = []
    for info in found:
        for start, kind in KINDS.items():
            if info.writer.startswith(start):
                if kind:
                    written.append(Written(kind, info.writer.removeprefix(start), info))
                break
    return written


ROUTES = [Route("GET", "/spark", show_spark, needs=Role.READ)]
