"""What there is to look at in tests: a shop, and one whose names want to be more than text."""

from typing import Any

import rowmq

__all__ = ["HOSTILE", "HOSTILE_TOPIC", "give_up", "hostile", "shop"]

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&{{7*7}}%_\u202e😀"
"""Would run, close an attribute, be filled in, match anything, or turn the line round."""

HOSTILE_TOPIC = "a/b <b onmouseover=alert(1)>\"'%_😀"


def shop(mq: rowmq.RowMQ) -> None:
    """Orders with and without a key, three groups, and letters of two kinds of errors."""
    for group in ("billing", "search", "mails"):
        mq.create_group("orders", group)
    mq.publish_many(
        "orders",
        [
            rowmq.Message(
                payload={"order": number, "express": number % 2 == 0, "note": None},
                key=f"customer-{number % 3}" if number % 4 else None,
                id=f"order-{number}",
                headers={"source": "web"},
            )
            for number in range(60)
        ],
    )
    mq.publish("orders", "Dear Ann,\n\tthank you", key="texts")
    mq.publish("orders", bytes(range(64)), key="bytes")
    give_up(mq, "orders", "billing", [f"ValueError: order {n} has no total" for n in range(7)])
    give_up(mq, "orders", "search", ["KeyError: 'city'", None])
    mq.queue("emails").put({"to": "ann"})


def hostile(mq: rowmq.RowMQ) -> None:
    """The same kinds of things, all of them with hostile names and payloads."""
    name = HOSTILE_TOPIC
    mq.create_group(name, HOSTILE)
    for number in range(4):
        payload = {HOSTILE: [HOSTILE, number]}
        mq.publish(name, payload, key=HOSTILE, id=f"{HOSTILE}{number}", headers={"h": HOSTILE})
    mq.publish(name, HOSTILE)
    mq.publish(name, HOSTILE.encode())
    mq.create_group("x" * 200, "y" * 200)
    mq.publish("x" * 200, "long", key="z" * 255)
    give_up(mq, name, HOSTILE, [f"{HOSTILE} {n}\n{HOSTILE}" for n in range(2)])
    mq.queue(HOSTILE_TOPIC).put(HOSTILE)


def give_up(mq: rowmq.RowMQ, topic: str, group: str, errors: list[str | None] | list[str]) -> None:
    """Have a group give up on messages with these errors, ack one and retry another."""
    left: list[Any] = list(errors)
    with mq.subscribe(topic, group=group, batch_size=50) as subscriber:
        others = 0
        while left:
            for delivery in subscriber.poll(timeout=5):
                if left:
                    delivery.reject(error=left.pop(0))
                elif others == 0:
                    delivery.nack(delay=3_600, error="TimeoutError: later")
                    others += 1
                elif others == 1:
                    delivery.ack()
                    others += 1
                else:
                    delivery.release()
