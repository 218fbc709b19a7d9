"""`rowmq dashboard`: serve the dashboard and the HTTP API."""

from datetime import timedelta
from typing import Any

import click

from rowmq.cli import options
from rowmq.cli.commands import Command
from rowmq.cli.failing import redacted
from rowmq.cli.logs import FORMATS, LEVELS, set_up_logs
from rowmq.cli.options import Database
from rowmq.cli.showing import err, out, visible
from rowmq.cli.values import DURATION, SIZE

__all__ = ["dashboard"]


@click.command(cls=Command)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 is all of them.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="The port; 0 is one that is free.",
)
@options.database
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option(
    "--mask",
    "masks",
    multiple=True,
    metavar="RULE",
    help="What is not shown, besides what never is: header:NAME, field:NAME, path:a.b[*].c, "
    "payload.",
)
@click.option("--lake", metavar="PATH", help="Spark's lake, for its size.")
@click.option(
    "--token",
    envvar="ROWMQ_DASHBOARD_TOKEN",
    show_envvar=True,
    help="One more secret with every right. The variable is better: others see command lines.",
)
@click.option(
    "--secret",
    envvar="ROWMQ_DASHBOARD_SECRET",
    show_envvar=True,
    help="What sessions are signed with: then they outlive the process, and several share them.",
)
@click.option(
    "--name",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Serve only under this name, as in rowmq.example.com.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy in front, whose X-Forwarded-For and -Proto are believed.",
)
@click.option(
    "--root-path", default="", metavar="PATH", help="What all paths begin with, as in /queues."
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="Serve by TLS.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="Its private key.")
@click.option(
    "--session",
    type=DURATION,
    default="12h",
    show_default=True,
    metavar="DURATION",
    help="How long one stays signed in.",
)
@click.option(
    "--max-body", type=SIZE, default="8MiB", show_default=True, help="How large a request may be."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=200.0,
    show_default=True,
    help="How often a caller may ask, per second.",
)
@click.option(
    "--burst",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    help="And how often at once.",
)
@click.option(
    "--secure-cookies",
    is_flag=True,
    help="Have browsers send cookies by TLS only, though a proxy in front does not say that it is "
    "used.",
)
@click.option(
    "--audit-messages",
    is_flag=True,
    help="Have the audit trail hold every message, too, that programs publish and settle.",
)
@click.option(
    "--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help="To stderr."
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="warning",
    show_default=True,
    help="From where.",
)
def dashboard(
    database: Database,
    *,
    host: str,
    port: int,
    read_only: bool,
    masks: tuple[str, ...],
    lake: str | None,
    token: str | None,
    secret: str | None,
    hosts: tuple[str, ...],
    proxies: tuple[str, ...],
    root_path: str,
    tls_cert: str | None,
    tls_key: str | None,
    session: timedelta,
    max_body: int,
    rate: float,
    burst: int,
    secure_cookies: bool,
    audit_messages: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Serve the dashboard and the HTTP API.

    Until there is a token, it serves this machine only. Rights are given by rowmq tokens create.

    For example:
      rowmq dashboard --url sqlite:///queue.db
      rowmq dashboard --host 0.0.0.0 --port 80 --name rowmq.example.com --read-only
    """
    set_up_logs(log_format, log_level)
    # Only this command needs what comes with rowmq[web].
    from rowmq.web import Settings, Site  # noqa: PLC0415
    from rowmq.web.masking import DEFAULT_MASKS  # noqa: PLC0415
    from rowmq.web.serving import Door, listen, serve  # noqa: PLC0415

    chosen: dict[str, Any] = {} if secret is None else {"secret": secret}
    settings = Settings(
        read_only=read_only,
        masks=DEFAULT_MASKS + masks,
        lake=lake,
        token=token,
        hosts=hosts,
        root_path=root_path,
        session_seconds=session.total_seconds(),
        body_bytes_max=max_body,
        requests_per_second=rate,
        burst=burst,
        secure_cookies=secure_cookies or None,
        audit_messages=audit_messages,
        proxied=bool(proxies),
        strict_transport=True,
        **chosen,
    )
    site = Site(database.url, settings, prefix=database.prefix, schema=database.schema)
    with database.open() as mq:
        has_tokens = token is not None or mq.access.has_tokens()
    door = Door(host, port, proxies, tls_cert, tls_key)
    with listen(door) as found:
        where = door.url(found.getsockname()[1]) + root_path.removeprefix("/")

        def say() -> None:
            out().print(f"the dashboard of {visible(redacted(database.url))} is at {where}")
            err().print((OPEN if has_tokens else SHUT if proxies else CLOSED, "dim"))

        serve(site, door, found, say)


CLOSED = (
    "there is no token yet, so only this machine itself is served: to let others in, "
    "rowmq tokens create NAME --role admin"
)

SHUT = (
    "there is no token yet, so nobody is served: behind a proxy, this machine is not known from "
    "others; rowmq tokens create NAME --role admin"
)

OPEN = "sign in with a token; Ctrl-C ends it"
