"""Being told of writes to files."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rowmq.drivers.file_events import OPEN_MAX, FileEvents
from tests.unit.drivers.test_watching import until

LONG = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "queue ü %.db"
    found.write_bytes(b"")
    return found


@pytest.fixture
def events(path: Path) -> Iterator[FileEvents]:
    with closing(FileEvents([path])) as made:
        yield made


def write(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def test_a_write_is_told_of_once(events: FileEvents, path: Path) -> None:
    assert not events.wait(0)
    write(path)
    assert events.wait(LONG)
    assert not events.wait(0)


def test_many_writes_are_told_of_at_once(events: FileEvents, path: Path) -> None:
    for number in range(3_000):  # more than fit into one read, and of two kinds in turn
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"x", number)
    assert events.wait(LONG)
    assert not events.wait(0)


def test_a_write_ends_the_waiting(events: FileEvents, path: Path) -> None:
    told: list[bool] = []
    waiting = threading.Thread(target=lambda: told.append(events.wait(LONG)))
    waiting.start()
    write(path)
    waiting.join(LONG)
    assert told == [True]


def test_an_interruption_ends_the_waiting_for_good(events: FileEvents) -> None:
    waiting = threading.Thread(target=events.wait, args=(LONG,))
    waiting.start()
    events.interrupt()
    waiting.join(LONG / 2)
    assert not waiting.is_alive()
    began = time.monotonic()
    assert not events.wait(LONG)
    assert time.monotonic() - began < LONG / 2


def test_a_write_to_another_file_is_not_told_of(events: FileEvents, path: Path) -> None:
    write(path.with_name("other"))
    assert not events.wait(0.05)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closing_gives_everything_back(path: Path) -> None:
    before = open_files()
    events = FileEvents([path])
    events.close()
    events.close()
    events.interrupt()  # is late, and hurts nobody
    assert until(lambda: open_files() == before)


def test_a_file_that_is_not_there_is_an_error_that_leaves_nothing_open(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(OSError, match="No such file") as caught:
        FileEvents([tmp_path / "missing"])
    assert caught.value.errno == errno.ENOENT
    assert open_files() == before


def test_a_process_has_only_so_many(path: Path) -> None:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(closing(FileEvents([path]))) for _ in range(OPEN_MAX)]
        with pytest.raises(OSError, match="enough"):
            FileEvents([path])
        made[0].close()
        stack.enter_context(closing(FileEvents([path])))
