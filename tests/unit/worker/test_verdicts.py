"""What becomes of a message whose handler is done."""

import pytest

from rowmq import AckPolicy
from rowmq.worker.unit import Verdict, verdict_of

FAILURE = ValueError("no")


@pytest.mark.parametrize(
    ("policy", "after_success", "after_an_error"),
    [
        (AckPolicy.ACK_FIRST, None, None),
        (AckPolicy.ACK, "ack", "ack"),
        (AckPolicy.REJECT_ON_ERROR, "ack", "reject"),
        (AckPolicy.NACK_ON_ERROR, "ack", "nack"),
        (AckPolicy.MANUAL, "reject", "reject"),
    ],
)
def test_each_policy_has_its_verdicts(
    policy: AckPolicy, after_success: str | None, after_an_error: str | None
) -> None:
    kinds = []
    for error in (None, FAILURE):
        verdict = verdict_of(policy, error)
        kinds.append(verdict and verdict.kind)
    assert kinds == [after_success, after_an_error]


def test_a_verdict_says_why() -> None:
    assert verdict_of(AckPolicy.NACK_ON_ERROR, FAILURE) == Verdict("nack", FAILURE)
    assert verdict_of(AckPolicy.REJECT_ON_ERROR, FAILURE) == Verdict("reject", FAILURE)
    assert verdict_of(AckPolicy.MANUAL, FAILURE) == Verdict("reject", FAILURE)
    unsettled = verdict_of(AckPolicy.MANUAL, None)
    assert unsettled is not None
    assert "MANUAL" in str(unsettled.error)


def test_what_is_acked_has_no_error() -> None:
    for error in (None, FAILURE):
        assert verdict_of(AckPolicy.ACK, error) == Verdict("ack")


def test_every_policy_is_decided() -> None:
    for policy in AckPolicy:
        assert verdict_of(policy, None) is None or policy is not AckPolicy.ACK_FIRST
