"""Dead letters: what a group gives up on is kept, told, and given back to that group alone."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from rowmq.store.statement import Statement
from tests.conformance.test_groups import QUICK, consume, lag_of, rows
from tests.conftest import Connect
from tests.consuming import eventually, payloads, take
from tests.databases import Database

NOW = rowmq.Constant(interval=0)
"""A nacked message is due at once."""


async def bury(mq: Any, group: str, count: int, *, topic: str = "t", **options: Any) -> None:
    """Have a group give up on its next messages."""
    async with mq.subscribe(topic, group=group, **QUICK | options) as sub:
        for delivery in await take(sub, count):
            await delivery.reject(error=f"{group} cannot")


async def bury_together(mq: Any, group: str, count: int) -> None:
    """Have a group give up on its next messages, all at once and so in any order."""
    async with mq.subscribe("t", group=group, **QUICK) as sub:
        await asyncio.gather(*(d.reject(error="no") for d in await take(sub, count)))


async def letters(mq: Any, topic: str = "t", **options: Any) -> list[tuple[str, Any, str]]:
    """Of each letter: group, payload, error."""
    found = await mq.dead_letters(topic, **options)
    return [(letter.group, letter.message.payload, letter.error) for letter in found]


def numbered(count: int, key: str | None = "k", start: int = 1) -> list[Message[Any]]:
    return [Message(payload=n, key=key, id=f"id{n}") for n in range(start, start + count)]


# --- what a letter tells ------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["schlüssel 😀", None], ids=["key", "no key"])
async def test_a_letter_tells_all_there_is_to_know(mq: Any, key: str | None) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    await mq.publish("t", b"passed", key=key)
    await mq.publish("t", b"\x00\xff", key=key, id="ïd", headers={"mine": "hü"})
    (original,) = [m for m in await mq.read("t", key=key) if m.id == "ïd"]
    async with mq.subscribe("t", group="gröup", max_attempts=5, backoff=NOW, **QUICK) as sub:
        first, second = await take(sub, 2)
        failing, passed = (first, second) if first.message.id == "ïd" else (second, first)
        await passed.ack()
        await failing.nack(error="the first time")
        (again,) = await take(sub, 1)
        await again.reject(error="no such customer: 'Bobby' 😀")
    (letter,) = await mq.dead_letters("t")
    assert letter.message == original
    assert (letter.group, letter.attempts, letter.offset) == ("gröup", 2, original.offset)
    assert letter.error == "no such customer: 'Bobby' 😀"
    assert before < letter.failed_at < datetime.now(UTC) + timedelta(minutes=5)
    assert original.published_at <= letter.failed_at
    (copy,) = await mq.read("t_dlq")
    assert (copy.payload, copy.key, copy.id) == (b"\x00\xff", key, "ïd")
    assert copy.headers["mine"] == "hü"
    assert copy.headers["rowmq-topic"] == "t"
    assert copy.headers["rowmq-group"] == "gröup"
    assert copy.headers["rowmq-offset"] == str(original.offset)
    assert copy.headers["rowmq-id"] == "ïd"
    assert copy.headers["rowmq-attempts"] == "2"
    assert copy.headers["rowmq-error"] == "no such customer: 'Bobby' 😀"
    assert abs(copy.published_at - letter.failed_at) < timedelta(seconds=5)


async def test_a_copy_tells_when_it_failed(mq: Any) -> None:
    """In its headers, as all else: it may be copied on."""
    await mq.publish("t", 1)
    await bury(mq, "g", 1)
    (letter,) = await mq.dead_letters("t")
    (copy,) = await mq.read("t_dlq")
    told = int(copy.headers.get("rowmq-failed-at", 0))
    assert abs(letter.failed_at - datetime.fromtimestamp(told / 1e6, UTC)) < timedelta(seconds=5)


async def test_the_log_stays_as_it_is(mq: Any) -> None:
    """Other groups see the message as before."""
    await mq.publish_many("t", numbered(3))
    before = await mq.read("t")
    await bury(mq, "g", 3)
    assert await mq.read("t") == before
    assert await consume(mq, "t", "other", 3) == [1, 2, 3]
    assert {row.lag for row in await mq.lag("t", "g")} == {0}
    assert await letters(mq) == [("g", n, "g cannot") for n in (1, 2, 3)]


async def test_the_last_attempt_makes_a_letter(mq: Any) -> None:
    await mq.publish("t", 1)
    async with mq.subscribe("t", group="g", max_attempts=3, backoff=NOW, **QUICK) as sub:
        for attempt in (1, 2, 3):
            assert await mq.dead_letters("t") == []
            (delivery,) = await take(sub, 1)
            assert delivery.attempt == attempt
            await delivery.nack(error=f"attempt {attempt}")
        await mq.publish("t", "next")
        assert payloads(await take(sub, 1)) == ["next"]
    (letter,) = await mq.dead_letters("t")
    assert (letter.attempts, letter.error) == (3, "attempt 3")


async def test_the_last_error_that_was_told_is_kept(mq: Any) -> None:
    await mq.publish("t", 1)
    async with mq.subscribe("t", group="g", max_attempts=3, backoff=NOW, **QUICK) as sub:
        for error in (ValueError("of the first attempt"), None, None):
            (delivery,) = await take(sub, 1)
            await delivery.nack(error=error)
    assert await letters(mq) == [("g", 1, "ValueError: of the first attempt")]


@pytest.mark.parametrize("way", ["nack", "reject"])
async def test_a_letter_without_an_error_says_so(mq: Any, way: str) -> None:
    await mq.publish("t", 1)
    async with mq.subscribe("t", group="g", max_attempts=1, **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        await getattr(delivery, way)()
    assert await letters(mq) == [("g", 1, f"{way}ed without an error")]


ERRORS: dict[str, tuple[str | BaseException, str]] = {
    "long": ("x" * 50_000, "x" * 16_000),
    "long in bytes": ("😀" * 20_000, "😀" * 16_000),
    "NUL": ("a\0b", "a\\0b"),
    "surrogate": ("a\ud800b", "a\\ud800b"),
    "quotes": ("'\"\\%s {}", "'\"\\%s {}"),
    "exception": (KeyError("a"), "KeyError: 'a'"),
    "empty": ("", "rejected without an error"),
}


async def test_any_error_can_be_told(mq: Any) -> None:
    for number, (given, told) in enumerate(ERRORS.values()):
        await mq.publish("t", number)
        async with mq.subscribe("t", group="g", backoff=NOW, **QUICK) as sub:
            (delivery,) = await take(sub, 1)
            await delivery.nack(error=given)
            (again,) = await take(sub, 1)
            await again.reject(error=given)
        (letter,) = await mq.dead_letters("t")
        assert letter.error == told
        (copy,) = await mq.read("t_dlq")
        assert copy.headers["rowmq-error"] == told[:1000]
        assert await mq.purge_dead_letters("t") == 1


async def test_letters_are_told_oldest_first_and_no_more_than_asked_for(mq: Any) -> None:
    for n in range(5):
        await mq.publish("t", n, key=f"k{n % 2}")
        await bury(mq, "g", 1)
        await asyncio.sleep(0.002)  # SQLite's clock has milliseconds
    assert [payload for _, payload, _ in await letters(mq)] == [0, 1, 2, 3, 4]
    assert [payload for _, payload, _ in await letters(mq, limit=2)] == [0, 1]
    assert await mq.dead_letters("t_dlq") == await mq.dead_letters("other") == []


@dataclass
class Order:
    number: int


async def test_letters_come_as_a_type(mq: Any) -> None:
    await mq.publish("t", Order(7))
    await bury(mq, "g", 1)
    (letter,) = await mq.dead_letters("t", type=Order)
    assert letter.message.payload == Order(7)
    assert [letter.message.payload for letter in await mq.dead_letters("t")] == [{"number": 7}]


async def test_what_does_not_parse_is_given_up_at_once(mq: Any) -> None:
    await mq.publish("t", {"number": 1}, key="k")
    await mq.publish("t", {"name": "no number"}, key="k")
    await mq.publish("t", {"number": 3}, key="k")
    async with mq.subscribe("t", group="g", type=Order, **QUICK) as sub:
        assert payloads(await take(sub, 2)) == [Order(1), Order(3)]
    ((_, payload, error),) = await letters(mq)
    assert payload == {"name": "no number"}
    assert "number" in error


async def test_what_does_not_parse_is_told_once_with_what_became_of_it(
    mq: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.publish("t", "secret", key="k")
    async with mq.subscribe("t", group="g", type=Order, **QUICK) as sub:
        assert await eventually(lambda: polled_and_buried(mq, sub, 1))
    ((_, _, error),) = await letters(mq)
    assert error.startswith("PayloadMismatch: the payload does not parse as Order: it is 6 bytes")
    (said,) = [r.getMessage() for r in caplog.records if "PayloadMismatch" in r.getMessage()]
    where = "group 'g' of topic 't': the message of key 'k', offset 1 went to the dead letters: "
    assert said == where + error
    assert "secret" not in said


async def test_what_does_not_parse_and_cannot_be_given_up_comes_again(
    mq: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.publish("t", "no order", key="k")
    options = QUICK | {"visibility": 0.03, "max_attempts": 1_000}
    async with mq.subscribe("t", group="g", type=Order, **options) as sub:
        database.execute("ALTER TABLE rowmq_dead_letters RENAME TO rowmq_away")
        try:
            assert await sub.poll(timeout=0.5) == []
        finally:
            database.execute("ALTER TABLE rowmq_away RENAME TO rowmq_dead_letters")
        assert "what does not parse could not be given up: " in caplog.text
        assert "the message of key 'k', offset 1 comes again: PayloadMismatch" in caplog.text
        assert "went to the dead letters" not in caplog.text
        assert await eventually(lambda: polled_and_buried(mq, sub, 1))


async def test_a_letter_that_does_not_parse_is_told_to_come_again(
    mq: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has said how often, as for messages: else letters would be lost to a wrong type."""
    await mq.publish("t", "no order", key="k")
    await bury(mq, "g", 1)
    async with mq.subscribe("t_dlq", group="g", type=Order, **QUICK) as sub:
        await sub.poll(timeout=0.5)
    assert "topic 't_dlq': the message of key 'k', offset 1 comes again: " in caplog.text


