"""A network between clients and a server that can be cut, slowed down and stopped.

A thread of its own carries bytes from one side to the other. What was withheld is delivered later,
as a network does it: so a COMMIT may arrive long after whoever sent it has given up.
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


class Proxy:
    """Takes connections on a port of its own, for a server on another one."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self._delay_seconds = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._numbers = itertools.count()
        self._lines: dict[int, tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}
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
        self._loop.call_soon_threadsafe(self._cut)

    @contextlib.contextmanager
    def delaying(self, seconds: float) -> Iterator[None]:
        """Let each piece be under way for up to so long."""
        self._delay_seconds = seconds
        try:
            yield
        finally:
            self._delay_seconds = 0.0

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Let every second connection be silent, also new ones, and then deliver what was said."""
        self._loop.call_soon_threadsafe(self._stall)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._flow)

    # --- in its thread ----------------------------------------------------------------------------

    def _cut(self) -> None:
        for line in self._lines.values():
            for writer in line:
                reset(writer)

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
        number = next(self._numbers)
        try:
            there, back = await asyncio.open_connection(HOST, self.server_port)
        except OSError:
            reset(writer)
            self._tasks.discard(task)
            return
        self._lines[number] = (writer, back)
        try:
            await asyncio.gather(
                self._carry(number, reader, back), self._carry(number, there, writer)
            )
        finally:
            del self._lines[number]
            self._tasks.discard(task)
            for end in (writer, back):
                end.transport.abort()

    async def _carry(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._delay_seconds:
                    await asyncio.sleep(random.uniform(0, self._delay_seconds))
                while number % 2 and self._stalled is not None:
                    await self._stalled.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection as if somebody had pulled the plug, and put it in again."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
