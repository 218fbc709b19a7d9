"""Sync handlers run in threads of their own, which neither a loop nor a process waits for."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator

import pytest

from rowmq.worker.threads import Threads

name = contextvars.ContextVar("name", default="nobody")


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(3, "test-threads")
    yield made
    made.close()


async def test_results_and_errors_come_back(threads: Threads) -> None:
    assert await threads.call(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await threads.call(lambda: 1 / 0)


async def test_an_error_that_no_future_takes_comes_back_as_another(threads: Threads) -> None:
    def stop() -> None:
        raise StopIteration("over")

    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(stop)


async def test_there_are_never_more_than_allowed(threads: Threads) -> None:
    running, most, lock = set[int](), [0], threading.Lock()
    full, release = threading.Event(), threading.Event()

    def work() -> int:
        with lock:
            running.add(threading.get_ident())
            most[0] = max(most[0], len(running))
            if len(running) == 3:
                full.set()
        release.wait(5)
        with lock:
            running.discard(threading.get_ident())
        return threading.get_ident()

    calls = [threads.call(work) for _ in range(9)]
    assert await asyncio.to_thread(full.wait, 5)
    release.set()
    assert len(set(await asyncio.gather(*calls))) <= 3
    assert most[0] == 3


async def test_a_thread_is_used_again(threads: Threads) -> None:
    used = {await threads.call(threading.get_ident) for _ in range(10)}
    assert len(used) == 1


async def test_the_callers_context_goes_with_it(threads: Threads) -> None:
    name.set("somebody")
    assert await threads.call(name.get) == "somebody"
    await threads.call(lambda: name.set("another"))
    assert name.get() == "somebody"


async def test_they_end_when_they_are_done_after_a_close() -> None:
    threads = Threads(2, "ending")
    release = threading.Event()
    call = threads.call(lambda: release.wait(5))
    threads.close()
    release.set()
    assert await call is True
    deadline = time.monotonic() + 5
    while any(t.name.startswith("ending") for t in threading.enumerate()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def test_they_keep_no_process_alive(threads: Threads) -> None:
    assert await threads.call(lambda: threading.current_thread().daemon)


def test_a_result_for_a_loop_that_is_closed_is_dropped(threads: Threads) -> None:
    release, ended = threading.Event(), threading.Event()

    def work() -> None:
        release.wait(5)
        ended.set()

    async def begin() -> None:
        threads.call(work)

    asyncio.run(begin())
    release.set()
    assert ended.wait(5)
