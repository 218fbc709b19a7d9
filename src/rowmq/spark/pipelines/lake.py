"""The lake: Delta tables of messages, dead letters, finished jobs and samples of lag.

A commit of ours is one transaction of Delta's log. It adds files, and says in the same breath where
the archive stands (see `books`); and it carries the next number of one sequence, by which of two
who write at the same time only one succeeds.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType

from rowmq.errors import LakeConflict, LakeError, LakeMismatch
from rowmq.spark.pipelines.layout import DATE, LAYOUTS, Layout, values_in
from rowmq.spark.pipelines.storage import Lake, Root, lake_of
from rowmq.spark.pipelines.writing import Added

__all__ = [
    "OWNER",
    "Snapshot",
    "StoredFile",
    "commit",
    "open_table",
    "read_snapshot",
    "read_table",
    "snapshot_of",
    "unusable",
]

APP = "rowmq"
"""Who counts the commits, in Delta's words an application."""

NOTE = "rowmq"
"""Where a commit keeps what the archive says."""

OWNER = "rowmq.database"
"""The setting of a table that says which database it is from."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a table."""

    path: str
    size: int
    rows: int
    values: dict[str, str]


class Snapshot:
    """A table as it is at one version."""

    def __init__(self, root: Root, layout: Layout, table: DeltaTable) -> None:
        self.root = root
        self.layout = layout
        self.table = table
        self.version = table.version()
        self.number = table.transaction_version(APP) or 0

    def notes(self) -> Iterable[Mapping[str, Any]]:
        """What the archive said with its commits, newest first, as far back as the log goes."""
        for version in range(self.version, -1, -1):
            text = self.root.read(log_file(version))
            if text is None:
                return
            for line in text.splitlines():
                info = msgspec.json.decode(line).get("commitInfo")
                if info is not None and NOTE in info:
                    yield msgspec.json.decode(info[NOTE])

    def files(self) -> list[StoredFile]:
        """The files that the table consists of."""
        found = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return [
            StoredFile(
                path=unquote(row["path"]),
                size=row["size_bytes"],
                rows=row["num_records"] or 0,
                values={name: text_of(row[f"partition.{name}"]) for name in self.partitioned_by},
            )
            for row in found
        ]

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        return self.layout.partitioned_by


