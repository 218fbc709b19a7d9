"""`Metrics`: what one process measures, as Prometheus reads it."""

import importlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from rowmq.drivers.forking import after_fork
from rowmq.errors import MissingExtra
from rowmq.options import check_flag, whole
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Family, Gathering, Labels
from rowmq.telemetry.figures import Figures
from rowmq.telemetry.measuring import HandlerMeter, StatementMeter

__all__ = ["VALUES_MAX", "Metrics", "available", "content_type", "text_of"]

VALUES_MAX = 100
"""How many values a label may have, if nothing else is said."""

Gauge = Callable[[Gathering], None]


class Metrics:
    """What is measured in this process, for Prometheus: of workers, by `app.observe(metrics)`, and
    of clients, by `metrics.observe(mq)`.

    Every label has at most `values_max` values, those that came first; what has others is counted
    under `other`. So nobody who makes up names of topics can fill a Prometheus server. With
    `figures`, workers also tell what the database says of lag, dead letters and jobs.
    """

    def __init__(self, *, values_max: int = VALUES_MAX, figures: bool = True) -> None:
        self.labels = Labels(whole("values_max", values_max))
        self.wants_figures = check_flag("figures", figures)
        self.figures: Figures | None = None
        """What the database says, if a worker is there that asks it."""
        self._gauges: list[Gauge] = []
        self._drivers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._registry: Any = None
        self.statements = StatementMeter()
        self.reset()
        after_fork(self)

    def reset(self) -> None:
        """Nothing was counted: at the start, and in a forked child, which is another process."""
        self._lock = threading.Lock()
        self._handlers: dict[tuple[str, str], HandlerMeter] = {}
        self._fires: Counter[str] = Counter()

    # --- what is measured -------------------------------------------------------------------------

    def observe(self, mq: Any) -> None:
        """Measure a client: its connections, its statements, and the schedules that it fires."""
        driver = mq._driver  # noqa: SLF001 - whoever measures looks inside
        with self._lock:
            if driver in self._drivers:
                return
            self._drivers.add(driver)
        driver.timers.append(self.statements)
        for core in (mq.cron._core, mq.cron._tender._core):  # noqa: SLF001
            core.fired.append(self._fired)

    def _fired(self, schedule: str, count: int) -> None:
        with self._lock:
            self._fires[schedule] += count

    def handler(self, name: str, source: str) -> HandlerMeter:
        """What counts for a handler: the same one for as long as the process lives."""
        with self._lock:
            return self._handlers.setdefault((name, source), HandlerMeter())

    def add(self, gauge: Gauge) -> None:
        """Ask this, too, whenever somebody wants to know."""
        self._gauges.append(gauge)

    def remove(self, gauge: Gauge) -> None:
        """Ask it no more."""
        self._gauges.remove(gauge)

    # --- what is told -----------------------------------------------------------------------------

    def families(self) -> list[Family]:
        """Everything as it stands, as plain values."""
        gathering = Gathering(self.labels)
        figures = self.figures
        if figures is not None:
            figures.wait()
            figures.gather(gathering)
        self.gather(gathering)
        return gathering.families()

    def gather(self, gathering: Gathering) -> None:
        """Tell what was measured in this process."""
        for gauge in list(self._gauges):
            gauge(gathering)
        with self._lock:
            for labels, meter in self._handlers.items():
                meter.gather(gathering, labels)
            for schedule, count in self._fires.items():
                gathering.add(catalogue.SCHEDULE_FIRES, (schedule,), count)
            for driver in list(self._drivers):
                gather_pool(gathering, driver.pool)
        self.statements.gather(gathering)

    @property
    def registry(self) -> Any:
        """A `prometheus_client.CollectorRegistry` of its own, to be served beside others."""
        if self._registry is None:
            self._registry = exposition().registry_of(self.families)
        return self._registry

    def text(self) -> bytes:
        """Everything as it stands, in the format that Prometheus reads."""
        return text_of(self.families)

    @property
    def content_type(self) -> str:
        """What a server is to call that."""
        return content_type()


def gather_pool(gathering: Gathering, pool: Any) -> None:
    """Tell of a client's connections, unless it was closed."""
    if not pool.closed:
        gathering.add(catalogue.POOL_SIZE, (), pool.size)
        gathering.add(catalogue.POOL_IN_USE, (), pool.in_use)
    gathering.add(catalogue.POOL_WAITS, (), pool.waits)
    gathering.add(catalogue.POOL_WAIT_SECONDS, (), pool.waited_seconds)


def available() -> bool:
    """Whether prometheus-client is installed."""
    try:
        exposition()
    except MissingExtra:
        return False
    return True


def text_of(families: Callable[[], list[Family]]) -> bytes:
    """Families in the format that Prometheus reads."""
    text: bytes = exposition().text_of(families)
    return text


def content_type() -> str:
    """What a server is to call the format that Prometheus reads."""
    return str(exposition().CONTENT_TYPE)


def exposition() -> Any:
    try:
        return importlib.import_module("rowmq.telemetry.exposition")
    except ImportError as error:
        raise MissingExtra(
            f"metrics need prometheus-client ({str(error).splitlines()[0]}); "
            f"run: pip install 'rowmq[metrics]'"
        ) from error