# --- what was never settled ---------------------------------------------------------------------


async def test_attempts_spent_by_timeouts_say_so(mq: Any) -> None:
    await mq.publish("t", 1, key="k")
    options = QUICK | {"visibility": 0.03, "max_attempts": 2}
    async with mq.subscribe("t", group="g", **options) as sub:
        for attempt in (1, 2):
            assert [d.attempt for d in await take(sub, 1)] == [attempt]
        assert await eventually(lambda: polled_and_buried(mq, sub, 1))
    (letter,) = await mq.dead_letters("t")
    assert (letter.message.payload, letter.attempts) == (1, 2)
    assert "never settled" in letter.error
    assert "0.03 s" in letter.error


async def polled_and_buried(mq: Any, sub: Any, count: int) -> bool:
    """Whether there are so many letters, after a poll that had nothing to deliver."""
    assert await sub.poll(timeout=0.02) == []
    return len(await mq.dead_letters("t", limit=1000)) == count


async def test_attempts_spent_by_crashes_say_so(mq: Any, database: Database) -> None:
    """And tell the last error that was known before."""
    await mq.publish("t", 1, key="k")
    options = QUICK | {"max_attempts": 3, "backoff": NOW}
    async with mq.subscribe("t", group="g", **options) as sub:
        (delivery,) = await take(sub, 1)
        await delivery.nack(error="known before")
        for attempt in (2, 3):
            assert [d.attempt for d in await take(sub, 1)] == [attempt]
            database.execute("UPDATE rowmq_subscribers SET expires_at = 1")  # as if it had died
        await mq.publish("t", "next", key="k")
        assert payloads(await take(sub, 1)) == ["next"]
    (letter,) = await mq.dead_letters("t")
    assert (letter.message.payload, letter.attempts) == (1, 3)
    assert "never settled" in letter.error
    assert "died" in letter.error
    assert "known before" in letter.error


