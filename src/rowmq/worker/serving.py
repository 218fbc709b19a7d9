"""A small HTTP server of a worker: for its health and its metrics, in a thread of its own."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from rowmq.errors import InvalidOption
from rowmq.quoting import quoted
from rowmq.telemetry.families import Family
from rowmq.telemetry.metrics import content_type, text_of

__all__ = ["Address", "Answer", "Answers", "address_of", "metrics_answers", "serving"]

Address = tuple[str, int]

PORT_DIGITS_MAX = 5

REQUESTS_MAX = 16
REQUEST_SECONDS = 20.0
"""How many requests there are at once, each in a thread, and how long one may take: whoever can
reach this could use up the memory of a worker otherwise.
"""


class Answer(NamedTuple):
    """What is answered to a GET."""

    status: int
    content_type: str
    body: bytes


Answers = Mapping[str, Callable[[], Answer]]
"""By path."""


def address_of(value: int | str) -> Address:
    """The address of a port, `port` or `host:port`; without a host, only this machine can ask."""
    text = str(value)
    host, colon, port = text.rpartition(":")
    bare = ":" in host and not host.startswith("[")
    given = port.isascii() and port.isdecimal() and len(port) <= PORT_DIGITS_MAX
    if isinstance(value, bool) or not given or int(port) > 65535 or (colon and not host) or bare:
        raise InvalidOption(
            f"give a port, as in 8081, or host:port, as in 0.0.0.0:8081 or [::]:8081, not "
            f"{quoted(value)}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def metrics_answers(families: Callable[[], list[Family]]) -> Answers:
    """The path of metrics. Raises `MissingExtra` if they could not be written."""
    told = content_type()

    def answer() -> Answer:
        return Answer(200, told, text_of(families))

    return {"/metrics": answer}


@contextlib.contextmanager
def serving(address: Address, answers: Answers, *, name: str) -> Iterator[Address]:
    """Answer, from a thread, for as long as the block runs. Gives the address, whose port is
    another one if 0 was asked for. Raises `OSError` if nobody can listen there.
    """
    server = Server(address, answers)
    thread = threading.Thread(target=server.serve_forever, name=f"rowmq-{name}", daemon=True)
    thread.start()
    try:
        host, port = server.server_address[:2]
        yield str(host), int(port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Server(ThreadingHTTPServer):
    """Answers what the functions say at the moment."""

    daemon_threads = True

    def __init__(self, address: Address, answers: Answers) -> None:
        self.answers = answers
        self._ends: dict[Any, float] = {}
        """By when each request must be over, by its socket."""
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is room for one more; else they may ask again."""
        if len(self._ends) >= REQUESTS_MAX:
            self.shutdown_request(request)
            return
        self._ends[request] = time.monotonic() + REQUEST_SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It is over, in whatever way: make room."""
        self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Break off what has taken too long; this is called twice a second, and by each request."""
        for request, ends_at in list(self._ends.items()):
            if ends_at <= time.monotonic():
                with contextlib.suppress(OSError):  # it has ended by itself
                    request.shutdown(socket.SHUT_RDWR)


class Request(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = 5.0

    def do_GET(self) -> None:
        answers = self.server.answers
        answer = answers.get(self.path.partition("?")[0])
        if answer is None:
            known = [path for path in answers if len(path) > 1]
            self.send_error(404, f"ask for {' or '.join(known)}")
            return
        status, content_type, body = answer()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - as the base class calls it

    def log_message(self, format: str, *args: Any) -> None:
        """A check every few seconds is nothing to write down."""
