"""The health endpoints of a worker: 200 if it is well, 503 if not, and JSON that says why."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import msgspec

__all__ = ["Address", "address_of", "serve_health"]

Address = tuple[str, int]

READY = ("/", "/health", "/healthz", "/readyz")
"""Whether it gets its work done; in an outage of the database it does not."""

LIVE = ("/livez",)
"""Whether it is worth keeping: starting it again mends no outage."""


PORT_DIGITS_MAX = 5


def address_of(value: str) -> Address:
    """The address of `port` or `host:port`; without a host, only this machine can ask."""
    host, colon, port = value.rpartition(":")
    bare = ":" in host and not host.startswith("[")
    given = port.isascii() and port.isdecimal() and len(port) <= PORT_DIGITS_MAX
    if not given or not 0 <= int(port) < 65536 or (colon and not host) or bare:
        raise click.BadParameter(
            "give a port, as in 8080, or host:port, as in 0.0.0.0:8080 or [::]:8080"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


@contextlib.contextmanager
def serve_health(address: Address | None, health: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Answer, from a thread, for as long as the block runs."""
    if address is None:
        yield
        return
    try:
        server = Server(address, health)
    except OSError as error:
        host, port = address
        raise click.UsageError(f"cannot listen on {host}:{port} for --health: {error}") from error
    thread = threading.Thread(target=server.serve_forever, name="rowmq-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Server(ThreadingHTTPServer):
    """Answers what `health` says at the moment."""

    daemon_threads = True

    def __init__(self, address: Address, health: Callable[[], dict[str, Any]]) -> None:
        self.health = health
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Answer)


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = 5.0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path not in READY + LIVE:
            self.send_error(404, "ask for /livez or /readyz")
            return
        told = self.server.health()
        body = msgspec.json.encode(told)
        self.send_response(200 if told["alive" if path in LIVE else "healthy"] else 503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - as the base class calls it

    def log_message(self, format: str, *args: Any) -> None:
        """A check every few seconds is nothing to write down."""