async def test_a_whole_range_that_was_never_settled_is_given_up(mq: Any) -> None:
    await mq.publish_many("t", numbered(250))
    options = QUICK | {"visibility": 0.05, "max_attempts": 1}
    async with mq.subscribe("t", group="g", **options) as sub:
        assert len(await take(sub, 250)) == 250
        assert await eventually(lambda: polled_and_buried(mq, sub, 250))
    found = await mq.dead_letters("t", limit=1000)
    assert sorted(letter.offset for letter in found) == list(range(1, 251))


# --- in one transaction with the settle ---------------------------------------------------------


@pytest.mark.parametrize(
    "moment", ["topics.read", "letters.limit", "messages", "letters.note"], ids=str
)
async def test_a_letter_and_its_settle_are_one(mq: Any, moment: str) -> None:
    """Whatever fails on the way, the message is in one place and not in both, nor in neither."""
    await mq.publish("t", 1, key="k")
    failures: list[str] = []

    def fail(statement: Statement) -> None:
        hit = statement.name == moment
        if moment == "messages":
            hit = statement.name in ("topics.append", "topics.insert_messages")
        if hit:
            failures.append(statement.name)
            raise ZeroDivisionError

    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        mq._driver.observers.append(fail)
        with pytest.raises(ZeroDivisionError):
            await delivery.reject(error="no")
        mq._driver.observers.clear()
        assert failures
        assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
        assert (await lag_of(mq, "t", "g"))["k"][:4] == (0, 1, 1, 1)
        await delivery.reject(error="now")
    assert await letters(mq) == [("g", 1, "now")]
    assert (await lag_of(mq, "t", "g"))["k"][:4] == (1, 1, 0, 0)


async def test_the_same_message_given_up_by_two_groups(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="x")
    await bury(mq, "a", 1)
    await bury(mq, "b", 1)
    found = await mq.dead_letters("t")
    assert sorted(letter.group for letter in found) == ["a", "b"]
    assert {letter.message.id for letter in found} == {"x"}
    assert {letter.offset for letter in found} == {1}
    assert await letters(mq, group="b") == [("b", 1, "b cannot")]
    copies = await mq.read("t_dlq")
    assert len({copy.id for copy in copies}) == 2
    assert {copy.headers["rowmq-id"] for copy in copies} == {"x"}
    assert sorted(copy.headers["rowmq-group"] for copy in copies) == ["a", "b"]


async def test_the_same_message_given_up_twice_by_one_group(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="x")
    for _ in range(3):
        await bury(mq, "g", 1)
        await mq.seek("t", "g", to="earliest")
    found = await mq.dead_letters("t")
    assert [(letter.offset, letter.message.id) for letter in found] == [(1, "x")] * 3
    assert len(await mq.read("t_dlq")) == 3


