"""Signs that a fault has hit somebody are there if it has, and else not."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.cast import until
from tests.chaos.proxy import HOST, LOSS_OF_COMMITS, Proxy
from tests.chaos.record import Trouble
from tests.chaos.signs import in_the_middle, takeovers, troubles
from tests.simulation.history import (
    Claimed,
    Delivered,
    Event,
    JobSettled,
    Outcome,
    Partition,
    Place,
    Put,
    Settled,
)

PLACE = Place("ledger", Partition("orders", "a"))
OK, UNKNOWN = Outcome.OK, Outcome.UNKNOWN


def delivered(actor: str, at: int, epoch: int = 1) -> Delivered:
    return Delivered(
        actor=actor, began=at, ended=at, place=PLACE, offset=at, mark=f"m{at}", epoch=epoch
    )


def settled(delivery: Delivered, **how: Any) -> Settled:
    which: dict[str, Any] = {"place": PLACE, "offset": delivery.offset, "epoch": delivery.epoch}
    return Settled(actor=delivery.actor, began=9, kind="ack", **{"outcome": OK} | which | how)


def test_who_dies_during_a_call_is_in_the_middle() -> None:
    put = Put(actor="publisher-1", began=1, queue="mail", mark="j1", outcome=UNKNOWN)
    assert in_the_middle([put])
    answered = Put(actor="publisher-1", began=1, ended=2, queue="mail", mark="j1", outcome=OK)
    assert not in_the_middle([answered])


def test_who_dies_with_something_in_hand_is_in_the_middle() -> None:
    message = delivered("consumer-1", 1)
    assert in_the_middle([message])
    assert in_the_middle([message, settled(message)])  # not answered yet
    assert not in_the_middle([message, settled(message, ended=10)])
    which: dict[str, Any] = {"actor": "worker-1", "queue": "mail", "job": 1, "token": 1}
    job = Claimed(began=1, ended=2, mark="j1", now=1, until=9, **which)
    assert in_the_middle([job])
    # Nobody tells a handler what came of its settle: that has no end.
    assert not in_the_middle([job, JobSettled(began=3, kind="ack", outcome=UNKNOWN, **which)])


def test_what_others_are_given_while_an_owner_stands_still_is_taken_over() -> None:
    before = delivered("worker-1", 1)
    told: list[Event] = [before, delivered("worker-1", 2)]
    assert takeovers(told, {"worker-1"}, began=5) == 0
    assert takeovers([*told, delivered("worker-1", 6)], {"worker-1"}, began=5) == 0  # as before
    later = [*told, delivered("worker-2", 6, epoch=2)]
    assert takeovers(later, {"worker-1"}, began=5) == 1
    assert takeovers(later, {"worker-3"}, began=5) == 0  # who had nothing
    assert takeovers(later, {"worker-1"}, began=7) == 0  # that was before


def test_troubles_are_those_of_a_time_and_of_a_kind() -> None:
    told = [Trouble(actor="p", began=at, ended=at, error="the disk is full") for at in (1, 2, 3)]
    assert troubles(told, "disk", since=2) == 2
    assert troubles(told, "no connection", since=2) == 0


# --- the network ----------------------------------------------------------------------------------


class Echo:
    """A server that answers `ask` with a COMMIT's answer and falls silent at anything else."""

    def __init__(self) -> None:
        self.listening = socket.create_server((HOST, 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        # Those who call are cut off.
        with connection, contextlib.suppress(ConnectionError):
            while said := connection.recv(100):
                if said == b"ask":
                    connection.sendall(b"C\0\0\0\x0bCOMMIT\0")
                elif said == b"end":
                    return


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = Echo()
    with server.listening, Proxy(server.port) as proxy:
        yield proxy


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=30)


def ask(client: socket.socket) -> bytes:
    client.sendall(b"ask")
    return client.recv(100)


def is_cut(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_cut_hits_those_who_wait_for_an_answer(proxy: Proxy) -> None:
    with dial(proxy) as idle, dial(proxy) as waiting:
        assert ask(idle)
        waiting.sendall(b"never answered")
        until(lambda: any(line.waits for line in proxy._lines), "the server was asked")
        proxy.cut()
        assert is_cut(idle)
        assert is_cut(waiting)
    assert proxy.interrupted == 1


def test_a_server_that_ends_hits_those_who_wait_for_an_answer(proxy: Proxy) -> None:
    with dial(proxy) as waiting, dial(proxy) as leaving:
        waiting.sendall(b"end")
        assert is_cut(waiting)
        leaving.sendall(struct.pack("!cI", b"X", 4))
        leaving.shutdown(socket.SHUT_WR)
        assert is_cut(leaving)
    assert proxy.interrupted == 1


def test_answers_to_commits_get_lost_and_are_counted(proxy: Proxy) -> None:
    lost = 0
    with proxy.losing():
        for _ in range(round(100 / LOSS_OF_COMMITS)):
            with dial(proxy) as client:
                client.sendall(b"ask")
                lost += is_cut(client)
            if lost:
                break
    assert proxy.lost_commits == lost == 1
    with dial(proxy) as client:
        assert all(ask(client).endswith(b"COMMIT\0") for _ in range(100))
