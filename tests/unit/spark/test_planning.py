"""How offsets are shared out: nothing twice, nothing left out, limits kept, nobody starved."""

from hypothesis import given
from hypothesis import strategies as st

from rowmq.spark.source.planning import Range, cut_bytes, cut_offsets, share_out

sizes = st.lists(st.integers(0, 500), max_size=30)


def ranges_of(counts: list[int]) -> list[Range]:
    return [
        Range("orders", f"k{number}", number, 10, 10 + count, 100)
        for number, count in enumerate(counts)
    ]


def offsets(ranges: list[Range]) -> list[tuple[int, int]]:
    return [(one.partition_id, offset) for one in ranges for offset in range(one.first, one.end)]


@given(sizes, st.integers(1, 2000))
def test_a_limit_is_used_up_and_never_passed(counts: list[int], limit: int) -> None:
    cut = cut_offsets(ranges_of(counts), limit)
    assert sum(one.size for one in cut) == min(limit, sum(counts))
    assert all(one.first == 10 for one in cut)


@given(sizes, st.integers(30, 2000))
def test_who_wants_less_than_a_fair_share_gets_all(counts: list[int], limit: int) -> None:
    taken = {one.partition_id: one.size for one in cut_offsets(ranges_of(counts), limit)}
    for number, count in enumerate(counts):
        if count <= limit // max(1, len(counts)):
            assert taken.get(number, 0) == count


@given(sizes, st.integers(1, 60), st.integers(1, 400))
def test_tasks_have_every_offset_once(counts: list[int], wanted: int, most: int) -> None:
    ranges = ranges_of(counts)
    tasks = share_out(ranges, partitions_min=wanted, cores=2, records_max=most)
    shared = [one for task in tasks for one in task]
    assert offsets(shared) == offsets(ranges)
    assert all(sum(one.size for one in task) <= most for task in tasks)
    assert all(task for task in tasks)
    assert len(tasks) >= min(wanted, sum(counts))


def test_few_messages_are_one_task_unless_more_are_asked_for() -> None:
    ranges = ranges_of([100, 100])
    assert len(share_out(ranges, partitions_min=None, cores=16, records_max=10**6)) == 1
    assert len(share_out(ranges, partitions_min=5, cores=16, records_max=10**6)) == 5
    many = ranges_of([100_000])
    assert len(share_out(many, partitions_min=None, cores=4, records_max=10**6)) == 4
    assert share_out([], partitions_min=None, cores=4, records_max=10) == []


@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(1, 3000),
)
def test_bytes_are_limited_and_something_is_always_read(
    measured: list[list[int]], limit: int
) -> None:
    ranges = ranges_of([len(found) for found in measured])
    cut = cut_bytes(ranges, dict(enumerate(measured)), limit)
    assert sum(one.size for one in cut) >= 1
    taken = [sum(measured[one.partition_id][: one.size]) for one in cut]
    alone = [measured[one.partition_id][0] for one in cut if one.size == 1]
    assert sum(taken) <= limit + max(alone, default=0)


def test_a_large_message_has_its_turn_however_busy_the_others_are() -> None:
    first, served = [10, 10, 10], set()
    for _ in range(20):
        ranges = [Range("t", f"k{n}", n, at, at + 100, 0) for n, at in enumerate(first)]
        sizes = {0: [1] * 100, 1: [5000] * 100, 2: [9000] * 100}
        for one in cut_bytes(ranges, sizes, 300):
            served.add(one.partition_id)
            first[one.partition_id] = one.end
    assert served == {0, 1, 2}


def test_keys_that_were_not_measured_are_not_taken_whole() -> None:
    cut = cut_bytes(ranges_of([1000, 1000]), {0: [10] * 10}, 1000)
    assert sum(one.size for one in cut) <= 100


def test_what_was_not_measured_is_taken_to_be_like_what_was() -> None:
    (cut,) = cut_bytes(ranges_of([1000]), {0: [10] * 100}, 5000)
    assert cut.size == 500
