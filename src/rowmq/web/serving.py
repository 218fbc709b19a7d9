"""Serving a site by itself, with uvicorn: what `rowmq dashboard` does."""

import asyncio
import contextlib
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rowmq.errors import ConfigurationError
from rowmq.quoting import in_line
from rowmq.web.headers import is_loopback
from rowmq.web.site import Site

__all__ = ["Door", "listen", "serve"]

BACKLOG = 512
STOP_SECONDS = 5
IDLE_SECONDS = 15
HEAD_SECONDS = 20

WRITE_SECONDS = 20
WRITE_BYTES_MIN = 64 * 1024
"""How much has to be taken of an answer in that time, if there is so much: a little more than three
thousand bytes a second.
"""

CONNECTIONS_MAX = 1_000
CONNECTIONS_OF_ONE_MAX = 500
"""How many connections there are at all, and from one address: unless that is this machine's, or a
proxy is in front, from which all of them come.
"""


class Door(NamedTuple):
    """How a site is reached: `proxies` are the addresses of proxies whose word is taken for where
    a request comes from.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    proxies: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None

    def url(self, port: int) -> str:
        """Where the site is, for a browser on this machine."""
        scheme = "http" if self.certificate is None else "https"
        host = {"0.0.0.0": "localhost", "::": "localhost"}.get(self.host, self.host)  # noqa: S104
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


def listen(door: Door) -> socket.socket:
    """The socket of a site. Raises `ConfigurationError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in door.host else socket.AF_INET
    try:
        return socket.create_server((door.host, door.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"{in_line(door.host)}:{door.port} cannot be listened on: {error.strerror or error}; "
            f"--port chooses another port, and 0 one that is free"
        ) from error


def serve(site: Site, door: Door, found: socket.socket, started: Callable[[], None]) -> None:
    """Serve a site until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        site,
        http=Patient,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(door.proxies),
        forwarded_allow_ips=list(door.proxies),
        ssl_certfile=door.certificate,
        ssl_keyfile=door.key,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    Server(config, site, started).run(sockets=[found])


class Patient(H11Protocol):
    """Waits for the head of a request for so long, and no longer: who only connects, or sends it
    byte by byte, would keep others out. So would who asks and never reads what is answered: that
    has to be taken at some pace, also after the connection was closed here.
    """

    _late: asyncio.TimerHandle | None = None
    _watch: asyncio.TimerHandle | None = None
    _unread: tuple[Any, int] | None = None
    """The request whose answer was not read yet when it was last looked at, and how much of it."""

    def connection_made(self, transport: Any) -> None:
        """Somebody is here."""
        super().connection_made(transport)
        if self._is_one_too_many:
            transport.abort()
            return
        self._wait()
        self._watch = self.loop.call_later(WRITE_SECONDS, self._see_what_is_read)

    def data_received(self, data: bytes) -> None:
        """A part of a request came."""
        super().data_received(data)
        if self._is_busy:
            self._wait_no_more()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """They are gone."""
        self._wait_no_more()
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_one_too_many(self) -> bool:
        if self.client is None or self.config.proxy_headers or is_loopback(self.client[0]):
            return False
        places = (getattr(other, "client", None) for other in self.connections)
        own = sum(1 for place in places if place is not None and place[0] == self.client[0])
        return own > CONNECTIONS_OF_ONE_MAX

    def _see_what_is_read(self) -> None:
        """Break off if too little was read since the last time, of the same answer."""
        size = self.transport.get_write_buffer_size()
        before, self._unread = self._unread, (self.cycle, size) if size else None
        if size and before is not None and before[0] is self.cycle:
            expected = min(WRITE_BYTES_MIN, before[1] // 2)
            if size > before[1] - expected:
                self._break_off()
                return
        self._watch = self.loop.call_later(WRITE_SECONDS, self._see_what_is_read)

    def _break_off(self) -> None:
        """Let go of what was not read, which the system would go on to offer for minutes."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if not self._is_busy:
            self.transport.close()


class Server(uvicorn.Server):
    """A server that says when it serves, and whose end by a signal is no failure."""

    def __init__(self, config: uvicorn.Config, site: Site, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._site = site
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        if not self.should_exit:
            self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal, and at once at the second. None is raised again at the end."""
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._site.consumers.hush()  # who waits for messages is not waited for
        self.handle_exit(number, frame)


SIGNALS = (signal.SIGINT, signal.SIGTERM)
