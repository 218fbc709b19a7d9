"""A dead letter that is given back with another payload: to its group, once, or not at all."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rowmq import Message, errors
from rowmq.store.rewriting import Rewriting
from rowmq.store.statement import Statement
from tests.choices import async_only, on_servers
from tests.commits import lost_answers
from tests.conformance.test_dead_letters import NOW, bury, letters, numbered
from tests.conformance.test_gc import HOUR, make_old, make_reopened_old
from tests.conformance.test_groups import QUICK, consume, lag_of, rows
from tests.conftest import Connect
from tests.consuming import payloads, take
from tests.databases import Database
from tests.flavours import in_thread, plain

ROOT = Path(__file__).parents[2]


async def edit(mq: Any, id: str = "id1", payload: Any = "edited", **options: Any) -> Any:
    return await mq.redrive_edited("t", **{"group": "g"} | options, id=id, payload=payload)


@pytest.mark.parametrize("key", ["schlüssel 😀", None], ids=["key", "no key"])
async def test_a_group_gets_a_message_that_tells_what_it_was(mq: Any, key: str | None) -> None:
    await mq.publish("t", {"a": 1}, key=key, id="ïd", headers={"mine": "hü"})
    (original,) = await mq.read("t")
    await bury(mq, "g", 1)
    assert await edit(mq, "ïd", {"a": 2}) is True
    assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        message = delivery.message
        assert (message.payload, message.key, message.shard) == ({"a": 2}, key, original.shard)
        assert message.headers == {
            "mine": "hü",
            "rowmq-edited-id": "ïd",
            "rowmq-edited-offset": str(original.offset),
        }
        assert message.id != "ïd"
        assert message.offset < 0
        assert message.published_at >= original.published_at
        assert delivery.attempt == 1
        await delivery.ack()
    assert await mq.read("t") == [original]
    assert {row.lag for row in await mq.lag("t", "g")} == {0}


@async_only
async def test_nobody_else_sees_it(mq: Any, database: Database) -> None:
    await mq.publish_many("t", numbered(3))
    await bury(mq, "g", 3)
    await bury(mq, "failed too", 3)
    await consume(mq, "t", "done", 3)
    await mq.create_group("t", "never came")
    before = await mq.read("t")
    assert await edit(mq, "id2") is True
    assert len(await mq.dead_letters("t")) == 5
    await mq.create_group("t", "new")
    await mq.seek("t", "done", to="earliest")
    lags = {group.name: group.lag for group in await mq.groups("t")}
    assert lags == {"g": 1, "failed too": 0, "done": 3, "never came": 3, "new": 3}
    assert await mq.read("t") == before
    assert [message.payload for message in (await mq.browse("t")).messages] == [3, 2, 1]
    for group in ("done", "never came", "new", "made later"):
        assert await consume(mq, "t", group, 3) == [1, 2, 3]
    await mq.publish("t", "next", key="k")
    assert await consume(mq, "t", "g", 2) == ["edited", "next"]
    for group in ("failed too", "done", "never came", "new", "made later"):
        assert await consume(mq, "t", group, 1) == ["next"]
    assert await mq.purge_dead_letters("t") == 5
    assert await mq.gc("t") == 5  # with the edited one
    assert rows(database, "messages", "dead_letters", "delivery_state") == [0, 0, 0]


@async_only
async def test_it_is_kept_until_it_is_acked_and_survives_a_seek(mq: Any) -> None:
    await mq.publish_many("t", numbered(2))
    await bury(mq, "g", 2)
    assert await mq.gc("t") == 2
    assert await edit(mq) is True
    assert await mq.gc("t") == 0
    await mq.seek("t", "g", to="earliest")
    assert [row.lag for row in await mq.lag("t", "g")] == [1]
    assert await consume(mq, "t", "g", 1) == ["edited"]
    assert await mq.gc("t") == 1
    assert await edit(mq, "id2") is True
    await mq.seek("t", "g", to="latest")
    assert [row.lag for row in await mq.lag("t", "g")] == [0]
    assert await mq.gc("t") == 1


@async_only
async def test_what_fails_again_is_a_letter_like_any_other(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    assert await edit(mq, payload="once") is True
    await bury(mq, "g", 1)
    assert await letters(mq) == [("g", "once", "g cannot")]
    (letter,) = await mq.dead_letters("t")
    assert await mq.gc("t") == 2
    assert await mq.redrive("t", group="g") == 1
    await bury(mq, "g", 1)
    (again,) = await mq.dead_letters("t")
    assert (again.message, again.offset) == (letter.message, letter.offset)
    assert await edit(mq, letter.message.id, "twice", headers={"own": "h"}) is True
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        assert delivery.message.payload == "twice"
        assert delivery.message.headers == {
            "own": "h",
            "rowmq-edited-id": "id1",
            "rowmq-edited-offset": "1",
        }
        await delivery.ack()


@async_only
async def test_an_offset_is_not_given_twice(mq: Any) -> None:
    """Or a letter of the first would be given back as the second."""
    await mq.publish_many("t", numbered(2))
    await bury(mq, "g", 2)
    assert await edit(mq, "id1", "first") is True
    await bury(mq, "g", 1)
    assert await mq.gc("t") == 3
    assert await edit(mq, "id2", "second") is True
    assert await mq.redrive("t", group="g") == 1
    assert sorted(await consume(mq, "t", "g", 2)) == ["first", "second"]


@async_only
async def test_what_was_edited_comes_first_and_in_order(mq: Any) -> None:
    await mq.publish_many("t", numbered(4))
    await bury(mq, "g", 3)
    await bury(mq, "other", 3)
    async with mq.subscribe("t", group="g", strict=True, **QUICK) as sub:
        (four,) = await take(sub, 1)
        assert await mq.redrive("t", group="g", ids=["id2"]) == 1
        for number in (3, 1):
            assert await edit(mq, f"id{number}", f"edited {number}") is True
        assert await edit(mq, "id2", "of another", group="other") is True
        assert await sub.poll(timeout=0.05) == []  # the fourth is in flight
        await four.ack()
        for expected in ("edited 3", "edited 1", 2):
            (delivery,) = await take(sub, 1)
            assert delivery.message.payload == expected
            await delivery.ack()
    assert (await lag_of(mq, "t", "g"))["k"][:4] == (4, 4, 0, 0)
    assert await consume(mq, "t", "other", 2) == ["of another", 4]


@async_only
async def test_what_is_in_flight_stays_so(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    async with mq.subscribe("t", group="g", backoff=NOW, **QUICK) as sub:
        one, two, three = await take(sub, 3)
        await two.reject(error="no")
        assert await edit(mq, "id2") is True
        await one.ack()
        await three.nack(error="later")
        rest = await take(sub, 2)
        assert sorted(map(str, payloads(rest))) == ["3", "edited"]
        await sub.ack(rest)
    assert (await lag_of(mq, "t", "g"))["k"][:4] == (3, 3, 0, 0)


@async_only
async def test_given_up_twice_it_is_given_back_once(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="id1")
    for _ in range(2):
        await bury(mq, "g", 1)
        await mq.seek("t", "g", to="earliest")
    await consume(mq, "t", "g", 1)
    assert await edit(mq) is True
    assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
    assert await consume(mq, "t", "g", 1) == ["edited"]
    assert {row.lag for row in await mq.lag("t", "g")} == {0}


@async_only
async def test_of_several_keys_one_is_meant(mq: Any) -> None:
    for key in ("a", "b"):
        await mq.publish("t", key, key=key, id="id1")
    await bury(mq, "g", 2)
    with pytest.raises(errors.InvalidOption, match="'a', 'b'"):
        await edit(mq)
    assert await edit(mq, key="c") is False
    assert await edit(mq, key="b") is True
    assert await consume(mq, "t", "g", 1) == ["edited"]
    assert await letters(mq) == [("g", "a", "g cannot")]


@async_only
async def test_a_payload_is_as_large_as_the_topic_takes(mq: Any, database: Database) -> None:
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    with pytest.raises(errors.PayloadTooLarge):
        await edit(mq, payload=b"x" * (1024 * 1024 + 1))
    with pytest.raises(errors.InvalidInput):
        await edit(mq, payload=float("nan"))
    with pytest.raises(errors.InvalidInput):
        await edit(mq, headers={"a": 1})
    assert await letters(mq) == [("g", 1, "g cannot")]
    assert await edit(mq, payload=b"x" * 1024 * 1024) is True
    # So that whoever consumes it knows, before it reads.
    largest = "SELECT largest_bytes FROM rowmq_partitions WHERE topic = 't'"
    assert database.execute(largest) == [(1024 * 1024,)]
    assert await consume(mq, "t", "g", 1) == [b"x" * 1024 * 1024]


@async_only
async def test_where_there_is_no_letter(mq: Any) -> None:
    with pytest.raises(errors.UnknownGroup):
        await edit(mq)
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "other", 1)
    await mq.create_group("t", "g")
    assert await edit(mq) is False
    assert await edit(mq, group="other", id="id2") is False
    assert await letters(mq) == [("other", 1, "other cannot")]


async def test_at_the_same_time_it_is_given_back_once(connect: Connect, database: Database) -> None:
    clients = [await connect(database.url, pool_size=2) for _ in range(3)]
    await clients[0].publish_many("t", numbered(6))
    await bury(clients[0], "g", 6)
    calls = [edit(mq, f"id{n}", f"edited {n}") for n in (1, 2, 3) for mq in clients]
    calls.insert(4, clients[0].redrive("t", group="g", ids=["id2", "id4"]))
    assert sum(map(int, await asyncio.gather(*calls))) == 4
    assert len(await letters(clients[0])) == 2
    payloads = await consume(clients[0], "t", "g", 4)
    found = sorted(str(payload).removeprefix("edited ") for payload in payloads)
    assert found == ["1", "2", "3", "4"]
    assert {row.lag for row in await clients[0].lag("t", "g")} == {0}


def failing_after(statements: int) -> Callable[[Statement], None]:
    """Have the next statement fail, after so many."""
    left = iter(range(statements))

    def see(_: Statement) -> None:
        if next(left, None) is None:
            raise ZeroDivisionError

    return see


@async_only
async def test_it_is_one_with_the_end_of_its_letter(mq: Any) -> None:
    """Whatever statement fails, there is one of the two."""
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    observers = mq._driver.observers
    before = await mq.dead_letters("t")
    for number in range(100):
        observers.append(failing_after(number))
        try:
            assert await edit(mq) is True
        except ZeroDivisionError:
            observers.clear()
            assert await mq.dead_letters("t") == before
            assert (await lag_of(mq, "t", "g"))["k"][2] == 0
        else:
            break
    observers.clear()
    assert number >= 10
    assert await mq.dead_letters("t") == []
    assert await consume(mq, "t", "g", 1) == ["edited"]


@async_only
async def test_a_try_that_is_repeated_since_its_answer_was_lost(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    with lost_answers(mq, "rewriting.insert") as repeated:
        assert await edit(mq) is True
    assert len(repeated) == 1
    assert await edit(mq) is False
    assert await consume(mq, "t", "g", 1) == ["edited"]
    assert {row.lag for row in await mq.lag("t", "g")} == {0}


@async_only
async def test_whoever_does_it_is_killed_again_and_again(mq: Any, database: Database) -> None:
    await mq.publish_many("t", [Message(payload=1, key="k", id="x")])
    await bury(mq, "g", 1)
    module = [sys.executable, "-m", "tests.processes.editor", database.url]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 60, "check": False}
    done = await in_thread(subprocess.run, module, **options)
    killed, given_back = done.stdout.split()
    assert int(killed) >= 10, done.stderr
    assert given_back == "True"
    assert await mq.dead_letters("t") == await mq.read("t_dlq") == []
    assert await consume(mq, "t", "g", 1) == ["edited"]
    assert {row.lag for row in await mq.lag("t", "g")} == {0}


@async_only
async def test_the_retention_of_what_is_older_leaves_it_alone(mq: Any, database: Database) -> None:
    await mq.configure_topic("t", retention=HOUR)
    await mq.publish_many("t", numbered(3))
    await bury(mq, "g", 1)
    await mq.create_group("t", "slow")
    make_old(database, up_to=3)
    assert await edit(mq, payload="edited" * 99) is True
    assert await mq.gc("t") == 3
    expired = {group.name: group.expired for group in await mq.groups("t")}
    assert expired == {"g": 2, "slow": 3}
    # A poll is still to know how large it may be.
    ((largest,),) = database.execute("SELECT largest_bytes FROM rowmq_partitions WHERE topic = 't'")
    assert largest >= len("edited" * 99)
    await mq.publish("t", "next", key="k")
    assert await consume(mq, "t", "g", 2) == ["edited" * 99, "next"]


@async_only
async def test_it_is_let_go_of_when_it_is_too_old_itself(mq: Any, database: Database) -> None:
    await mq.configure_topic("t", retention=HOUR)
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    assert await edit(mq) is True
    make_old(database, up_to=1)
    make_reopened_old(database)
    assert await mq.gc("t") == 2
    assert {group.name: group.expired for group in await mq.groups("t")} == {"g": 1}
    assert {row.lag for row in await mq.lag("t", "g")} == {0}


@async_only
async def test_no_offset_is_given_twice_whatever_the_clock_says(mq: Any) -> None:
    """Letters name offsets, also when the log has let go of what stood there."""
    offsets: list[int] = []
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    for _ in range(3):
        assert await edit(mq) is True
        async with mq.subscribe("t", group="g", **QUICK) as sub:
            (delivery,) = await take(sub, 1)
            offsets.append(delivery.message.offset)
            await delivery.reject(error="again")
        await mq.gc("t")
        assert await mq.purge_dead_letters("t") == 1
        await mq.publish("t", 1, key="k", id="id1")
        await bury(mq, "g", 1)
    first = offsets[0]
    assert offsets == [first, first + 1, first + 2]


@async_only
async def test_what_is_in_flight_can_be_settled_after_the_retention(
    mq: Any, database: Database
) -> None:
    await mq.configure_topic("t", retention=HOUR)
    await mq.publish_many("t", numbered(2))
    await bury(mq, "g", 2)
    assert await edit(mq) is True
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (delivery,) = await take(sub, 1)
        make_old(database, up_to=2)
        database.execute(
            "UPDATE rowmq_messages SET published_at = 2000000000000000 WHERE message_offset < 0"
        )
        assert await mq.gc("t") == 2
        await delivery.ack()
    assert {row.lag for row in await mq.lag("t", "g")} == {0}
    assert {group.expired for group in await mq.groups("t")} == {0}


@on_servers
async def test_a_handler_that_acks_and_publishes_is_not_in_its_way(
    mq: Any, connect: Connect, database: Database
) -> None:
    """It has the group's place, and then wants the counter: whoever edits never has that first."""
    other = await connect(database.url)
    await mq.publish_many("t", numbered(2))
    await bury(mq, "g", 1)
    waits = asyncio.Event()
    loop = asyncio.get_running_loop()

    def see(statement: Statement) -> None:
        if statement.name == "groups.lock_topic":
            loop.call_soon_threadsafe(waits.set)

    plain(other)._driver.observers.append(see)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        (second,) = await take(sub, 1)
        async with mq.transaction() as tx:
            await second.ack(connection=plain(tx))
            edited = asyncio.create_task(edit(other, payload="edited" * 99))
            await asyncio.wait_for(waits.wait(), 15)
            await tx.publish("t", "next", key="k")
        assert await edited is True
    assert sorted(await consume(mq, "t", "g", 2)) == ["edited" * 99, "next"]


@async_only
async def test_a_log_that_is_emptied_before_it_is_given_back_has_room_for_it(
    mq: Any, connect: Connect, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.publish("t", 1, key="k", id="id1")
    await bury(mq, "g", 1)
    other = await connect(database.url)
    redrive, tries = Rewriting.redrive, []

    def late(self: Any, *args: Any, **options: Any) -> Any:
        tries.append(1)
        return redrive(self, *args, **options)

    make_room = Rewriting.make_room

    def emptied(self: Any, *args: Any, **options: Any) -> Any:
        yield from make_room(self, *args, **options)
        if not tries:
            yield Statement("test.emptied", EMPTIED)

    monkeypatch.setattr(Rewriting, "redrive", late)
    monkeypatch.setattr(Rewriting, "make_room", emptied)
    assert await edit(other, payload="edited" * 99) is True
    assert len(tries) == 2
    ((largest,),) = database.execute("SELECT largest_bytes FROM rowmq_partitions WHERE topic = 't'")
    assert largest >= len("edited" * 99)
    assert await consume(mq, "t", "g", 1) == ["edited" * 99]


EMPTIED = "UPDATE rowmq_partitions SET largest_bytes = 0 WHERE topic = 't'"
