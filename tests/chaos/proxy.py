"""A network between clients and a server that can be cut, slowed down and stopped.

A thread of its own carries bytes from one side to the other. What was withheld is delivered later,
as a network does it: so a COMMIT may arrive long after whoever sent it has given up. It counts whom
it has hit: a connection on which nobody waits for anything can be cut without any harm.
"""

import asyncio
import contextlib
import itertools
import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Self

__all__ = ["HOST", "Proxy"]

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536
RESET = struct.pack("ii", 1, 0)

FAREWELLS = (b"X\x00\x00\x00\x04", b"\x01\x00\x00\x00\x01")
"""What a client of PostgreSQL, or of MySQL, says at the end: it waits for no answer."""

LAST_WORDS = (b"57P01", b"Server shutdown in progress", b"Connection was killed")
"""What a server may say that ends: it is no answer to what was asked."""

COMMIT, COMMITTED = (b"COMMIT", b"COMMIT\x00"), b"COMMIT\x00"
"""How it ends that is asked for, mostly; and how PostgreSQL says that it is done."""

AT_REST = b"Z\x00\x00\x00\x05I"
"""The end of an answer of PostgreSQL's after which no transaction is open."""

LOSS_OF_COMMITS, LOSS = 0.1, 0.005
"""Which part of the answers is lost, to COMMITs and to others."""


class Line:
    """A connection of a client, and the one to the server behind it."""

    def __init__(
        self, number: int, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self.number = number
        self.client = client
        self.server = server
        self.waits = False
        """Whether the client waits for an answer."""
        self.commits = False
        """Whether what it waits for is a COMMIT."""

    def ask(self, data: bytes) -> None:
        """The client says something."""
        self.waits = data not in FAREWELLS
        self.commits = data.endswith(COMMIT)

    def reset(self) -> None:
        self.waits = False
        for writer in (self.client, self.server):
            reset(writer)


class Proxy:
    """Takes connections on a port of its own, for a server on another one."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self.interrupted = 0
        """How many connections have ended while a client waited for an answer."""
        self.lost_commits = 0
        """How many transactions were committed, and nobody was told."""
        self.delayed = 0
        """How many pieces were under way for longer than usual."""
        self.silences: list[float] = []
        """For how long pieces were withheld."""
        self._delay_seconds = 0.0
        self._losing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._numbers = itertools.count()
        self._lines: set[Line] = set()
        self._stalled: asyncio.Event | None = None
        """While half of the connections are silent: set once they speak again."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._connected, HOST, 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- what goes wrong --------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset all connections."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    @contextlib.contextmanager
    def delaying(self, seconds: float) -> Iterator[None]:
        """Let each piece be under way for up to so long."""
        self._delay_seconds = seconds
        try:
            yield
        finally:
            self._delay_seconds = 0.0

    @contextlib.contextmanager
    def losing(self) -> Iterator[None]:
        """Reset some connections when the server has done what it was asked for, and before it can
        say so: most often after a COMMIT.
        """
        self._losing = True
        try:
            yield
        finally:
            self._losing = False

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Let every second connection be silent, also new ones, and then deliver what was said."""
        self._loop.call_soon_threadsafe(self._stall)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flow)

    # --- in its thread ----------------------------------------------------------------------------

    async def _cut(self) -> None:
        for line in self._lines:
            self.interrupted += line.waits
            line.reset()

    def _stall(self) -> None:
        self._stalled = self._stalled or asyncio.Event()

    def _flow(self) -> None:
        if self._stalled is not None:
            self._stalled.set()
            self._stalled = None

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there, back = await asyncio.open_connection(HOST, self.server_port)
        except OSError:
            reset(writer)
            self._tasks.discard(task)
            return
        line = Line(next(self._numbers), writer, back)
        self._lines.add(line)
        try:
            await asyncio.gather(self._ask(line, reader), self._answer(line, there))
        finally:
            self._lines.discard(line)
            self._tasks.discard(task)
            for end in (writer, back):
                end.transport.abort()

    async def _ask(self, line: Line, reader: asyncio.StreamReader) -> None:
        """Carry what the client says."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                line.ask(data)
                await self._carry(line, data, line.server)
        line.waits = False  # it is gone, or thinks so
        line.server.close()

    async def _answer(self, line: Line, reader: asyncio.StreamReader) -> None:
        """Carry what the server says."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._loses(line, data):
                    line.reset()
                    break
                self.interrupted += line.waits and any(words in data for words in LAST_WORDS)
                line.waits = False
                await self._carry(line, data, line.client)
        self.interrupted += line.waits
        line.client.close()

    def _loses(self, line: Line, data: bytes) -> bool:
        """Whether an answer gets lost."""
        if not self._losing or not line.waits:
            return False
        committed = line.commits or COMMITTED in data
        likely = committed or data.endswith(AT_REST)
        if random.random() > (LOSS_OF_COMMITS if likely else LOSS):
            return False
        self.lost_commits += committed
        return True

    async def _carry(self, line: Line, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self._delay_seconds:
            self.delayed += 1
            await asyncio.sleep(random.uniform(0, self._delay_seconds))
        while line.number % 2 and self._stalled is not None:
            began = self._loop.time()
            await self._stalled.wait()
            self.silences.append(self._loop.time() - began)
        writer.write(data)
        await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection as if somebody had pulled the plug, and put it in again."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
