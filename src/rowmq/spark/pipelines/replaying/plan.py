"""The plan of a replay: which version of the lake, and where each chunk of it ends.

It is made once for each id, and kept in the lake. Whoever comes again with the same id does what is
left of it; of two who come at the same time, both do the same.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from rowmq.errors import InvalidOption
from rowmq.spark.pipelines.lake import Snapshot, unusable
from rowmq.spark.pipelines.replaying.selection import Border, Selection, chosen, ordered_by
from rowmq.spark.pipelines.storage import Lake

__all__ = ["FIRST", "Plan", "check_same", "find_plan", "keep_plan", "make_plan"]

TABLE = "replays"
FIRST = Border(0, -1, -1)
"""Before everything."""

SCHEMA = pa.schema(
    [("id", pa.string()), ("made_at", pa.timestamp("us", "UTC")), ("plan", pa.string())]
)


class Plan(msgspec.Struct, frozen=True):
    """What a replay does, chunk by chunk."""

    selection: Selection
    version: int
    """The version of the lake's table."""
    rows: int
    chunk: int
    """How many rows a chunk has; the last one may have fewer."""
    borders: tuple[Border, ...]
    """The last row of each chunk."""


def make_plan(spark: SparkSession, snapshot: Snapshot, selection: Selection, chunk: int) -> Plan:
    """Count what is chosen, and find where its chunks end."""
    rows = chosen(spark, snapshot, selection)
    time, partition, number = ordered_by(selection.layout)
    place = F.struct(time.alias("time"), partition.alias("partition"), number.alias("number"))
    places = rows.select(place.alias("place"))
    found = places.agg(F.count("*").alias("rows"), F.max("place").alias("last")).collect()[0]
    if not found["rows"]:
        return Plan(selection, snapshot.version, 0, chunk, ())
    # All of it in one order: which Spark warns of, unless it is told of a group that all are in.
    whole = Window.partitionBy(F.col("place.partition") * 0).orderBy("place")
    numbered = places.withColumn("nth", F.row_number().over(whole))
    ends = numbered.where(F.col("nth") % chunk == 0).orderBy("nth").collect()
    borders = [Border(*end["place"]) for end in ends]
    last = Border(*found["last"])
    if not borders or borders[-1] != last:
        borders.append(last)
    return Plan(selection, snapshot.version, found["rows"], chunk, tuple(borders))


def find_plan(lake: Lake, id: str) -> Plan | None:
    """The plan of a replay that was begun before."""
    table = table_of(lake)
    if table is None or table.transaction_version(app_of(id)) is None:
        return None
    try:
        rows = table.to_pyarrow_dataset().to_table(filter=pc.field("id") == id)
    except (DeltaError, OSError) as error:
        raise unusable(lake.root(TABLE), error) from error
    return msgspec.json.decode(rows.column("plan")[0].as_py(), type=Plan)


def keep_plan(lake: Lake, id: str, plan: Plan) -> Plan:
    """Keep a plan; if somebody else was first, theirs is the one."""
    root = lake.root(TABLE)
    row = {"id": id, "made_at": datetime.now(UTC), "plan": msgspec.json.encode(plan).decode()}
    while (known := find_plan(lake, id)) is None:
        table = table_of(lake)
        options: dict[str, Any] = {"storage_options": root.options or None, "mode": "append"}
        properties = CommitProperties(
            app_transactions=[Transaction(app_of(id), 1)], max_commit_retries=0
        )
        try:
            write_deltalake(
                root.uri if table is None else table,
                pa.Table.from_pylist([row], schema=SCHEMA),
                commit_properties=properties,
                **(options if table is None else {"mode": "append"}),
            )
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise unusable(root, error) from error
    return known


def table_of(lake: Lake) -> DeltaTable | None:
    root = lake.root(TABLE)
    try:
        return DeltaTable(root.uri, storage_options=root.options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise unusable(root, error) from error


def app_of(id: str) -> str:
    return f"replay:{id}"


def check_same(id: str, plan: Plan, selection: Selection) -> None:
    """Raise if a replay of this id was begun with another selection."""
    asked, known = msgspec.structs.asdict(selection), msgspec.structs.asdict(plan.selection)
    other = [name for name in asked if asked[name] != known[name]]
    if other:
        shown = ", ".join(f"{name}={known[name]!r}" for name in other)
        raise InvalidOption(
            f"the replay {id!r} was begun with {shown}: go on with the same, or give it another id"
        )