def text_of(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def log_file(version: int) -> str:
    return f"_delta_log/{version:020}.json"


# --- open and commit ----------------------------------------------------------------------------


def open_table(lake: Lake, layout: Layout, *, owner: str) -> Snapshot:
    """A table of the lake as it is now; it is made if it is missing.

    Raises `LakeMismatch` if it holds what another database had.
    """
    root = lake.root(layout.table)
    found = snapshot_of(lake, layout)
    if found is None:
        try:
            DeltaTable.create(
                root.uri,
                schema=layout.schema,
                partition_by=list(layout.partitioned_by),
                name=layout.table,
                mode="ignore",
                configuration={OWNER: owner},
                storage_options=root.options or None,
                raise_if_key_not_exists=False,
            )
            root.settle_log(0, 0)
        except CommitFailedError:  # somebody else made it just now
            pass
        except (DeltaError, OSError) as error:
            raise unusable(root, error) from error
        found = snapshot_of(lake, layout)
    if found is None:
        raise LakeError(f"the table {root.uri} was made, and is not there")
    stored = found.table.metadata().configuration.get(OWNER)
    if stored != owner:
        raise LakeMismatch(
            f"{root.uri} holds what another database had (or was not made by RowMQ): offsets and "
            f"ids of two databases cannot be told apart. Give each database a lake of its own"
        )
    return found


def snapshot_of(lake: Lake, layout: Layout, *, version: int | None = None) -> Snapshot | None:
    """A table of the lake as it is now, or was at a version; None if there is none."""
    root = lake.root(layout.table)
    options = root.options or None
    try:
        return Snapshot(
            root, layout, DeltaTable(root.uri, version=version, storage_options=options)
        )
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise unusable(root, error) from error


def unusable(root: Root, error: Exception) -> LakeError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return LakeError(f"the lake's table {root.uri} cannot be used: {first}")


def refuse_missing_files(root: Root, added: Sequence[Added]) -> None:
    """Raise unless the files that tasks wrote are where the driver's table is: a folder may be
    another one on the machine of a task.
    """
    for file in added:
        size = root.size_of(file.path)
        if size != file.size:
            raise LakeError(
                f"a task wrote the file {file.path} of {root.uri}, and the driver finds "
                f"{'none' if size is None else f'one of another size ({size})'} there: on a "
                f"cluster, name a lake that all machines share, such as s3://bucket/lake"
            )


def commit(
    snapshot: Snapshot,
    added: Sequence[Added],
    note: Mapping[str, Any],
    *,
    removed: Sequence[StoredFile] = (),
) -> None:
    """Add files to a table, and take others away, all at once, as the one who saw this snapshot.

    Raises `LakeConflict` if another one of ours has committed since; nothing is changed then. What
    is only moved from file to file must not be moved by two at once, whoever the other is: then
    nobody else may have committed anything.
    """
    refuse_missing_files(snapshot.root, added)
    now = int(time.time() * 1000)
    changes = not removed  # else rows only move from file to file
    adds = [AddAction(f.path, f.size, f.values, now, changes, f.stats) for f in added]
    gone = [RemoveAction(f.path, False, now, f.size, dict(f.values)) for f in removed]
    properties = CommitProperties(
        custom_metadata={NOTE: msgspec.json.encode(note).decode()},
        app_transactions=[Transaction(APP, snapshot.number + 1, now)],
        max_commit_retries=0 if removed else None,
    )
    try:
        snapshot.table.create_write_transaction(
            [*gone, *adds],
            "append",
            snapshot.table.schema(),
            list(snapshot.partitioned_by),
            commit_properties=properties,
        )
        snapshot.table.update_incremental()
        snapshot.root.settle_log(snapshot.version + 1, snapshot.table.version())
    except CommitFailedError as error:
        raise LakeConflict(
            f"somebody else wrote to {snapshot.root.uri} at the same time, so nothing of this was "
            f"added: a lake has one archive at a time"
        ) from error
    except (DeltaError, OSError) as error:
        raise unusable(snapshot.root, error) from error


# --- read ---------------------------------------------------------------------------------------


def read_table(
    spark: SparkSession,
    lake: str | Path | Lake,
    name: str,
    *,
    names: Sequence[str] | None = None,
    since: date | None = None,
    until: date | None = None,
    version: int | None = None,
) -> DataFrame | None:
    """A table of the lake as it is now, or was at a version; None if there is none.

    Only the files of some topics or queues, and of some days, if those are given: rows are for the
    caller to choose.
    """
    snapshot = snapshot_of(lake_of(lake), LAYOUTS[name], version=version)
    if snapshot is None:
        return None
    return read_snapshot(spark, snapshot, names=names, since=since, until=until)


def read_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    *,
    names: Sequence[str] | None = None,
    since: date | None = None,
    until: date | None = None,
) -> DataFrame:
    """The rows of a snapshot."""
    layout = snapshot.layout
    wanted = [file for file in snapshot.files() if is_wanted(layout, file, names, since, until)]
    schema = from_arrow_schema(layout.schema)
    plain = [file for file in wanted if tells_values(file)]
    frames = []
    if plain:
        rows = frame(spark, snapshot.root, [file.path for file in plain], schema, discover=True)
        for column in snapshot.partitioned_by:
            if isinstance(schema[column].dataType, StringType):
                rows = rows.withColumn(column, unescaped(column))
        frames.append(rows)
    for values, paths in by_values(file for file in wanted if not tells_values(file)).items():
        rows = frame(spark, snapshot.root, paths, schema, discover=False)
        for column, value in values:
            rows = rows.withColumn(column, F.lit(value).cast(schema[column].dataType))
        frames.append(rows)
    found = spark.createDataFrame([], schema)
    for number, rows in enumerate(frames):
        chosen = rows.select(schema.names)
        found = found.unionByName(chosen) if number else chosen
    return found


def is_wanted(
    layout: Layout,
    file: StoredFile,
    names: Sequence[str] | None,
    since: date | None,
    until: date | None,
) -> bool:
    day = date.fromisoformat(file.values[DATE])
    named = names is None or layout.name is None or file.values[layout.name] in names
    return named and (since is None or day >= since) and (until is None or day <= until)


def tells_values(file: StoredFile) -> bool:
    """Whether the names of a file's folders are its values: unless those were too long."""
    return dict(values_in(file.path)) == file.values


def by_values(files: Iterable[StoredFile]) -> dict[tuple[tuple[str, str], ...], list[str]]:
    """Files whose folders do not tell their values, by those."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for file in files:
        found.setdefault(tuple(file.values.items()), []).append(file.path)
    return found


def frame(
    spark: SparkSession, root: Root, paths: Sequence[str], schema: Any, *, discover: bool
) -> DataFrame:
    """The rows of files. Names of folders are read as values, if they tell those."""
    reader = spark.read.schema(schema)
    if discover:
        reader = reader.option("basePath", root.uri)
    return reader.parquet(*[f"{root.uri}/{path}" for path in paths])


def unescaped(column: str) -> Column:
    """A value that stood in the name of a folder, as UTF-8 with its bytes escaped like %F0.

    Spark makes a character of each byte.
    """
    return F.decode(F.encode(F.col(column), "ISO-8859-1"), "UTF-8")
