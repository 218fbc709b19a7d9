"""What commands that run on Spark share: its options, its session, and how they are stopped."""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rowmq.cli.options import Database
from rowmq.cli.showing import pulse
from rowmq.errors import PipelineFailed, RowMQError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Sparking", "opened", "pairs", "sparking", "stopping", "storage"]

F = TypeVar("F", bound=Callable[..., Any])


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Settings, each as name=value."""
    found = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{value!r} is no setting: write name=value", ctx, param)
        found[name.strip()] = content
    return found


master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    envvar="ROWMQ_SPARK_MASTER",
    show_envvar=True,
    help="Spark's master: this machine, spark://host:7077, yarn, or sc://host of Spark Connect.",
)

conf = click.option(
    "--conf",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="A setting of Spark's; may be given again.",
)

storage = click.option(
    "--storage",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="A setting of the lake's object store, as deltalake names it; may be given again.",
)


class Sparking:
    """A Spark to be started."""

    def __init__(self, master: str, conf: Mapping[str, str]) -> None:
        self.master = master
        self.conf = conf

    @contextlib.contextmanager
    def session(self, name: str, *, quiet: bool) -> Iterator["SparkSession"]:
        """A session, which is stopped at the end, if it was not there before."""
        from rowmq.spark.starting import present, session  # noqa: PLC0415 - only here

        known = present()
        with pulse("starting Spark", quiet=quiet):
            try:
                spark = session(self.master, name=name, config=self.conf)
            except RowMQError:
                raise
            except Exception as error:
                raise PipelineFailed(f"Spark did not start: {first_line(error)}") from error
        try:
            yield spark
        finally:
            if known is None:
                with contextlib.suppress(Exception):  # it may be gone already
                    spark.stop()


def opened(database: Database) -> None:
    """See that the database is there, before Spark is started, which takes longer."""
    with database.open():
        pass


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def sparking(function: F) -> F:
    """Options that say which Spark; the command gets it as its first argument."""

    @functools.wraps(function)
    def call(*args: Any, master: str, conf: dict[str, str], **options: Any) -> Any:
        return function(Sparking(master, conf), *args, **options)

    return master(conf(call))  # type: ignore[return-value]


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that is set by SIGTERM or Ctrl-C; a second one ends the process at once."""
    stop = threading.Event()

    def note(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[number])

    before: dict[int, Any] = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    }
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
