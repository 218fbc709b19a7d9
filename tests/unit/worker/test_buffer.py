"""What was fetched is begun in order: one at a time of each key, and nothing is forgotten."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.worker.buffer import Buffer


class Piece:
    """As much of a unit as a buffer looks at."""

    def __init__(self, order: str | None, number: int) -> None:
        self.order = order
        self.number = number

    def __repr__(self) -> str:
        return f"{self.order}{self.number}"


def pieces(orders: str) -> list[Any]:
    """One for each letter; a dash is one without an order."""
    return [Piece(None if c == "-" else c, number) for number, c in enumerate(orders)]


async def taken(buffer: Buffer) -> list[Any]:
    """All that can be begun at once."""
    return [await buffer.take() for _ in range(buffer.ready)]


async def test_what_has_no_order_is_begun_at_once() -> None:
    buffer, units = Buffer(), pieces("----")
    buffer.put(units)
    assert buffer.ready == 4
    assert await taken(buffer) == units
    assert buffer.ready == 0


async def test_of_one_key_the_next_waits_for_the_one_before() -> None:
    buffer, units = Buffer(), pieces("aaab")
    a0, a1, a2, b3 = units
    buffer.put(units)
    assert await taken(buffer) == [a0, b3]
    buffer.done(b3)
    assert buffer.ready == 0
    buffer.done(a0)
    assert await taken(buffer) == [a1]
    buffer.done(a1)
    assert await taken(buffer) == [a2]


async def test_what_is_put_later_waits_behind_what_is_at_work() -> None:
    buffer, (first, second) = Buffer(), pieces("aa")
    buffer.put([first])
    assert await taken(buffer) == [first]
    buffer.put([second])
    assert buffer.ready == 0
    buffer.done(first)
    assert await taken(buffer) == [second]


async def test_a_key_whose_units_are_all_done_is_forgotten() -> None:
    buffer = Buffer()
    for unit in pieces("abcabc"):
        buffer.put([unit])
    while buffer.ready:
        for unit in await taken(buffer):
            buffer.done(unit)
    assert buffer._parked == {}


async def test_who_waits_is_given_what_comes() -> None:
    buffer, (unit,) = Buffer(), pieces("a")
    waiting = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.put([unit])
    assert await waiting is unit


async def test_closing_takes_out_what_was_not_begun_and_tells_all_takers() -> None:
    buffer, units = Buffer(), pieces("aa-b-bb")
    buffer.put(units)
    begun = await buffer.take()
    assert begun is units[0]
    left: list[Any] = [*buffer.close()]
    assert sorted(unit.number for unit in left) == [1, 2, 3, 4, 5, 6]
    assert [await buffer.take() for _ in range(3)] == [None] * 3


async def test_what_is_closed_begins_nothing_more() -> None:
    buffer, units = Buffer(), pieces("aa")
    buffer.put(units)
    begun = await buffer.take()
    assert begun is not None
    assert buffer.close() == [units[1]]
    buffer.done(begun)
    assert await buffer.take() is None


async def test_a_taker_that_was_woken_and_comes_too_late_gets_nothing() -> None:
    """Between a put and the taker's turn the buffer is closed: the unit is given back, not both."""
    buffer, (unit,) = Buffer(), pieces("-")
    waiting = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    buffer.put([unit])
    assert buffer.close() == [unit]
    assert await waiting is None


async def test_closing_twice_gives_nothing_back_twice() -> None:
    buffer = Buffer()
    buffer.put(pieces("a-a"))
    assert len(buffer.close()) == 3
    assert buffer.close() == []


@given(st.data())
def test_nothing_is_lost_doubled_or_out_of_order(data: st.DataObject) -> None:
    """Whatever is put, taken, done and closed, and when."""
    asyncio.run(run_any_course(data))


async def run_any_course(data: st.DataObject) -> None:
    buffer = Buffer()
    put: list[Any] = []
    begun: list[Any] = []
    at_work: list[Any] = []
    for _ in range(data.draw(st.integers(0, 30))):
        act = data.draw(st.sampled_from(["put", "take", "done"]))
        if act == "put":
            batch = data.draw(st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=5))
            units: list[Any] = [Piece(order, len(put) + n) for n, order in enumerate(batch)]
            put += units
            buffer.put(units)
        elif act == "take" and buffer.ready:
            unit = await buffer.take()
            begun.append(unit)
            at_work.append(unit)
            orders = [other.order for other in at_work if other.order is not None]
            assert len(orders) == len(set(orders)), "two of one key at the same time"
        elif act == "done" and at_work:
            buffer.done(at_work.pop(data.draw(st.integers(0, len(at_work) - 1))))
    by_order: dict[str, list[int]] = defaultdict(list)
    for unit in begun:
        if unit.order is not None:
            by_order[unit.order].append(unit.number)
    assert all(numbers == sorted(numbers) for numbers in by_order.values())
    left = buffer.close()
    assert sorted(u.number for u in [*begun, *left]) == list(range(len(put)))


@pytest.mark.parametrize("count", [1, 7])
async def test_what_is_ready_is_counted_and_what_waits_for_its_turn_is_not(count: int) -> None:
    buffer = Buffer()
    buffer.put(pieces("a" * count + "-" * count))
    assert buffer.ready == 1 + count