async def test_many_groups_give_up_at_once(connect: Connect, database: Database) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(4)]
    await clients[0].publish_many("t", [Message(payload=n, key=f"k{n % 3}") for n in range(12)])
    await asyncio.gather(*(bury(mq, f"g{n}", 12) for n, mq in enumerate(clients)))
    found = await clients[0].dead_letters("t")
    assert sorted((letter.group, letter.message.payload) for letter in found) == sorted(
        (f"g{n}", payload) for n in range(4) for payload in range(12)
    )


@pytest.mark.parametrize("size", [3_000_000, 1024 * 1024 + 1], ids=["3 MB", "a byte too much"])
async def test_a_payload_that_the_topic_took_is_taken_as_a_letter(mq: Any, size: int) -> None:
    await mq.configure_topic("t", max_payload_bytes=16 * 1024 * 1024)
    payload = b"\xf0" * size
    await mq.publish("t", payload, key="k")
    await bury(mq, "g", 1)
    (letter,) = await mq.dead_letters("t")
    assert letter.message.payload == payload
    (copy,) = await mq.read("t_dlq")
    assert copy.payload == payload
    assert await mq.redrive("t", group="g") == 1
    assert await consume(mq, "t", "g", 1) == [payload]


async def test_headers_that_are_full_leave_room_for_the_letter(mq: Any) -> None:
    headers = {"\x01" * 100: "\x01" * (64 * 1024 - 100)}  # each six characters in JSON
    await mq.publish("t", 1, key="k", headers=headers)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        await delivery.reject(error="😀" * 2_000)
    (letter,) = await mq.dead_letters("t")
    assert letter.message.headers == headers
    (copy,) = await mq.read("t_dlq")
    assert copy.headers["rowmq-error"] == "😀" * 1_000


async def test_headers_that_only_look_like_ours_are_the_messages_own(mq: Any) -> None:
    await mq.cron.install("s", "0 2 * * *", topic="t", key="k", payload=1, tend=False)
    await mq.cron.run("s")
    await mq.publish("t", 2, key="k", headers={"rowmq-replay": "r", "rowmq-": "", "mine": "m"})
    originals = await mq.read("t", key="k")
    assert [sorted(m.headers) for m in originals] == [
        ["rowmq-fire-at", "rowmq-schedule"],
        ["mine", "rowmq-", "rowmq-replay"],
    ]
    await bury(mq, "g", 2)
    assert [letter.message for letter in await mq.dead_letters("t")] == originals
    assert await mq.gc("t") == 2
    await mq.redrive("t", group="g")
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        assert [d.message for d in await take(sub, 2)] == originals


# --- the dead-letter topic is a topic -----------------------------------------------------------


async def test_letters_are_consumed_as_a_topic(mq: Any) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n % 2}") for n in range(4)])
    await bury(mq, "g", 4)
    async with mq.subscribe("t_dlq", group="repair", **QUICK) as sub:
        deliveries = await take(sub, 4)
        assert sorted(payloads(deliveries)) == [0, 1, 2, 3]
        assert {d.message.headers["rowmq-group"] for d in deliveries} == {"g"}
        await sub.ack(deliveries)
    assert len(await mq.dead_letters("t")) == 4  # as long as the topic keeps them


async def test_what_fails_there_goes_nowhere_else(mq: Any) -> None:
    await mq.publish("t", 1, key="k")
    await bury(mq, "g", 1)
    await bury(mq, "repair", 1, topic="t_dlq")
    topics = [topic for topic in await mq.topics() if topic.messages]
    assert [(topic.name, topic.holds_letters) for topic in topics] == [
        ("t", False),
        ("t_dlq", True),
    ]
    assert await mq.dead_letters("t_dlq") == []
    assert len(await mq.dead_letters("t")) == 1
    assert {row.lag for row in await mq.lag("t_dlq", "repair")} == {0}


async def test_letters_are_tried_a_thousand_times(mq: Any, database: Database) -> None:
    """If whoever consumes them does not say otherwise."""
    await mq.publish("t", 1, key="k")
    await bury(mq, "g", 1)
    async with mq.subscribe("t_dlq", group="repair", backoff=NOW, **QUICK) as sub:
        for attempt in range(1, 6):
            (delivery,) = await take(sub, 1)
            assert delivery.attempt == attempt
            await delivery.nack()
        (delivery,) = await take(sub, 1)
    database.execute("UPDATE rowmq_offsets SET tail_attempts = 998 WHERE tail_attempts = 6")
    database.execute("UPDATE rowmq_delivery_state SET attempts = 998 WHERE attempts = 6")
    async with mq.subscribe("t_dlq", group="repair", backoff=NOW, **QUICK) as sub:
        for attempt in (999, 1000):
            (delivery,) = await take(sub, 1)
            assert delivery.attempt == attempt
            await delivery.nack()
        await mq.publish("t_dlq", "next", key="k")
        assert payloads(await take(sub, 1)) == ["next"]


