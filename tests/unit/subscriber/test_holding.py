"""What an owned partition has to deliver next."""

from rowmq.progress import Range, State, Stored
from rowmq.store.leases import Loaded
from rowmq.subscriber.holding import cut, is_open
from tests.unit.subscriber.making import hand_out, holding


def offsets(ranges: list[Range]) -> list[int]:
    return [offset for known in ranges for offset in range(known.first, known.last + 1)]


def test_what_waits_after_a_nack_waits_at_the_next_owner_too() -> None:
    rows = (Range(1, 1, State.WAITING, 500, 1, "boom"),)
    held = holding(next_offset=3, stored=Stored(0, 1, 2, 0, 0, rows))
    assert offsets(held.ready(now=499, strict=False)) == [2]
    assert offsets(held.ready(now=500, strict=False)) == [1, 2]
    assert held.next_due(after=0) == 500
    assert held.next_due(after=500) is None


def test_strict_order_waits_for_what_is_in_flight_or_delayed() -> None:
    held = holding(next_offset=4)
    assert offsets(held.ready(now=0, strict=True)) == [1]
    held.progress.deliver(1, 1, until=100)
    assert held.ready(now=50, strict=True) == []
    assert offsets(held.ready(now=100, strict=True)) == [1]
    held.progress.wait(1, until=300, error=None)
    assert held.ready(now=299, strict=True) == []
    held.progress.deliver(1, 1, until=900)
    held.progress.ack(1, 1)
    assert offsets(held.ready(now=300, strict=True)) == [2]


def test_a_strict_handler_that_lives_keeps_its_message_beyond_its_visibility() -> None:
    held = holding(next_offset=4)
    held.progress.deliver(1, 1, until=100)
    delivery = hand_out(held, 1, strict=True)
    assert held.ready(now=1_000, strict=True) == []
    assert held.expire(now=1_000) == []
    del delivery
    assert offsets(held.ready(now=1_000, strict=True)) == [1]


def test_tokens_that_were_not_settled_in_time_are_taken_away() -> None:
    held = holding(next_offset=4)
    held.progress.deliver(1, 2, until=100)
    kept = [hand_out(held, offset) for offset in (1, 2)]
    held.progress.extend(2, until=500)
    assert [token.offset for token in held.expire(now=100)] == [1]
    assert list(held.tokens) == [2]
    assert len(kept) == 2


def test_a_late_settle_is_open_until_the_message_is_delivered_again() -> None:
    held = holding(next_offset=4)
    held.progress.deliver(1, 1, until=100)
    first = hand_out(held, 1)
    token = held.tokens[1]
    held.expire(now=100)
    assert is_open(held.progress, token)
    held.progress.deliver(1, 1, until=200)
    again = hand_out(held, 1)
    assert not is_open(held.progress, token)
    assert is_open(held.progress, held.tokens[1])
    assert first is not again


def test_a_delivery_whose_answer_was_lost_is_no_attempt() -> None:
    held = holding(next_offset=6)
    held.progress.deliver(1, 2, until=100)
    kept = hand_out(held, 1)
    held.unanswered = [Range(3, 5, State.WAITING)]
    marked = Stored(0, 5, 3, 200, 1, (Range(1, 2, State.DELIVERED, 100, 1),))
    gone = held.reload(Loaded(1, 7, 1, 9, marked))
    assert gone == []
    assert held.progress.ranges == [
        Range(1, 2, State.DELIVERED, 100, 1),
        Range(3, 5, State.WAITING),
    ]
    assert held.version == 9
    assert kept is not None


def test_loading_tells_which_deliveries_were_settled() -> None:
    held = holding(next_offset=3)
    held.progress.deliver(1, 2, until=100)
    kept = [hand_out(held, offset) for offset in (1, 2)]
    (gone,) = held.reload(Loaded(1, 7, 1, 2, Stored(1, 2, 2, 100, 1)))
    assert gone.offset == 1
    assert list(held.tokens) == [2]
    assert len(kept) == 2


def test_ranges_are_cut_to_a_number_of_messages() -> None:
    ranges = [Range(1, 3, State.WAITING), Range(7, 9, State.WAITING)]
    assert offsets(cut(ranges, 4)) == [1, 2, 3, 7]
    assert cut(ranges, 0) == []
    assert cut(ranges, 99) == ranges


def test_a_delivery_is_taken_for_settling_once_until_it_is_given_back() -> None:
    held = holding(next_offset=2)
    held.progress.deliver(1, 1, until=100)
    hand_out(held, 1)
    token = held.tokens[1]
    assert not token.claimed
    assert [token.claim(), token.claim()] == [True, False]
    assert token.claimed
    token.unclaim()
    assert token.claim()
