from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import shop
from shop import CardRefused, Order

from rowmq.testing import TestApp

Start = Callable[..., TestApp]


# part first begins
def test_an_order_is_billed_and_its_receipt_is_sent_an_hour_later(rowmq_app: Start) -> None:
    t = rowmq_app(shop.app)
    t.publish("orders", Order(id=7, total=12.5))

    t.drain()

    t.assert_enqueued("receipts", Order(id=7, total=12.5), key="order-7", delay=3600)
    t.assert_not_published("receipts-sent")

    t.clock.move(hours=1)
    t.drain()

    t.assert_published("receipts-sent", {"order": 7})
    t.assert_not_enqueued("receipts")
    # part first ends


# part errors begins
def test_a_refused_card_is_an_error_of_the_handler(rowmq_app: Start) -> None:
    t = rowmq_app(shop.app)
    t.publish("orders", Order(id=8, total=5000))

    with pytest.raises(CardRefused):
        t.drain()


def test_a_card_is_tried_three_times_and_then_given_up(rowmq_app: Start) -> None:
    t = rowmq_app(shop.app)
    t.publish("orders", Order(id=8, total=5000), key="ann")

    handled = t.run_for(minutes=5, raise_errors=False)

    assert [one.outcome for one in handled] == ["retried", "retried", "failed"]
    t.assert_dead_lettered("orders", key="ann", group="billing", error="5000 is too much")


def test_a_card_that_works_again_is_billed(
    rowmq_app: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = rowmq_app(shop.app)
    t.publish("orders", Order(id=8, total=5000))
    t.drain(raise_errors=False)

    monkeypatch.setattr(shop, "charge", print)
    t.clock.move(minutes=1)

    (handled,) = t.drain()
    assert (handled.handler, handled.attempt, handled.outcome) == ("bill", 2, "acked")
    # part errors ends


# part schedules begins
def test_carts_are_cleared_every_night_at_three(rowmq_app: Start) -> None:
    t = rowmq_app(shop.app, now=datetime(2030, 1, 1, 12, tzinfo=UTC))

    t.run_for(days=2)

    t.assert_published("carts-cleared", {"day": "2030-01-02"}, count=1)
    t.assert_published("carts-cleared", {"day": "2030-01-03"}, count=1)


def test_after_an_outage_only_the_latest_night_is_caught_up_with(rowmq_app: Start) -> None:
    t = rowmq_app(shop.app, now=datetime(2030, 1, 1, 12, tzinfo=UTC))

    t.clock.move(days=5)  # nobody was at work
    t.drain()

    t.assert_published("carts-cleared", {"day": "2030-01-06"})
    t.assert_published("carts-cleared", count=1)
    # part schedules ends
