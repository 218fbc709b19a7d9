"""The report: what topics and queues did in some time, as a page to read and figures to go on from.

Spark counts, in three jobs; the page is made from a few thousand figures, on the driver.

    lake, live tables ──► tables ──► figures ──► findings ──► page.html, page.parquet
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from rowmq.errors import InvalidOption
from rowmq.spark.pipelines.lake import snapshot_of
from rowmq.spark.pipelines.layout import LAYOUTS
from rowmq.spark.pipelines.reporting.book import Book
from rowmq.spark.pipelines.reporting.counting import (
    Extent,
    count_failures,
    count_figures,
    find_extent,
)
from rowmq.spark.pipelines.reporting.figures import Figure, figures_table
from rowmq.spark.pipelines.reporting.findings import Story, findings_of, plain
from rowmq.spark.pipelines.reporting.live import Live, live_figures, look
from rowmq.spark.pipelines.reporting.page import Heading, page
from rowmq.spark.pipelines.reporting.reasons import failure_figures, reasons_of
from rowmq.spark.pipelines.reporting.tables import Span, load_tables
from rowmq.spark.pipelines.reporting.totals import Totals, totals_of
from rowmq.spark.pipelines.reporting.window import Window, window_of
from rowmq.spark.pipelines.storage import Lake, lake_of
from rowmq.spark.place import Place, place_of
from rowmq.spark.starting import register
from rowmq.times import Duration, to_micros, to_seconds

__all__ = ["Report", "report"]

TITLE = "RowMQ report"
PAGE, FIGURES = ".html", ".parquet"
MICRO = timedelta(microseconds=1)

DATABASES = {"postgres": "PostgreSQL", "mysql": "MySQL or MariaDB", "sqlite": "SQLite"}

Tell = Callable[[str], None]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report that was written: where it is, and what it says in short.

    `findings` is what needs attention, the most urgent first. `since` and `until` are the time that
    it is about; None if there was nothing at all.
    """

    page: Path
    figures: Path
    totals: Totals
    findings: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None


def report(
    spark: SparkSession,
    *,
    lake: str | Path | None = None,
    url: str | None = None,
    out: str | Path,
    since: datetime | None = None,
    until: datetime | None = None,
    bucket: Duration | None = None,
    title: str = TITLE,
    storage_options: Mapping[str, str] | None = None,
    prefix: str | None = None,
    schema: str | None = None,
    progress: Tell | None = None,
) -> Report:
    """Write a page about what topics and queues did, and a Parquet file of its figures beside it.

    It is made from a lake, from the live tables of the database at `url`, or from both: what is in
    both counts once. With neither, from the database that ROWMQ_URL names. `out` is a file that
    ends in `.html`, or a folder, which gets a `report.html`; files of an earlier report are
    replaced, whole.

    The time from `since` on and before `until` is told of, in steps of `bucket`; by default all
    there is, in steps that suit it. `progress` is told in words what is being done.

    Raises `InvalidOption`, `NaiveDatetime` and `LakeError`, before anything is written.
    """
    place = chosen_place(lake, url, prefix, schema)
    span, step, target = check_span(since, until), check_bucket(bucket), check_out(out)
    found = None if lake is None else lake_with_tables(lake, storage_options)
    tell = progress or silent
    live = None
    if place is not None:
        tell("asking the database")
        register(spark)
        with place.connect() as mq:
            live = look(mq)
    tell("looking for what there is")
    tables = load_tables(spark, found, place, live, span)
    extent = find_extent(tables)
    window = window_in(extent, span, step)
    heading = Heading(
        title=title,
        sources=tuple(sources(found, live)),
        made_at=datetime.now(UTC),
        figures=target.with_suffix(FIGURES).name,
    )
    tell("counting")
    if extent is None or window is None:
        return written(target, heading, None, live_figures(live))
    figures = count_figures(tables, window, crowded=extent.crowded)
    tell("grouping failures")
    reasons = reasons_of(count_failures(tables, window))
    tell("writing")
    story = Story(window, Book(figures), reasons, live)
    return written(
        target, heading, story, [*figures, *failure_figures(reasons), *live_figures(live)]
    )


