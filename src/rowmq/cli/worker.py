"""`rowmq worker`: run an app's handlers."""

import signal
import sys
from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import click

import rowmq
from rowmq.cli.commands import Command
from rowmq.cli.failing import Code
from rowmq.cli.health import Address, Endpoints, address_of
from rowmq.cli.loading import load_app
from rowmq.cli.logs import FORMATS, LEVELS, set_up_logs
from rowmq.cli.supervisor import URL_VARIABLE, Supervisor, command_of, live_with_parent
from rowmq.cli.values import Duration
from rowmq.telemetry.families import Family, Gathering, Labels
from rowmq.telemetry.figures import Figures, OwnClient
from rowmq.telemetry.metrics import VALUES_MAX, Metrics
from rowmq.worker.app import client_of

__all__ = ["worker"]

OVERTIME_SECONDS = 8.0
"""How much longer than its graceful timeout a child may take: less than its parent waits."""


def names_of(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[str] | None:
    """Names given one by one, or separated by commas."""
    names = [name for value in values for name in value.split(",") if name]
    if values and not names:
        raise click.BadParameter("name at least one, or leave the option out")
    return names if values else None


def address(_: click.Context, __: click.Parameter, value: str | None) -> Address | None:
    return None if value is None else address_of(value)


@click.command(cls=Command)
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="How many processes; one that dies is started again.",
)
@click.option(
    "--queues",
    multiple=True,
    callback=names_of,
    help="Only the handlers of these queues, separated by commas.",
)
@click.option(
    "--topics",
    multiple=True,
    callback=names_of,
    help="Only the handlers of these topics, separated by commas.",
)
@click.option("--url", envvar=URL_VARIABLE, help="The database, in place of the app's own.")
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    callback=address,
    help="Answer /livez and /readyz there over HTTP. Without a host, to this machine only: "
    "for probes from outside give 0.0.0.0:8081.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    callback=address,
    help="Answer /metrics there, for Prometheus, in place of the app's own setting; as with "
    "--health, without a host to this machine only. Both may be at one port.",
)
@click.option("--tell-metrics", is_flag=True, hidden=True)
@click.option(
    "--graceful-timeout",
    type=Duration(),
    metavar="DURATION",
    help="How long handlers have to end after SIGTERM, in place of the app's own.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    envvar="ROWMQ_LOG_FORMAT",
    show_envvar=True,
    help="Lines for people, or JSON for programs; to stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    envvar="ROWMQ_LOG_LEVEL",
    show_envvar=True,
    help="From which level on lines are written, your own included.",
)
def worker(
    app: str,
    *,
    processes: int,
    queues: Collection[str] | None,
    topics: Collection[str] | None,
    url: str | None,
    health: Address | None,
    metrics: Address | None,
    tell_metrics: bool,
    graceful_timeout: timedelta | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the handlers of an app, until SIGTERM or SIGINT (Ctrl-C).

    MODULE is imported from the current directory or from what is installed. After the first signal,
    what was not begun is given back and handlers may end; a second signal ends it at once. Exit
    code 5 says that handlers did not end in time: their messages come again.

    For example:
      rowmq worker shop.tasks:app
      rowmq worker shop.tasks:app --processes 4 --health 8081 --metrics 8081
      rowmq worker shop.tasks:app --queues emails,reports --log-format json
    """
    signal.signal(signal.SIGTERM, leave)
    set_up_logs(log_format, log_level)
    found = load_app(app)
    found.configure(url=url, graceful_timeout=graceful_timeout)
    found.chosen(queues=queues, topics=topics)
    endpoints = Endpoints(health, metrics or found.metrics_address)
    found.configure(metrics=False)  # these answer, and not the app by itself
    if processes == 1:
        sys.exit(run_here(found, queues, topics, endpoints, tell_metrics=tell_metrics))
    options = [f"--log-format={log_format}", f"--log-level={log_level}"]
    options += [] if graceful_timeout is None else [f"--graceful-timeout={found.graceful_timeout}"]
    options += [] if queues is None else [f"--queues={','.join(queues)}"]
    options += [] if topics is None else [f"--topics={','.join(topics)}"]
    options += [] if endpoints.metrics is None else ["--tell-metrics"]
    supervisor = Supervisor(
        processes,
        command_of(app, options),
        url=url,
        graceful_timeout=found.graceful_timeout,
    )
    asking = OwnClient(partial(client_of, found, pool_size=1, notify=False, auto_migrate=False))
    figures = Figures(asking.begin)
    with endpoints.serve(supervisor.health, partial(families_of, supervisor, figures)):
        code = supervisor.run()
    asking.close()
    sys.exit(code)


def leave(*_: object) -> NoReturn:
    """A stop that comes before anything has begun."""
    sys.exit(Code.OK)


def run_here(
    app: rowmq.App,
    queues: Collection[str] | None,
    topics: Collection[str] | None,
    endpoints: Endpoints,
    *,
    tell_metrics: bool,
) -> int:
    limit = app.graceful_timeout + OVERTIME_SECONDS
    metrics = None
    if tell_metrics or endpoints.metrics is not None:
        metrics = Metrics(figures=not tell_metrics)
        app.observe(metrics)

    def told() -> dict[str, Any]:
        """What the parent wants to know."""
        measured = metrics.families() if tell_metrics and metrics is not None else []
        return app.health() | ({"metrics": measured} if measured else {})

    live_with_parent(told, app.stop, seconds_max=limit)
    with endpoints.serve(app.health, None if metrics is None else metrics.families):
        return 0 if app.run(queues=queues, topics=topics) else Code.WORK_LEFT


def families_of(supervisor: Supervisor, figures: Figures) -> list[Family]:
    """What all processes have told of themselves, and what the database says."""
    gathering = Gathering(Labels(VALUES_MAX))
    figures.wait()
    figures.gather(gathering)
    return [*supervisor.families(), *gathering.families()]
