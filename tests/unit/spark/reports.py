"""What tests of reports share: times, windows, figures."""

from datetime import UTC, datetime, timedelta

from rowmq.spark.pipelines.reporting.book import Book
from rowmq.spark.pipelines.reporting.figures import Figure
from rowmq.spark.pipelines.reporting.findings import Story
from rowmq.spark.pipelines.reporting.live import Live
from rowmq.spark.pipelines.reporting.reasons import Reason
from rowmq.spark.pipelines.reporting.window import Window

__all__ = ["at", "story", "window"]

DAY = datetime(2026, 1, 15, tzinfo=UTC)


def at(hours: float) -> datetime:
    return DAY + timedelta(hours=hours)


def window(hours: float = 12, *, bucket: timedelta = timedelta(hours=1)) -> Window:
    return Window(DAY, at(hours), bucket)


def story(*figures: Figure, reasons: tuple[Reason, ...] = (), live: Live | None = None) -> Story:
    return Story(window(), Book(figures), list(reasons), live)
