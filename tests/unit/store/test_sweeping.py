"""Which parts of topics are looked at, if it cannot be all of them."""

from rowmq.store.sweeping import Part, ends_first, fair

PARTS = [(Part(n, n + 2, 10), 10) for n in range(5)]


def test_all_that_fits_is_looked_at() -> None:
    wanted = {1: PARTS, 2: PARTS[:1]}
    assert {id: set(chosen) for id, chosen in fair(wanted, 60).items()} == {
        1: {part for part, _ in PARTS},
        2: {PARTS[0][0]},
    }


def test_both_ends_come_before_the_middle() -> None:
    assert [part.after for part, _ in ends_first(PARTS)] == [0, 1, 4, 2, 3]
    assert [part.after for part in fair({1: PARTS}, 35)[1]] == [0, 1, 4]
    assert list(ends_first([])) == []


def test_who_wants_little_has_it_and_others_share_the_rest() -> None:
    chosen = fair({1: PARTS, 2: PARTS[:1], 3: PARTS}, 50)
    assert [len(chosen[id]) for id in (1, 2, 3)] == [2, 1, 2]


def test_each_has_at_least_its_newest_part() -> None:
    chosen = fair({1: PARTS, 2: PARTS, 3: []}, 0)
    assert chosen == {1: [PARTS[0][0]], 2: [PARTS[0][0]], 3: []}
