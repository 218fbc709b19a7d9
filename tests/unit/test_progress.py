"""Ranges against a model that knows one offset at a time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rowmq.progress import Progress, Range, State, Stored, merged

DONE = (State.ACKED, 0, 0, None)

ACTIONS = ["deliver", "ack", "wait", "extend", "again", "give_back", "take_back", "reopen", "skip"]

actions = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 40),
        st.integers(0, 5),
        st.sampled_from([None, "boom"]),
    ),
    max_size=40,
)


class Model:
    """What is known of each offset: state, attempts, until, error."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.delivered = base
        self.known: dict[int, tuple[State, int, int, str | None]] = {}

    @property
    def acked(self) -> int:
        offset = self.base
        while self.known.get(offset + 1, (None,))[0] is State.ACKED:
            offset += 1
        return offset

    def open(self) -> list[int]:
        return [offset for offset, known in self.known.items() if known[0] is not State.ACKED]

    def act(self, progress: Progress, name: str, pick: int, size: int, error: str | None) -> None:
        if self.open() and name in ("ack", "wait", "extend", "again"):
            self.settle(progress, name, self.open()[pick % len(self.open())], size, error)
        elif name == "deliver":
            self.deliver(progress, size)
        elif name == "reopen" and self.delivered > self.base:
            offset = self.base + 1 + pick % (self.delivered - self.base)
            progress.reopen(offset)
            self.known[offset] = (State.WAITING, 0, 0, None)
        elif name == "give_back":
            self.give_back(progress)
        elif name == "take_back":
            self.take_back(progress, Range(pick, pick + size, State.WAITING, 0, pick % 2))
        elif name == "skip":
            offset = self.acked + 1 + size
            self.skip(progress, offset, min(self.acked + 1 + pick, offset) if error else None)

    def deliver(self, progress: Progress, size: int) -> None:
        last = self.delivered + size
        if size:
            progress.deliver(self.delivered + 1, last, until=7)
        for offset in range(self.delivered + 1, last + 1):
            self.known[offset] = (State.DELIVERED, 1, 7, None)
        self.delivered = last

    def give_back(self, progress: Progress) -> None:
        progress.give_back()
        for offset, (state, attempts, _, error) in self.known.items():
            if state is State.DELIVERED:
                self.known[offset] = (State.WAITING, attempts, 0, error)

    def take_back(self, progress: Progress, before: Range) -> None:
        progress.take_back(before)
        for offset, (state, attempts, _, error) in self.known.items():
            marked = state is State.DELIVERED and attempts == before.attempts + 1
            if marked and before.first <= offset <= before.last:
                self.known[offset] = (State.WAITING, before.attempts, 0, error)

    def skip(self, progress: Progress, offset: int, since: int | None) -> None:
        kept = [known for known in self.open() if since is not None and known < since]
        unacked = [
            passed
            for passed in range(self.acked + 1, offset)
            if self.known.get(passed, (None,))[0] is not State.ACKED and passed not in kept
        ]
        assert progress.skip_to(offset, since=since) == len(unacked)
        for passed in range(self.base + 1, offset):
            if passed not in kept:
                self.known[passed] = DONE
        self.delivered = max(self.delivered, offset - 1)

    def settle(
        self, progress: Progress, name: str, offset: int, until: int, error: str | None
    ) -> None:
        state, attempts, _, last_error = self.known[offset]
        if name == "ack":
            progress.ack(offset, offset)
            self.known[offset] = DONE
        elif name == "wait":
            progress.wait(offset, until=until, error=error)
            self.known[offset] = (State.WAITING, attempts, until, error or last_error)
        elif name == "extend":
            progress.extend(offset, until=until)
            self.known[offset] = (state, attempts, until, last_error)
        else:
            assert name == "again"
            progress.deliver(offset, offset, until=until)
            self.known[offset] = (State.DELIVERED, attempts + 1, until, last_error)


@settings(max_examples=400)
@given(st.integers(0, 3), actions)
def test_ranges_say_of_every_offset_what_the_model_says(
    base: int, todo: list[tuple[str, int, int, str | None]]
) -> None:
    progress, model = Progress(base), Model(base)
    for name, pick, size, error in todo:
        before = progress.stored()
        model.act(progress, name, pick, size, error)
        assert progress.acked == model.acked
        assert progress.delivered == model.delivered
        for offset in range(model.acked + 1, model.delivered + 1):
            known = progress.at(offset)
            assert known is not None
            found = (known.state, known.attempts, known.until, known.error)
            assert found == model.known[offset]
        assert progress.at(model.acked) is None
        assert progress.at(model.delivered + 1) is None
        assert merged(progress.ranges) == progress.ranges
        assert sum(known.size for known in progress.ranges) == model.delivered - model.acked
        check_stored(progress, before)


def check_stored(progress: Progress, before: Stored) -> None:
    """What is stored restores the same; and the difference leads from one to the other."""
    after = progress.stored()
    restored = Progress.restored(after)
    assert (restored.acked, restored.delivered) == (progress.acked, progress.delivered)
    assert restored.ranges == progress.ranges
    rows = {row.first: row for row in before.ranges}
    for first in after.removed_since(before):
        del rows[first]
    rows |= {row.first: row for row in after.changed_since(before)}
    assert tuple(sorted(rows.values())) == after.ranges


def test_a_batch_delivered_and_acked_whole_needs_no_row_of_its_own() -> None:
    progress = Progress()
    progress.deliver(1, 100, until=60)
    assert progress.stored() == Stored(0, 100, 1, 60, 1)
    progress.ack(1, 100)
    assert progress.stored() == Stored(100, 100, 101, 0, 0)


def test_a_nack_in_the_middle_splits_and_its_ack_merges() -> None:
    progress = Progress()
    progress.deliver(1, 5, until=60)
    progress.wait(3, until=30, error="boom")
    for offset in (1, 2, 4, 5):
        progress.ack(offset, offset)
    assert progress.acked == 2
    assert progress.ranges == [
        Range(3, 3, State.WAITING, 30, 1, "boom"),
        Range(4, 5, State.ACKED),
    ]
    assert list(progress.due(29)) == []
    assert [known.first for known in progress.due(30)] == [3]
    progress.deliver(3, 3, until=90)
    progress.ack(3, 3)
    assert (progress.acked, progress.ranges) == (5, [])


@given(st.sets(st.integers(1, 30)))
def test_many_acks_are_the_same_as_one_after_the_other(offsets: set[int]) -> None:
    together, single = Progress(), Progress()
    for progress in (together, single):
        progress.deliver(1, 30, until=60)
    together.ack_all(offsets)
    for offset in offsets:
        single.ack(offset, offset)
    assert (together.acked, together.ranges) == (single.acked, single.ranges)


def test_what_should_be_covered_and_is_not_waits_to_be_delivered() -> None:
    rows = (Range(4, 5, State.ACKED), Range(1, 2, State.ACKED))
    progress = Progress.restored(Stored(2, 9, 8, 60, 1, rows))
    assert progress.ranges == [
        Range(3, 3, State.WAITING),
        Range(4, 5, State.ACKED),
        Range(6, 7, State.WAITING),
        Range(8, 9, State.DELIVERED, 60, 1),
    ]


def test_what_nobody_holds_is_due_at_once() -> None:
    progress = Progress()
    progress.deliver(1, 4, until=60)
    progress.wait(1, until=50, error=None)
    progress.give_back()
    assert progress.ranges == [
        Range(1, 1, State.WAITING, 50, 1),
        Range(2, 4, State.WAITING, 0, 1),
    ]
    assert progress.outstanding() == 4