async def test_a_suffix_of_ones_own(mq: Any) -> None:
    await mq.publish_many("t", numbered(2))
    await bury(mq, "a", 2, dlq_suffix=".failed")
    await bury(mq, "b", 1, dlq_suffix="_dlq")
    assert [m.payload for m in await mq.read("t.failed")] == [1, 2]
    assert [m.payload for m in await mq.read("t_dlq")] == [1]
    assert sorted(await letters(mq)) == [
        ("a", 1, "a cannot"), ("a", 2, "a cannot"), ("b", 1, "b cannot"),
    ]  # fmt: skip
    assert await mq.redrive("t", group="a") == 2
    assert await consume(mq, "t", "a", 2) == [1, 2]
    assert await mq.purge_dead_letters("t") == 1
    assert await mq.dead_letters("t") == await mq.read("t.failed") == await mq.read("t_dlq") == []


async def test_letters_of_letters_under_another_suffix(mq: Any) -> None:
    """Whoever consumes a dead-letter topic with another suffix has letters of its own."""
    await mq.publish("t", 1, key="k")
    await bury(mq, "g", 1)
    await bury(mq, "repair", 1, topic="t_dlq", dlq_suffix="_lost")
    assert await letters(mq, "t_dlq") == [("repair", 1, "repair cannot")]
    assert await letters(mq, "t") == [("g", 1, "g cannot")]
    assert await mq.redrive("t_dlq", group="repair") == 1
    async with mq.subscribe("t_dlq", group="repair", **QUICK) as sub:
        (again,) = await take(sub, 1)
        assert again.message.headers["rowmq-group"] == "g"


# --- redrive ------------------------------------------------------------------------------------


async def test_a_redriven_message_is_delivered_as_if_for_the_first_time(mq: Any) -> None:
    await mq.publish("t", {"a": 1}, key="k", id="x", headers={"mine": "hü"})
    (original,) = await mq.read("t")
    async with mq.subscribe("t", group="g", max_attempts=2, backoff=NOW, **QUICK) as sub:
        for _ in range(2):
            await (await take(sub, 1))[0].nack(error="no")
        assert await mq.redrive("t", group="g") == 1
        assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
        for attempt in (1, 2):
            (again,) = await take(sub, 1)
            assert (again.message, again.attempt) == (original, attempt)
            await again.nack(error="still no")
    (letter,) = await mq.dead_letters("t")
    assert (letter.attempts, letter.error) == (2, "still no")


