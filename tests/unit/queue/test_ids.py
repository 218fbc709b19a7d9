"""Ids are given once and upwards, whoever asks; a forked child has none of them."""

import threading

from rowmq.queue.ids import Ids
from tests.unit.drivers.test_pool import exit_code, fork


def test_there_are_none_at_first() -> None:
    assert Ids().take(5) == []


def test_ids_are_given_in_order_across_blocks() -> None:
    ids = Ids()
    ids.add(range(10, 13))
    ids.add(range(20, 23))
    assert ids.take(0) == []
    assert ids.take(2) == [10, 11]
    assert ids.take(3) == [12, 20, 21]
    assert ids.take(3) == [22]
    assert ids.take(3) == []


def test_blocks_that_come_out_of_order_are_given_in_order() -> None:
    ids = Ids()
    ids.add(range(20, 22))
    ids.add(range(10, 12))
    assert ids.take(4) == [10, 11, 20, 21]


def test_a_block_that_comes_too_late_is_left_out() -> None:
    """A later job must never have a lower id: jobs of one time are claimed by it."""
    ids = Ids()
    ids.add(range(20, 30))
    assert ids.take(1) == [20]
    ids.add(range(10, 20))
    assert ids.take(20) == list(range(21, 30))


def test_threads_never_share_an_id() -> None:
    ids = Ids()
    ids.add(range(1, 4_001))
    taken: list[list[int]] = [[] for _ in range(8)]

    def take(mine: list[int]) -> None:
        while found := ids.take(3):
            assert found == sorted(found)
            mine += found

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in taken)
    assert sorted(id for mine in taken for id in mine) == list(range(1, 4_001))


def test_a_forked_child_takes_its_own() -> None:
    ids = Ids()
    ids.add(range(10, 20))

    def child() -> None:
        assert ids.take(1) == []

    assert exit_code(fork(child)) == 0
    assert ids.take(1) == [10]
