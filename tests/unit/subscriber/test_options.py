"""The options of `subscribe` are checked before anything happens."""

from datetime import timedelta
from typing import Any

import pytest

from rowmq.errors import InvalidGroup, InvalidInput, InvalidOption, InvalidTopic
from tests.unit.subscriber.making import options


def test_what_is_left_out_has_its_default() -> None:
    given = options()
    assert (given.max_attempts, given.heartbeat_interval, given.buries) == (3, 10, True)
    assert given.grave.name == "orders_dlq"
    assert (given.lease_us, given.visibility_us) == (30_000_000, 60_000_000)


def test_a_subscriber_without_a_name_gets_one_of_its_own() -> None:
    first, second = options(name=None), options(name=None)
    assert first.name != second.name


def test_a_dead_letter_topic_is_tried_long_and_has_no_dead_letters() -> None:
    given = options("orders_dlq")
    assert (given.max_attempts, given.buries) == (1_000, False)
    assert options("orders_dlq", max_attempts=5).max_attempts == 5


def test_durations_may_be_timedeltas() -> None:
    given = options(visibility=timedelta(minutes=2), lease_duration=timedelta(seconds=9))
    assert (given.visibility, given.lease_duration, given.heartbeat_interval) == (120, 9, 3)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"group": ""}, InvalidGroup),
        ({"group": None}, InvalidGroup),
        ({"name": "x" * 201}, InvalidGroup),
        ({"start": "middle"}, InvalidOption),
        ({"batch_size": 0}, InvalidOption),
        ({"batch_size": True}, InvalidOption),
        ({"max_in_flight": -1}, InvalidOption),
        ({"max_bytes": 1.5}, InvalidOption),
        ({"max_attempts": 0}, InvalidOption),
        ({"visibility": 0}, InvalidOption),
        ({"visibility": -1}, InvalidOption),
        ({"visibility": "60"}, InvalidOption),
        ({"lease_duration": 0}, InvalidOption),
        ({"heartbeat_interval": 30}, InvalidOption),
        ({"heartbeat_interval": 0}, InvalidOption),
        ({"poll_interval": 0}, InvalidOption),
        ({"discovery_interval": float("nan")}, InvalidOption),
        ({"flush_interval": -1}, InvalidOption),
        ({"idle_timeout": None}, InvalidOption),
        ({"backoff": 5}, InvalidOption),
        ({"on_lost": "print"}, InvalidOption),
        ({"dlq_suffix": ""}, InvalidOption),
        ({"dlq_suffix": None}, InvalidOption),
        ({"dlq_suffix": "x" * 200}, InvalidTopic),
    ],
)
def test_a_bad_option_is_refused_by_name(bad: dict[str, Any], error: type[InvalidInput]) -> None:
    with pytest.raises(error) as caught:
        options(**bad)
    assert str(caught.value)


def test_a_heartbeat_that_is_too_slow_says_what_would_do() -> None:
    with pytest.raises(InvalidOption, match="shorter than lease_duration"):
        options(lease_duration=5, heartbeat_interval=10)
