"""The small HTTP server of a worker."""

import asyncio
import contextlib
import itertools
import socket
import urllib.error
import urllib.request

import pytest

from rowmq import App
from rowmq.errors import ConfigurationError, InvalidOption
from rowmq.worker import serving as serving_module
from rowmq.worker.serving import Answer, address_of, serving


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (9464, ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),  # noqa: S104 - as somebody asks for
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_without_a_host_it_is_this_machine(given: int | str, expected: tuple[str, int]) -> None:
    assert address_of(given) == expected


@pytest.mark.parametrize(
    "given", ["", "x", ":1", "::1:80", "65536", "1" * 5000, "٣", -1, True, 1.5]
)
def test_what_is_no_address_is_refused(given: int | str) -> None:
    with pytest.raises(InvalidOption, match=r"as in 0\.0\.0\.0:8081"):
        address_of(given)


def test_it_answers_what_the_functions_say_at_the_moment() -> None:
    said = iter([b"one", b"two", b"three"])
    answers = {"/metrics": lambda: Answer(200, "text/plain", next(said))}
    with serving(("127.0.0.1", 0), answers, name="test") as (host, port):
        url = f"http://{host}:{port}/metrics"
        for expected in (b"one", b"two"):
            with urllib.request.urlopen(url, timeout=5) as answer:
                assert answer.read() == expected
                assert answer.headers["Content-Type"] == "text/plain"
                assert answer.headers["Cache-Control"] == "no-store"
        head = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(head, timeout=5) as answer:  # noqa: S310 - our own
            assert answer.read() == b""
            assert answer.headers["Content-Length"] == "5"
        with pytest.raises(urllib.error.HTTPError, match="ask for /metrics") as refused:
            urllib.request.urlopen(f"http://{host}:{port}/other", timeout=5)
        refused.value.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)


def test_who_does_not_finish_asking_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "REQUEST_SECONDS", 0.2)
    with (
        serving(("127.0.0.1", 0), {}, name="test") as place,
        socket.create_connection(place, timeout=10) as slow,
    ):
        slow.settimeout(0.05)
        for letter in itertools.repeat(b"x"):  # as long as it is let, and never silent
            try:
                slow.sendall(letter)
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break


def test_not_more_ask_at_once_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "REQUESTS_MAX", 2)
    with serving(("127.0.0.1", 0), {}, name="test") as place, contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(place)) for _ in range(2)]
        for silent in opened:
            silent.sendall(b"GET")
        with socket.create_connection(place, timeout=10) as third:
            assert third.recv(1) == b""
        for silent in opened:
            silent.sendall(b" / HTTP/1.0\r\n\r\n")
            assert silent.recv(4) == b"HTTP"


async def test_an_app_serves_its_metrics_while_it_runs() -> None:
    with serving(("127.0.0.1", 0), {}, name="test") as (_, port):
        taken = App("sqlite://", metrics=port)
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with taken:
                pass
    assert taken.metrics_address == ("127.0.0.1", port)
    async with taken:
        assert b"rowmq_worker_healthy" in await fetched(port)
    with pytest.raises(OSError, match="refused"):
        await fetched(port)
    taken.configure(metrics=False)
    assert taken.metrics_address is None


async def fetched(port: int) -> bytes:
    def fetch() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            body: bytes = answer.read()
            return body

    return await asyncio.to_thread(fetch)
