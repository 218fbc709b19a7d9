"""What a settle does to the progress, and when a message is given up."""

import pytest

from rowmq.errors import AlreadySettled, Locked, StaleLease
from rowmq.policy import Constant, NoRetry
from rowmq.progress import Range, State
from rowmq.subscriber.holding import Holding
from rowmq.subscriber.options import Options
from rowmq.subscriber.settling import Kind, Settlement, apply, exhausted, unsettled_error
from rowmq.subscriber.subscriber import Patience
from tests.unit.subscriber.making import hand_out, holding, options

NOW = 1_000_000_000


def delivered(times: int = 1) -> Holding:
    held = holding(next_offset=4)
    for _ in range(times):
        held.progress.deliver(1, 1, until=NOW)
    hand_out(held, 1)
    return held


def settled(held: Holding, kind: Kind, given: Options, **more: object) -> list[object]:
    settlement = Settlement(held.tokens[1], kind, **more)  # type: ignore[arg-type]
    return list(apply(held.progress, settlement, given, now=NOW))


def test_an_ack_moves_the_watermark() -> None:
    held = delivered()
    assert settled(held, Kind.ACK, options()) == []
    assert held.progress.acked == 1


def test_a_nack_waits_for_its_delay_or_for_the_backoff() -> None:
    held = delivered()
    assert settled(held, Kind.NACK, options(), delay=5.0, error="boom") == []
    assert held.progress.ranges == [Range(1, 1, State.WAITING, NOW + 5_000_000, 1, "boom")]
    held = delivered()
    assert settled(held, Kind.NACK, options(backoff=Constant(7))) == []
    assert held.progress.ranges == [Range(1, 1, State.WAITING, NOW + 7_000_000, 1)]


@pytest.mark.parametrize(
    ("times", "given"),
    [
        (3, options()),
        (2, options(max_attempts=2)),
        (1, options(backoff=NoRetry())),
        (2, options(backoff=Constant(1, max_attempts=2), max_attempts=9)),
    ],
)
def test_the_nack_of_the_last_attempt_gives_the_message_up(times: int, given: Options) -> None:
    held = delivered(times)
    (burial,) = settled(held, Kind.NACK, given, delay=5.0, error="boom")
    assert held.progress.acked == 1
    assert (burial.offset, burial.attempts, burial.error) == (1, times, "boom")  # type: ignore[attr-defined]


def test_a_reject_gives_the_message_up_at_once_with_the_last_error() -> None:
    held = delivered()
    held.progress.wait(1, until=0, error="before")
    held.progress.deliver(1, 1, until=NOW)
    (burial,) = settled(held, Kind.REJECT, options())
    assert burial.error == "before"  # type: ignore[attr-defined]
    (burial,) = settled(delivered(), Kind.REJECT, options())
    assert burial.error == "rejected without an error"  # type: ignore[attr-defined]


def test_what_is_rejected_in_a_dead_letter_topic_goes_nowhere_else() -> None:
    held = delivered()
    assert settled(held, Kind.REJECT, options("orders_dlq")) == []
    assert held.progress.acked == 1


def test_an_extension_counts_from_now() -> None:
    held = delivered()
    assert settled(held, Kind.EXTEND, options(), delay=90.0) == []
    assert held.progress.ranges == [Range(1, 1, State.DELIVERED, NOW + 90_000_000, 1)]


def test_attempts_that_nobody_settled_are_used_up_and_told() -> None:
    given = options(max_attempts=3)
    assert not exhausted(Range(1, 1, State.WAITING, 0, 2), given)
    assert exhausted(Range(1, 1, State.WAITING, 0, 3), given)
    assert exhausted(Range(1, 1, State.WAITING, 0, 2), options(backoff=Constant(1, max_attempts=2)))
    error = unsettled_error(Range(1, 1, State.WAITING, 0, 3, "boom"), given)
    assert "3 times" in error
    assert "boom" in error


# --- what has to wait -----------------------------------------------------------------------------


def test_what_is_locked_is_tried_again_and_the_first_error_told_at_the_end() -> None:
    settlement = Settlement(delivered().tokens[1], Kind.ACK)
    lost = Settlement(delivered().tokens[1], Kind.ACK)
    patience = Patience(60)
    assert patience.left([lost, settlement], [StaleLease("lost"), Locked("wait")]) == [settlement]
    assert settlement.token.claimed
    with pytest.raises(StaleLease):
        patience.left([settlement], [None])


def test_what_somebody_else_settled_meanwhile_is_no_success() -> None:
    settlement = Settlement(delivered().tokens[1], Kind.ACK)
    assert settlement.token.claim()
    with pytest.raises(AlreadySettled):
        Patience(60).left([settlement], [Locked("wait")])


def test_after_a_while_it_is_told_that_it_is_locked() -> None:
    with pytest.raises(Locked):
        Patience(-1).left([Settlement(delivered().tokens[1], Kind.ACK)], [Locked("wait")])