async def test_only_its_group_sees_a_redriven_message(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    await bury(mq, "g", 3)
    await bury(mq, "failed too", 3)
    await consume(mq, "t", "done", 3)
    await mq.create_group("t", "never came")
    assert await mq.redrive("t", group="g") == 3
    assert {letter.group for letter in await mq.dead_letters("t")} == {"failed too"}
    lags = {group.name: group.lag for group in await mq.groups("t")}
    assert lags == {"g": 3, "failed too": 0, "done": 0, "never came": 3}
    assert await consume(mq, "t", "g", 3) == [1, 2, 3]
    await mq.publish("t", "next", key="k")
    assert await consume(mq, "t", "done", 1) == ["next"]
    assert await consume(mq, "t", "failed too", 1) == ["next"]
    assert await consume(mq, "t", "never came", 4) == [1, 2, 3, "next"]
    assert await consume(mq, "t", "new", 4) == [1, 2, 3, "next"]


async def test_some_are_redriven_by_their_ids(mq: Any) -> None:
    await mq.publish_many("t", numbered(6))
    await bury(mq, "g", 6)
    assert await mq.redrive("t", group="g", ids=["id2"]) == 1
    assert await mq.redrive("t", group="g", ids=["id4", "id4", "id6", "no such id"]) == 2
    assert await mq.redrive("t", group="g", ids=[]) == 0
    assert await mq.redrive("t", group="g", ids=["id2"]) == 0
    assert [payload for _, payload, _ in await letters(mq)] == [1, 3, 5]
    assert await consume(mq, "t", "g", 3) == [2, 4, 6]
    assert await mq.redrive("t", group="g") == 3
    assert await consume(mq, "t", "g", 3) == [1, 3, 5]


async def test_all_groups_are_given_theirs(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    for group in ("a", "b"):
        await bury(mq, group, 3)
    assert await mq.redrive("t", ids=["id2"]) == 2
    assert await mq.redrive("t") == 4
    for group in ("a", "b"):
        assert await consume(mq, "t", group, 3) == [1, 2, 3]


async def test_ids_may_be_given_one_by_one(mq: Any) -> None:
    """An iterator can be gone through once only."""
    await mq.publish_many("t", numbered(3))
    for group in ("a", "b"):
        await bury(mq, group, 3)
    assert await mq.redrive("t", ids=(f"id{n}" for n in (1, 2))) == 4
    assert await mq.purge_dead_letters("t", ids=iter(["id3"])) == 2


async def test_more_than_one_batch(mq: Any) -> None:
    await mq.publish_many("t", [*numbered(130, key="k"), *numbered(130, key="l", start=131)])
    await bury_together(mq, "g", 260)
    ids = [f"id{n}" for n in range(1, 251)]
    assert await mq.redrive("t", group="g", ids=ids) == 250
    assert sorted(await consume(mq, "t", "g", 250)) == list(range(1, 251))
    assert await mq.redrive("t", group="g") == 10
    await bury_together(mq, "g", 10)
    await bury_together(mq, "other", 260)
    assert await mq.purge_dead_letters("t") == 270
    assert await mq.dead_letters("t") == await mq.read("t_dlq") == []


async def test_a_redrive_while_things_are_in_flight(mq: Any) -> None:
    """These stay as they are, and can be settled."""
    await mq.publish_many("t", numbered(6))
    lost: list[Any] = []
    async with mq.subscribe("t", group="g", on_lost=lost.extend, **QUICK) as sub:
        one, two, three, four, five, six = await take(sub, 6)
        await one.ack()
        await two.reject(error="no")
        await four.reject(error="no")
        assert await mq.redrive("t", group="g") == 2
        await three.ack()
        again = await take(sub, 2)
        assert [(d.message.offset, d.attempt) for d in again] == [(2, 1), (4, 1)]
        await five.nack(delay=0, error="later")
        await six.extend(5)
        (fifth,) = await take(sub, 1)
        assert (fifth.message.offset, fifth.attempt) == (5, 2)
        await sub.ack([*again, fifth, six])
        with pytest.raises((errors.AlreadySettled, errors.StaleLease)):
            await two.ack()
    assert lost == []
    assert (await lag_of(mq, "t", "g"))["k"][:4] == (6, 6, 0, 0)


async def test_a_redrive_that_comes_just_before_a_settle(mq: Any, database: Database) -> None:
    """Whichever of the two the database takes first, both count."""
    await mq.publish_many("t", numbered(5))
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        one, two, *rest = await take(sub, 5)
        await two.reject(error="no")
        calls = [mq.redrive("t", group="g"), one.ack(), *(d.ack() for d in rest)]
        results = await asyncio.gather(*calls)
        assert results[0] == 1
        (again,) = await take(sub, 1)
        assert (again.message.offset, again.attempt) == (2, 1)
        await again.ack()
    assert (await lag_of(mq, "t", "g"))["k"][:4] == (5, 5, 0, 0)
    assert rows(database, "delivery_state") == [0]


async def test_a_redriven_message_comes_first_in_strict_order(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    async with mq.subscribe("t", group="g", strict=True, **QUICK) as sub:
        (one,) = await take(sub, 1)
        await one.reject(error="no")
        (two,) = await take(sub, 1)
        assert await mq.redrive("t", group="g") == 1
        assert await sub.poll(timeout=0.05) == []  # the second is in flight
        await two.ack()
        for expected in (1, 3):
            (following,) = await take(sub, 1)
            assert following.message.payload == expected
            await following.ack()


async def test_a_message_that_will_come_anyway_comes_once(mq: Any) -> None:
    """After a seek, a letter may be of a message that is not done any more."""
    await mq.publish_many("t", numbered(3))
    await bury(mq, "g", 3)
    await mq.seek("t", "g", to={"k": 2})
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        held = await take(sub, 1)
        assert await mq.redrive("t", group="g") == 3
        await sub.ack(held)
        assert sorted(payloads(await take(sub, 2))) == [1, 3]
        await mq.publish("t", "next", key="k")
        assert payloads(await take(sub, 1)) == ["next"]


async def test_in_a_transaction_or_not_at_all(mq: Any) -> None:
    await mq.publish_many("t", numbered(2))
    await bury(mq, "g", 2)
    for call in (mq.redrive, mq.purge_dead_letters):
        with pytest.raises(ZeroDivisionError):
            async with mq.transaction() as tx:
                assert await call("t", group="g", connection=tx) == 2
                raise ZeroDivisionError
        assert len(await mq.dead_letters("t")) == len(await mq.read("t_dlq")) == 2
        assert (await lag_of(mq, "t", "g"))["k"][2] == 0
    async with mq.transaction() as tx:
        assert await mq.redrive("t", ids=["id1"], connection=tx) == 1
        assert await mq.purge_dead_letters("t", ids=["id2"], connection=tx) == 1
    assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
    assert await consume(mq, "t", "g", 1) == [1]


async def test_letters_of_a_group_that_was_dropped(mq: Any) -> None:
    await mq.publish_many("t", numbered(2))
    await bury(mq, "gone", 2)
    await bury(mq, "here", 1)
    await mq.drop_group("t", "gone")
    assert len(await mq.dead_letters("t", group="gone")) == 2
    with pytest.raises(errors.UnknownGroup):
        await mq.redrive("t", group="gone")
    assert await mq.redrive("t") == 1
    await mq.create_group("t", "gone", start="latest")
    assert await mq.redrive("t", group="gone", ids=["id2"]) == 1
    assert await consume(mq, "t", "gone", 1) == [2]
    assert await mq.purge_dead_letters("t", group="gone") == 1


async def test_redrives_at_the_same_time_give_each_letter_back_once(
    connect: Connect, database: Database
) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(3)]
    await clients[0].publish_many("t", numbered(40))
    await bury(clients[0], "g", 40)
    counts = await asyncio.gather(*(mq.redrive("t", group="g") for mq in clients))
    assert sum(counts) == 40
    assert await consume(clients[0], "t", "g", 40) == list(range(1, 41))
    assert {row.lag for row in await clients[0].lag("t", "g")} == {0}


# --- redrive of what the log has let go of ------------------------------------------------------


async def test_a_redrive_after_the_original_was_collected(mq: Any, database: Database) -> None:
    await mq.publish("t", {"a": 1}, key="k", id="x", headers={"mine": "hü"})
    await mq.publish("t", 2, key="k", id="y")
    (original, _) = await mq.read("t")
    await bury(mq, "g", 1, batch_size=1)
    await consume(mq, "t", "g", 1)
    await consume(mq, "t", "other", 2)
    assert await mq.gc("t") == 2
    assert await mq.read("t") == []
    assert await mq.redrive("t", group="g") == 1
    assert await mq.dead_letters("t") == []
    lags = {group.name: group.lag for group in await mq.groups("t")}
    assert lags == {"g": 1, "other": 0}
    # Nobody else sees it: neither a new group, nor one that goes back, nor a reader.
    await mq.create_group("t", "new")
    await mq.seek("t", "other", to="earliest")
    assert await mq.read("t") == []
    await mq.publish("t", 3, key="k")
    assert await consume(mq, "t", "new", 1) == [3]
    assert await consume(mq, "t", "other", 1) == [3]
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        deliveries = await take(sub, 2)
        assert deliveries[0].message == original
        assert [(d.message.offset, d.attempt) for d in deliveries] == [(1, 1), (3, 1)]
        await sub.ack(deliveries)
    assert await mq.gc("t") == 2
    assert rows(database, "messages", "dead_letters") == [0, 0]


async def test_what_was_given_back_is_kept_until_it_is_acked(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    await bury(mq, "g", 3)
    assert await mq.gc("t") == 3
    assert await mq.redrive("t", group="g", ids=["id2"]) == 1
    assert await mq.gc("t") == 0
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        assert await mq.gc("t") == 0
        await delivery.nack(delay=0)
        (delivery,) = await take(sub, 1)
        await delivery.ack()
    assert await mq.gc("t") == 1
    assert await mq.gc("t") == 0


async def test_given_back_below_the_log_it_fails_again(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="x")
    await bury(mq, "g", 1)
    assert await mq.gc("t") == 1
    for _ in range(2):
        assert await mq.redrive("t", group="g") == 1
        await bury(mq, "g", 1)
        assert await letters(mq) == [("g", 1, "g cannot")]
        assert await mq.gc("t") == 1


async def test_given_up_twice_and_collected_it_is_given_back_once(mq: Any) -> None:
    """Two letters of one group and one message, which the log has let go of."""
    await mq.publish("t", 1, key="k", id="x")
    for _ in range(2):
        await mq.create_group("t", "g")
        await mq.seek("t", "g", to="earliest")
        await bury(mq, "g", 1)
    assert await mq.gc("t") == 1
    assert await mq.redrive("t", group="g") == 2
    assert await consume(mq, "t", "g", 1) == [1]
    assert {row.lag for row in await mq.lag("t", "g")} == {0}


async def test_given_up_by_two_groups_and_collected_both_get_it_back(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="x")
    for group in ("a", "b"):
        await bury(mq, group, 1)
    assert await mq.gc("t") == 1
    assert await mq.redrive("t") == 2
    assert await consume(mq, "t", "a", 1) == [1]
    assert await mq.gc("t") == 0  # the other wants it still
    assert await consume(mq, "t", "b", 1) == [1]
    assert await mq.gc("t") == 1


async def test_an_id_that_was_published_again_meanwhile(mq: Any) -> None:
    await mq.publish("t", "first", key="k", id="x")
    await bury(mq, "g", 1)
    assert await mq.gc("t") == 1
    again = await mq.publish("t", "second", key="k", id="x")
    assert (again.offset, again.duplicate) == (2, False)
    assert await mq.redrive("t", group="g") == 1
    assert await consume(mq, "t", "g", 2) == ["first", "second"]


async def test_a_message_that_was_given_back_survives_a_seek(mq: Any) -> None:
    """To the earliest message there is for this group, and that is this one."""
    await mq.publish("t", 1, key="k", id="x")
    await bury(mq, "g", 1)
    assert await mq.gc("t") == 1
    assert await mq.redrive("t", group="g") == 1
    await mq.seek("t", "g", to="earliest")
    assert [row.lag for row in await mq.lag("t", "g")] == [1]
    assert await consume(mq, "t", "g", 1) == [1]


# --- purge --------------------------------------------------------------------------------------


async def test_purged_letters_are_gone(mq: Any, database: Database) -> None:
    await mq.publish_many("t", numbered(4))
    for group in ("a", "b"):
        await bury(mq, group, 4)
    assert await mq.purge_dead_letters("t", group="a", ids=["id2", "id9"]) == 1
    assert await mq.purge_dead_letters("t", group="a", ids=["id2"]) == 0
    assert await mq.purge_dead_letters("t", ids=["id3"]) == 2
    assert await mq.purge_dead_letters("t", group="a") == 2
    assert sorted(await letters(mq)) == [("b", n, "b cannot") for n in (1, 2, 4)]
    assert len(await mq.read("t_dlq")) == 3
    assert await mq.purge_dead_letters("other") == 0
    assert await mq.purge_dead_letters("t") == 3
    assert await mq.purge_dead_letters("t") == 0
    assert await mq.redrive("t") == 0
    assert rows(database, "dead_letters") == [0]
    assert await mq.read("t_dlq") == []
    assert len(await mq.read("t")) == 4


async def test_holes_do_not_stop_who_consumes_the_letters(mq: Any) -> None:
    await mq.publish_many("t", numbered(6))
    await bury(mq, "g", 6)
    async with mq.subscribe("t_dlq", group="repair", max_in_flight=3, **QUICK) as sub:
        one, two, three = await take(sub, 3)
        assert await mq.purge_dead_letters("t", ids=["id2", "id3", "id5"]) == 3
        await one.ack()
        await two.ack()  # as good as any other
        await three.nack(delay=0)
        deliveries = await take(sub, 2)
        assert payloads(deliveries) == [4, 6]
        await sub.ack(deliveries)
        await mq.publish("t", 7, key="k")
        await bury(mq, "g", 1)
        (delivery,) = await take(sub, 1)
        assert delivery.message.payload == 7
        await delivery.ack()
        await eventually(lambda: without_lag(mq, "t_dlq", "repair"))
    assert [payload for _, payload, _ in await letters(mq)] == [1, 4, 6, 7]


async def without_lag(mq: Any, topic: str, group: str) -> bool:
    return all(row.lag == 0 for row in await mq.lag(topic, group))


HOLES = (["id2", "id3", "id4"], ["id4", "id5"])


async def letters_with_holes(mq: Any, database: Database, holes: list[str]) -> list[int]:
    """Letters of which only the first is old; what is left of them."""
    await mq.publish_many("t", numbered(6))
    await bury(mq, "g", 6)
    hour = 3_600_000_000
    database.execute(
        f"UPDATE rowmq_messages SET published_at = published_at - {hour} WHERE message_offset = 1 "
        "AND partition_id IN (SELECT id FROM rowmq_partitions WHERE topic = 't_dlq')"
    )
    assert await mq.purge_dead_letters("t", ids=holes) == len(holes)
    return [n for n in range(1, 7) if f"id{n}" not in holes]


@pytest.mark.parametrize("holes", HOLES, ids=str)
async def test_among_letters_with_holes_a_time_is_found(
    mq: Any, database: Database, holes: list[str]
) -> None:
    left = await letters_with_holes(mq, database, holes)
    since = datetime.now(UTC) - timedelta(minutes=30)
    found = [m.payload for m in await mq.read("t_dlq", since=since)]
    await mq.create_group("t_dlq", "repair", start="latest")
    await mq.seek("t_dlq", "repair", to=since)
    await mq.publish("t_dlq", "last", key="k")
    async with mq.subscribe("t_dlq", group="repair", **QUICK) as sub:
        delivered = []
        while "last" not in delivered:
            delivered += payloads(await take(sub, 1))
    assert (found, delivered[:-1]) == (left[1:], left[1:])


@pytest.mark.parametrize("holes", HOLES, ids=str)
async def test_among_letters_with_holes_only_the_old_expire(
    mq: Any, database: Database, holes: list[str]
) -> None:
    left = await letters_with_holes(mq, database, holes)
    await mq.configure_topic("t_dlq", retention=timedelta(minutes=30))
    collected = await mq.gc("t_dlq")
    assert [m.payload for m in await mq.read("t_dlq")] == left[1:]
    assert [payload for _, payload, _ in await letters(mq)] == left[1:]
    assert collected == 1


async def test_purging_while_others_fail(mq: Any, connect: Connect, database: Database) -> None:
    """Each letter is purged once, or is still there."""
    other = await connect(database.url, pool_size=2)
    await mq.publish_many("t", numbered(60))
    purged: list[int] = []

    async def all_purged() -> bool:
        purged.append(await other.purge_dead_letters("t"))
        return sum(purged) >= 60

    async def fail_all() -> None:
        async with mq.subscribe("t", group="g", **QUICK) as sub:
            for _ in range(12):
                for delivery in await take(sub, 5):
                    await delivery.reject(error="no")

    await asyncio.gather(fail_all(), eventually(all_purged))
    assert sum(purged) == 60
    assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
