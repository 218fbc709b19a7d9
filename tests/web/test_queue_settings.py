"""What a form shows of a queue's settings can be given back, and says the same."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from rowmq.message import QueueInfo
from rowmq.web.pages.queues import READERS, shown_settings

SPANS = st.integers(1, 400).map(lambda days: timedelta(days=days)) | st.integers(1, 59).map(
    lambda seconds: timedelta(seconds=seconds)
)
LIMITS = st.none() | st.integers(1, 10**9)

INFOS = st.builds(
    QueueInfo,
    name=st.just("q"),
    kinds=st.just(()),
    paused=st.booleans(),
    keep_completed=st.booleans(),
    keep_failed=st.booleans(),
    retention=st.none() | SPANS,
    failed_retention=st.none() | SPANS,
    max_payload_bytes=st.integers(1, 2**34),
    max_in_flight=LIMITS,
    rate=LIMITS,
    rate_period=SPANS,
    durability=st.sampled_from(["full", "relaxed"]),
)


@given(INFOS)
def test_what_is_shown_can_be_given(info: QueueInfo) -> None:
    shown = shown_settings(info)
    assert shown.keys() == READERS.keys()
    for field, text in shown.items():
        value, was = READERS[field](text), getattr(info, field)
        if was is None:  # no limit, or for ever
            assert value in (float("inf"), timedelta.max)
        else:
            assert value == was, (field, text)
