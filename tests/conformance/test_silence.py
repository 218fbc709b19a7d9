"""A server that goes silent is noticed by the system, on connections of all drivers."""

import os
import socket
import stat
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.choices import on_servers
from tests.conftest import Connect
from tests.databases import Database

OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
]


def connections_to(url: str) -> dict[int, list[int]]:
    """This process's connections to a server, by the ports they come from, and their options:
    as the system has them, whatever driver they belong to.
    """
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names are all there is to it
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connected:
                if connected.family == socket.AF_INET:
                    port = connected.getsockname()[1]
                    if connected.getpeername()[1] == urlsplit(url).port:
                        found[port] = [connected.getsockopt(*option) for option in OPTIONS]
    return found


async def opened(connect: Connect, url: str) -> list[list[int]]:
    """The options of the connections that a client opens."""
    before = connections_to(url)
    mq = await connect(url)
    await mq.publish("t", 1)
    after = connections_to(url)
    return [after[port] for port in after.keys() - before.keys()]


@on_servers
async def test_the_system_looks_whether_the_server_is_there(
    connect: Connect, database: Database
) -> None:
    found = await opened(connect, database.url)
    assert found
    assert all(options == [1, 15, 5, 3, 30_000] for options in found)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_what_the_url_says_holds(connect: Connect, database: Database) -> None:
    found = await opened(connect, f"{database.url}?keepalives_idle=60&tcp_user_timeout=90000")
    assert found
    for alive, idle, interval, count, unanswered in found:
        assert (alive, idle, unanswered) == (1, 60, 90_000)
        assert (interval, count) != (5, 3)  # the system's own


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_the_url_may_turn_it_off(connect: Connect, database: Database) -> None:
    found = await opened(connect, f"{database.url}?keepalives=0")
    assert found
    for alive, *_, unanswered in found:
        assert (alive, unanswered) == (0, 0)
