"""The plan of a replay: which version of the lake, and where each chunk of it ends.

It is made once for each id, and kept in the lake. Whoever comes again with the same id does what is
left of it; of two who come at the same time, both do the same: that which the ledger of the
database has the number of.
"""

import hashlib
from datetime import UTC, datetime

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

__all__ = [
    "FIRST",
    "Plan",
    "another_lake",
    "check_same",
    "find_plan",
    "keep_plan",
    "make_plan",
    "table_id",
]

TABLE = "replays"
FIRST = Border(0, -1, -1)
"""Before everything."""

SCHEMA = pa.schema(
    [("id", pa.string()), ("made_at", pa.timestamp("us", "UTC")), ("plan", pa.string())]
)


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replay does, chunk by chunk."""

    selection: Selection
    version: int
    """The version of the lake's table."""
    rows: int
    chunk: int
    """How many rows a chunk has; the last one may have fewer."""
    borders: tuple[Border, ...]
    """The last row of each chunk."""
    table: str = ""
    """The id of the lake's table, which Delta gave it."""

    @property
    def number(self) -> int:
        """What tells it from other plans, in 62 bits."""
        digest = hashlib.sha256(msgspec.json.encode(self)).digest()
        return int.from_bytes(digest[:8]) >> 2

    def rows_in(self, number: int) -> int:
        """How many rows a chunk has."""
        return min(self.chunk, self.rows - number * self.chunk)


def make_plan(spark: SparkSession, snapshot: Snapshot, selection: Selection, chunk: int) -> Plan:
    """Count what is chosen, and find where its chunks end."""
    rows = chosen(spark, snapshot, selection)
    table = table_id(snapshot)
    time, partition, number = ordered_by(selection.layout)
    place = F.struct(time.alias("time"), partition.alias("partition"), number.alias("number"))
    places = rows.select(place.alias("place"))
    found = places.agg(F.count("*").alias("rows"), F.max("place").alias("last")).collect()[0]
    if not found["rows"]:
        return Plan(selection, snapshot.version, 0, chunk, (), table)
    # All of it in one order: which Spark warns of, unless it is told of a group that all are in.
    whole = Window.partitionBy(F.col("place.partition") * 0).orderBy("place")
    numbered = places.withColumn("nth", F.row_number().over(whole))
    ends = numbered.where(F.col("nth") % chunk == 0).orderBy("nth").collect()
    borders = [Border(*end["place"]) for end in ends]
    last = Border(*found["last"])
    if not borders or borders[-1] != last:
        borders.append(last)
    return Plan(selection, snapshot.version, found["rows"], chunk, tuple(borders), table)


def find_plan(lake: Lake, id: str, number: int | None = None) -> Plan | None:
    """The plan of a replay that was begun before: the one with a number, or else the earliest."""
    table = table_of(lake)
    plans = [] if table is None else plans_in(table, lake, id)
    return next((plan for plan in plans if number is None or plan.number == number), None)


def keep_plan(lake: Lake, id: str, plan: Plan) -> Plan:
    """Keep a plan; if somebody else was first, theirs is the one.

    Where a store lets two commit at once, both plans are kept: the ledger then chooses.
    """
    root = lake.root(TABLE)
    row = {"id": id, "made_at": datetime.now(UTC), "plan": msgspec.json.encode(plan).decode()}
    while True:
        # What is added to is the version that was looked at: not one that another has added to.
        table = table_of(lake) or make_table(lake)
        known = plans_in(table, lake, id)
        if known:
            return known[0]
        properties = CommitProperties(
            app_transactions=[Transaction(app_of(id), 1)], max_commit_retries=0
        )
        rows = pa.Table.from_pylist([row], schema=SCHEMA)
        try:
            write_deltalake(table, rows, mode="append", commit_properties=properties)
        except CommitFailedError:
            continue
        except (DeltaError, OSError) as error:
            raise unusable(root, error) from error


def plans_in(table: DeltaTable, lake: Lake, id: str) -> list[Plan]:
    """The plans that a table has for an id, the earliest first."""
    if table.transaction_version(app_of(id)) is None:
        return []
    try:
        rows = table.to_pyarrow_dataset().to_table(filter=pc.field("id") == id)
    except (DeltaError, OSError) as error:
        raise unusable(lake.root(TABLE), error) from error
    texts = rows.sort_by("made_at").column("plan").to_pylist()
    return [msgspec.json.decode(text, type=Plan) for text in texts]


def table_of(lake: Lake) -> DeltaTable | None:
    root = lake.root(TABLE)
    try:
        return DeltaTable(root.uri, storage_options=root.options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise unusable(root, error) from error


def make_table(lake: Lake) -> DeltaTable:
    root = lake.root(TABLE)
    options = root.options or None
    try:
        return DeltaTable.create(root.uri, SCHEMA, mode="ignore", storage_options=options)
    except CommitFailedError:  # somebody else made it just now
        return DeltaTable(root.uri, storage_options=options)
    except (DeltaError, OSError) as error:
        raise unusable(root, error) from error


def table_id(snapshot: Snapshot) -> str:
    return str(snapshot.table.metadata().id)


def app_of(id: str) -> str:
    return f"replay:{id}"


def another_lake(id: str) -> InvalidOption:
    return InvalidOption(
        f"the id {id!r} was used for a replay of another lake, or of another choice: nothing is "
        f"replayed twice for one id, so give this replay a new one"
    )


def check_same(id: str, plan: Plan, selection: Selection) -> None:
    """Raise if a replay of this id was begun with another selection."""
    asked, known = msgspec.structs.asdict(selection), msgspec.structs.asdict(plan.selection)
    other = [name for name in asked if asked[name] != known[name]]
    if other:
        shown = ", ".join(f"{name}={known[name]!r}" for name in other)
        raise InvalidOption(
            f"the replay {id!r} was begun with {shown}: go on with the same, or give it another id"
        )