def written(target: Path, heading: Heading, story: Story | None, figures: list[Figure]) -> Report:
    """Judge, and write both files."""
    findings = [] if story is None else findings_of(story)
    totals = Totals() if story is None else totals_of(story.book, story.live)
    write_both(target, page(heading, story, totals, findings), figures)
    return Report(
        page=target,
        figures=target.with_suffix(FIGURES),
        totals=totals,
        findings=tuple(plain(finding.what) for finding in findings),
        since=None if story is None else story.window.since,
        until=None if story is None else story.window.until,
    )


# --- what was asked for ---------------------------------------------------------------------------


def silent(doing: str) -> None:
    """Tell nobody."""


def chosen_place(
    lake: str | Path | None, url: str | None, prefix: str | None, schema: str | None
) -> Place | None:
    """The database to ask; none, if there is only a lake."""
    if lake is not None and url is None:
        return None
    options = {"url": url, "prefix": prefix, "schema": schema}
    return place_of({name: value for name, value in options.items() if value is not None})


def check_span(since: datetime | None, until: datetime | None) -> Span:
    for moment in (since, until):
        if moment is not None:
            to_micros(moment)  # which has something to say about naive ones
    if since is not None and until is not None and since >= until:
        raise InvalidOption(f"since must be before until: {since} is not before {until}")
    return Span(since, until)


def check_bucket(bucket: Duration | None) -> timedelta | None:
    if bucket is None:
        return None
    seconds = to_seconds(bucket, name="bucket")
    if seconds < 1:
        raise InvalidOption(f"bucket must be a second or more, not {bucket!r}")
    return timedelta(seconds=seconds)


def check_out(out: str | Path) -> Path:
    """The file of the page."""
    if not isinstance(out, str | Path) or not str(out).strip():
        raise InvalidOption(f"out must be a folder or a file such as report.html, not {out!r}")
    path = Path(out).expanduser()
    if path.suffix.lower() != PAGE or path.is_dir():
        if path.exists() and not path.is_dir():
            raise InvalidOption(
                f"out is the file {path}: name a folder, or a file that ends in {PAGE}"
            )
        path /= f"report{PAGE}"
    for folder in (path.parent, *path.parent.parents):
        if folder.exists():
            if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
                raise InvalidOption(f"out cannot be written: {folder} is no folder to write to")
            break
    return path


def window_in(extent: Extent | None, span: Span, bucket: timedelta | None) -> Window | None:
    """The time to tell of: as was asked for, and where it was left open, as far as anything is."""
    if extent is None:
        return None
    since = span.since or extent.first
    until = span.until or extent.last + MICRO
    if since >= until:
        return None
    window = window_of(since, until, bucket)
    if span.until is None and until - since < window.bucket:
        # One message is not a million a second because it took a microsecond.
        return Window(since, since + window.bucket, window.bucket)
    return window


def lake_with_tables(lake: str | Path, storage_options: Mapping[str, str] | None) -> Lake:
    """A lake that is there."""
    found = lake_of(lake, storage_options)
    if all(snapshot_of(found, layout) is None for layout in LAYOUTS.values()):
        raise InvalidOption(
            f"there is no lake at {found.uri}: archive something first, with rowmq pipeline "
            f"archive; or name no lake, and have the report made from the database alone"
        )
    return found


def sources(lake: Lake | None, live: Live | None) -> list[str]:
    """Where the figures are from, in words, without a secret."""
    told = []
    if lake is not None:
        told.append(f"the lake {lake.uri}")
    if live is not None:
        told.append(f"the live tables of {DATABASES[live.database]}")
    return told


# --- files ----------------------------------------------------------------------------------------


def write_both(target: Path, text: str, figures: list[Figure]) -> None:
    """Write the figures, and then the page that speaks of them; each whole, or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    table = figures_table(figures)
    replace(target.with_suffix(FIGURES), lambda path: pq.write_table(table, path))
    replace(target, lambda path: path.write_text(text, encoding="utf-8"))


def replace(target: Path, write: Callable[[Path], object]) -> None:
    """Have a file be written beside its place, and then put there."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    draft = Path(name)
    try:
        write(draft)
        draft.chmod(0o644)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
