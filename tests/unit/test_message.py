"""Messages are frozen values, and their ids are UUIDs of version 7."""

import ctypes
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rowmq import message
from rowmq.message import Message, PublishResult, new_id, new_ids
from tests.unit.drivers.test_pool import exit_code, fork


def millis_of(id: str) -> int:
    return uuid.UUID(id).int >> 80


def test_an_id_is_a_uuid_of_version_7() -> None:
    for _ in range(1000):
        parsed = uuid.UUID(new_id())
        assert parsed.version == 7
        assert parsed.variant == uuid.RFC_4122


def test_an_id_is_written_as_uuids_are() -> None:
    id = new_id()
    assert id == str(uuid.UUID(id))
    assert len(id) == 36


def test_an_id_begins_with_the_millisecond_it_was_made_in() -> None:
    before = time.time_ns() // 1_000_000
    made = millis_of(new_id())
    assert before <= made <= time.time_ns() // 1_000_000


def test_ids_of_later_milliseconds_sort_later() -> None:
    ids = [new_id() for _ in range(20_000)]
    firsts = {millis_of(id): id for id in reversed(ids)}
    by_time = [firsts[millis] for millis in sorted(firsts)]
    assert len(by_time) > 1
    assert by_time == sorted(by_time)


def test_ids_of_many_threads_are_unique() -> None:
    def make(_: int) -> list[str]:
        return [new_id() for _ in range(2_000)]

    with ThreadPoolExecutor(8) as threads:
        ids = [id for made in threads.map(make, range(8)) for id in made]
    assert len(set(ids)) == len(ids) == 16_000


def test_ids_made_together_are_uuids_in_rising_order() -> None:
    ids = new_ids(5_000)
    assert ids == sorted(set(ids))
    assert len(ids) == 5_000
    assert {uuid.UUID(id).version for id in ids} == {7}
    assert all(id == str(uuid.UUID(id)) for id in ids)
    assert new_ids(0) == []


@pytest.mark.parametrize("told", [True, False])
def test_a_child_makes_ids_of_its_own(told: bool) -> None:
    while not message._spare_tails[os.getpid()]:  # that was the last one
        new_id()
    here, there = os.pipe()

    def work() -> None:
        os.write(there, "\n".join(new_id()[15:] for _ in range(50)).encode())

    assert exit_code(fork(work, by=os.fork if told else fork_unheard)) == 0
    ours = {new_id()[15:] for _ in range(150)}
    theirs = set(os.read(here, 10_000).decode().split())
    os.close(here)
    os.close(there)
    assert len(theirs) == 50
    assert not ours & theirs


def fork_unheard() -> int:
    """Fork as a server does that is written in C, and has an interpreter inside: without a word to
    Python, which calls none of what is registered for it.
    """
    return int(ctypes.PyDLL(None).fork())


def test_every_random_bit_of_an_id_is_used() -> None:
    ids = [uuid.UUID(new_id()).int for _ in range(200)]
    random_bits = (1 << 76) - 1 & ~(0b11 << 62)
    seen_one = seen_zero = 0
    for value in ids:
        seen_one |= value
        seen_zero |= ~value
    assert seen_one & random_bits == random_bits
    assert seen_zero & random_bits == random_bits


@pytest.mark.parametrize(
    "value",
    [
        Message(payload=1),
        PublishResult(topic="t", key=None, id="x", offset=1, duplicate=False),
    ],
)
def test_values_are_frozen(value: Any) -> None:
    with pytest.raises(AttributeError):
        value.id = "other"


def test_messages_do_not_share_their_headers() -> None:
    assert Message(payload=1).headers == {}
    assert Message(payload=1).headers is not Message(payload=2).headers
