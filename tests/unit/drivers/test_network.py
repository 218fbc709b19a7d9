"""What the system is asked to notice, where it can, and that asking never fails."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest

from rowmq.drivers.network import PATIENCE, expect_signs, expect_signs_of, socket_of
from rowmq.drivers.postgres import patience_of

TCP = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


@pytest.fixture
def connected() -> Iterator[socket.socket]:
    """A TCP connection, with nothing asked for."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        yield client


def asked(connected: socket.socket) -> dict[str, int]:
    return {
        "SO_KEEPALIVE": connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        **{name: connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in TCP},
    }


def test_the_system_looks_whether_the_other_end_is_there(connected: socket.socket) -> None:
    expect_signs(connected)
    assert list(asked(connected).values()) == [1, 15, 5, 3, 30_000]


def test_a_socket_that_a_library_keeps_stays_open_and_its_own(connected: socket.socket) -> None:
    connected.settimeout(5)  # so it does not block, as libpq's
    expect_signs_of(connected.fileno())
    assert list(asked(connected).values()) == [1, 15, 5, 3, 30_000]
    connected.sendall(b"it can still be written to")


def test_patience_may_be_another(connected: socket.socket) -> None:
    before = asked(connected)
    expect_signs(connected, {"keepalives": 0, "keepalives_idle": 40, "keepalives_count": 10**6})
    assert asked(connected) == before | {"TCP_KEEPIDLE": 40}


def test_sockets_of_this_machine_are_left_alone() -> None:
    near, far = socket.socketpair()
    with near, far:
        expect_signs(near)
        expect_signs_of(near.fileno())
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


@pytest.mark.parametrize("missing", [*TCP, "SO_KEEPALIVE"])
def test_an_option_that_the_system_does_not_have_is_left_out(
    connected: socket.socket, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    before = asked(connected)
    with monkeypatch.context() as patched:
        patched.delattr(socket, missing)
        expect_signs(connected)
    after = asked(connected)
    assert {name for name in after if after[name] == before[name]} == {missing}


def test_another_system_spells_an_option_differently(
    connected: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(socket, "TCP_KEEPALIVE", socket.TCP_KEEPIDLE, raising=False)
        patched.delattr(socket, "TCP_KEEPIDLE")
        expect_signs(connected)
    assert asked(connected)["TCP_KEEPIDLE"] == 15


@pytest.mark.parametrize("name", ["_transport", "_writer"])
async def test_a_socket_is_found_behind_a_transport_or_a_stream(
    connected: socket.socket, name: str
) -> None:
    _, writer = await asyncio.open_connection(sock=connected)
    driver = SimpleNamespace(**{name: writer.transport if name == "_transport" else writer})
    expect_signs(socket_of(driver))
    assert list(asked(connected).values()) == [1, 15, 5, 3, 30_000]
    writer.close()


def test_asking_never_fails() -> None:
    expect_signs(socket_of(object()))
    expect_signs_of(-1)
    with closing(socket.socket()) as unconnected:
        expect_signs(unconnected)
    expect_signs(unconnected)  # which is closed by now
    with open("/dev/null", "rb") as file:  # noqa: PTH123 - any descriptor that is no socket
        expect_signs_of(file.fileno())


@pytest.mark.parametrize(
    ("query", "patience"),
    [
        ("", PATIENCE),
        ("?sslmode=prefer&connect_timeout=3", PATIENCE),
        ("?keepalives=0", {"keepalives": 0}),
        ("?keepalives_idle=60", {"keepalives": 1, "keepalives_idle": 60}),
        ("?keepalives_idle=60&keepalives=0", {"keepalives": 0, "keepalives_idle": 60}),
        ("?tcp_user_timeout=5000", {"keepalives": 1, "tcp_user_timeout": 5000}),
        ("?tcp_user_timeout=soon", {"keepalives": 1}),
        (f"?tcp_user_timeout={'9' * 5000}", {"keepalives": 1}),
    ],
)
def test_what_a_url_says_of_it_holds(query: str, patience: dict[str, int]) -> None:
    assert patience_of(f"postgresql://user:password@host/database{query}") == patience
