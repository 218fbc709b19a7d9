"""Connections on which nothing comes, or not enough of it, are not kept."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from rowmq.errors import ConfigurationError
from rowmq.web import serving
from rowmq.web.serving import Door, Patient, listen
from tests.consuming import eventually

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
SECONDS = 0.1
LENGTH = [(b"content-length", b"4")]


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """The port of an application that takes its time."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await asyncio.sleep(2 * SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": LENGTH})
        await send({"type": "http.response.body", "body": b"fine"})

    config = uvicorn.Config(app, http=Patient, lifespan="off", ws="none", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Patient(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("parts", "is_answered"),
    [
        ([b""], False),
        ([b"GET"], False),
        ([HEAD], False),
        ([HEAD, b"X: y\r\n"], False),
        ([HEAD, b"\r\n"], True),
        ([HEAD + b"\r\n" + HEAD], True),  # and then another one, which does not end
    ],
)
async def test_who_does_not_finish_asking_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, parts: list[bytes], is_answered: bool
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", SECONDS)
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(SECONDS / 4)
        if is_answered:
            assert b"fine" in await reader.readuntil(b"fine")
            writer.write(b"GET")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


# --- who does not read ----------------------------------------------------------------------------

LARGE = 32 * 1024 * 1024
"""More than all buffers on the way hold."""


@asynccontextmanager
async def large(size: int = LARGE, **options: Any) -> AsyncIterator[tuple[int, ServerState]]:
    """The port of an application that answers much, and who is connected."""

    async def app(_: Any, __: Any, send: Any) -> None:
        length = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"x" * size})

    config = uvicorn.Config(
        app, http=Patient, lifespan="off", ws="none", log_config=None, **options
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Patient(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        yield server.sockets[0].getsockname()[1], state


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_who_does_not_read_what_is_answered_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    monkeypatch.setattr(serving, "WRITE_SECONDS", SECONDS)
    async with large(timeout_keep_alive=1) as (port, state):
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall((HEAD + more + b"\r\n") * 3)
            await eventually(lambda: len(state.connections) == 1)
            await eventually(lambda: not state.connections)


async def test_who_reads_slowly_gets_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "WRITE_SECONDS", SECONDS)
    async with large() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(SECONDS / 2)
            assert len(await reader.readexactly(LARGE // 8)) == LARGE // 8
        writer.close()


@pytest.mark.parametrize(("has_proxy", "allowed"), [(False, 2), (True, 3)])
async def test_one_address_does_not_take_all_connections(
    monkeypatch: pytest.MonkeyPatch, *, has_proxy: bool, allowed: int
) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_OF_ONE_MAX", 2)
    monkeypatch.setattr(serving, "is_loopback", lambda _: False)
    async with large(4, proxy_headers=has_proxy) as (port, _):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        answers = 0
        for reader, writer in opened:
            with contextlib.suppress(ConnectionError):
                writer.write(HEAD + b"Connection: close\r\n\r\n")
                answers += b"xxxx" in await reader.read()
            writer.close()
        assert answers == allowed


def test_where_it_is_and_what_it_listens_on() -> None:
    assert Door().url(8080) == "http://127.0.0.1:8080/"
    assert Door(host="0.0.0.0", certificate="x").url(1) == "https://localhost:1/"  # noqa: S104
    assert Door(host="::1").url(1) == "http://[::1]:1/"
    with listen(Door(port=0)) as found:
        port = found.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f":{port} cannot be listened on"):
            listen(Door(port=port))
    with pytest.raises(ConfigurationError, match="cannot be listened on"):
        listen(Door(host="no.such.host.invalid", port=0))
