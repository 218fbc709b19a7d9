"""The plan of a replay, as it is kept in a lake."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rowmq.spark.pipelines.replaying.plan import Plan, find_plan, keep_plan
from rowmq.spark.pipelines.replaying.selection import Border, Selection
from rowmq.spark.pipelines.storage import Lake, lake_of

RACES = 15


def plan_of(chunk: int, *, table: str = "one") -> Plan:
    borders = tuple(Border(end, 1, 1) for end in range(chunk, 13, chunk))
    return Plan(Selection(topics=("a",), to_topic="b"), 1, 12, chunk, borders, table)


def keep_at_once(lake: Lake, id: str, start: threading.Barrier, chunk: int) -> Plan:
    start.wait(10)
    return keep_plan(lake, id, plan_of(chunk))


def test_of_two_who_keep_a_plan_at_once_both_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        for race in range(RACES):
            lake = lake_of(tmp_path / str(race % 5))  # that has no table of plans yet, or has one
            keep = partial(keep_at_once, lake, f"{race}", threading.Barrier(2))
            first, second = threads.map(keep, (2, 3))
            assert first == second == find_plan(lake, f"{race}")


def test_a_plan_is_found_by_its_number(tmp_path: Path) -> None:
    lake, plan = lake_of(tmp_path), plan_of(4)
    assert find_plan(lake, "x") is None
    keep_plan(lake, "x", plan)
    assert find_plan(lake, "x") == find_plan(lake, "x", plan.number) == plan
    assert find_plan(lake, "x", plan_of(3).number) is None
    assert find_plan(lake, "y", plan.number) is None


def test_the_number_of_a_plan_tells_it_from_others_and_goes_into_a_bigint() -> None:
    plans = [plan_of(chunk, table=table) for chunk in range(1, 13) for table in ("one", "two")]
    numbers = {plan.number for plan in plans}
    assert len(numbers) == len(plans)
    assert all(0 <= number < 2**62 for number in numbers)
    # Those that are kept in lakes and ledgers must be found again.
    assert plan_of(4).number == 1084844813014623585


def test_the_rows_of_all_chunks_are_those_of_the_plan() -> None:
    plan = plan_of(5)
    assert [plan.rows_in(number) for number in range(3)] == [5, 5, 2]
