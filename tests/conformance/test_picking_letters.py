"""Dead letters are picked exactly: by handles, where messages of several keys have the same id."""

from typing import Any

import pytest

import rowmq
from rowmq import Message, errors
from tests.choices import async_only, on_mysql
from tests.conformance.test_dead_letters import bury, letters, numbered
from tests.conformance.test_groups import QUICK, consume
from tests.consuming import payloads, take
from tests.databases import Database, MySQLDatabase


async def alike(mq: Any, *groups: str) -> list[Any]:
    """Letters of messages of several keys with the same id, each with an error of its own."""
    await mq.publish_many("t", [Message(payload=key, key=key, id="x") for key in ("a", "b", "c")])
    for group in groups or ("g",):
        async with mq.subscribe("t", group=group, **QUICK) as sub:
            for delivery in await take(sub, 3):
                await delivery.reject(error=f"{delivery.message.payload} is bad")
    found: list[Any] = await mq.dead_letters("t")
    assert {letter.message.id for letter in found} == {"x"}
    return sorted(found, key=lambda letter: (letter.group, letter.message.key))


async def left(mq: Any) -> list[tuple[str, str]]:
    """Of each letter that is there, group and key."""
    return sorted((one.group, one.message.key) for one in await mq.dead_letters("t"))


async def test_handles_name_one_letter_each(mq: Any) -> None:
    found = await alike(mq, "g", "h")
    assert len({letter.handle for letter in found}) == 6
    for letter in found:
        assert await mq.find_letter("t", letter.handle) == letter
    page = await mq.browse_letters("t")
    assert {letter.handle for letter in page.letters} == {letter.handle for letter in found}
    assert await mq.find_letter("other", found[0].handle) is None


async def test_one_is_purged_and_those_of_the_same_id_stay(mq: Any) -> None:
    a, b, c = await alike(mq)
    (step,) = await mq.preview_purge("t", letters=[b])
    assert step == rowmq.PurgeStep(group="g", letters=1)
    assert await mq.purge_dead_letters("t", letters=[b]) == 1
    assert await left(mq) == [("g", "a"), ("g", "c")]
    assert {copy.payload for copy in await mq.read("t_dlq")} == {"a", "c"}
    assert await mq.purge_dead_letters("t", letters=[a.handle, b.handle, c.handle]) == 2
    assert await left(mq) == []


async def test_one_is_given_back_and_those_of_the_same_id_stay(mq: Any) -> None:
    _, b, *_ = await alike(mq, "g", "h")
    (step,) = await mq.preview_redrive("t", letters=[b])
    assert (step.group, step.letters, step.gone) == ("g", 1, 0)
    assert await mq.redrive("t", letters=[b]) == 1
    assert await left(mq) == [("g", "a"), ("g", "c"), ("h", "a"), ("h", "b"), ("h", "c")]
    assert await consume(mq, "t", "g", 1) == ["b"]
    assert {row.lag for row in await mq.lag("t", "h")} == {0}
    assert await mq.redrive("t", letters=[b.handle]) == 0


async def test_one_is_edited_and_those_of_the_same_id_stay(mq: Any) -> None:
    _, b, c = await alike(mq)
    with pytest.raises(errors.InvalidOption, match="letter="):
        await mq.redrive_edited("t", group="g", id="x", payload="mended")
    assert await mq.redrive_edited("t", letter=b, payload="mended b") is True
    assert await mq.redrive_edited("t", letter=b, payload="again") is False
    assert await mq.redrive_edited("t", group="g", letter=c.handle, payload="mended c") is True
    assert await left(mq) == [("g", "a")]
    assert sorted(await consume(mq, "t", "g", 2)) == ["mended b", "mended c"]


async def test_what_failed_twice_has_two_handles(mq: Any) -> None:
    await mq.publish("t", 1, key="k", id="x")
    for _ in range(2):
        await bury(mq, "g", 1)
        await mq.seek("t", "g", to="earliest")
    await consume(mq, "t", "g", 1)
    first, second = await mq.dead_letters("t")
    assert first.handle != second.handle
    assert await mq.redrive("t", letters=[first]) == 1
    assert await mq.dead_letters("t") == [second]
    assert await consume(mq, "t", "g", 1) == [1]


async def test_a_handle_of_what_has_gone_never_names_another(mq: Any) -> None:
    """However often the same message fails again, and whatever the log of letters lets go of."""
    await mq.publish("t", 1, key="k", id="x")
    seen: list[str] = []
    for _ in range(4):
        await bury(mq, "g", 1)
        (letter,) = await mq.dead_letters("t")
        assert letter.handle not in seen
        assert await mq.redrive("t", letters=seen) == 0
        assert await mq.purge_dead_letters("t", letters=seen) == 0
        for handle in seen:
            assert await mq.find_letter("t", handle) is None
            assert await mq.redrive_edited("t", letter=handle, payload="edited") is False
        assert await mq.dead_letters("t") == [letter]
        seen.append(letter.handle)
        await mq.gc("t_dlq")
        assert await mq.redrive("t", letters=[letter]) == 1


@async_only
async def test_a_letter_at_the_same_place_of_another_time_is_another(
    mq: Any, database: Database
) -> None:
    """As after a restore, which gives offsets again."""
    _, b, _ = await alike(mq)
    database.execute("UPDATE rowmq_dead_letters SET failed_at = failed_at + 1")
    assert await mq.purge_dead_letters("t", letters=[b]) == 0
    assert await mq.redrive("t", letters=[b]) == 0
    assert len(await mq.dead_letters("t")) == 3


@async_only
async def test_a_handle_is_of_its_topic_and_its_group(mq: Any) -> None:
    a, b, c = await alike(mq)
    everything = [a, b, c]
    await mq.create_group("t", "other")
    await mq.create_group("u", "g")
    for act in (mq.redrive, mq.purge_dead_letters):
        assert await act("u", letters=everything) == 0
        assert await act("t", group="other", letters=everything) == 0
    assert await mq.redrive_edited("u", letter=a, payload=1) is False
    assert await mq.redrive_edited("t", group="other", letter=a, payload=1) is False
    assert await mq.preview_redrive("t", group="other", letters=everything) == []
    assert len(await mq.dead_letters("t")) == 3


@async_only
async def test_letters_of_many_groups_and_more_than_a_statement_takes(mq: Any) -> None:
    await mq.publish_many("t", numbered(120))
    for group in ("a", "b", "dropped"):
        await bury(mq, group, 120, batch_size=120, max_in_flight=200)
    await mq.drop_group("t", "dropped")
    found = await mq.dead_letters("t", limit=1_000)
    chosen = [letter for letter in found if letter.offset % 2]
    assert len(chosen) == 180
    steps = {step.group: step.letters for step in await mq.preview_purge("t", letters=chosen)}
    assert steps == {"a": 60, "b": 60, "dropped": 60}
    assert await mq.redrive("t", letters=(letter for letter in chosen)) == 120
    assert await mq.purge_dead_letters("t", letters=chosen) == 60
    rest = await mq.dead_letters("t", limit=1_000)
    assert rest == [letter for letter in found if letter not in chosen]
    assert sum(row.lag for row in await mq.lag("t", "a")) == 60


@async_only
async def test_in_a_transaction_or_not_at_all(mq: Any) -> None:
    a, b, _ = await alike(mq)
    with pytest.raises(ZeroDivisionError):
        async with mq.transaction() as tx:
            assert await mq.redrive("t", letters=[a], connection=tx) == 1
            assert await mq.purge_dead_letters("t", letters=[b], connection=tx) == 1
            raise ZeroDivisionError
    assert len(await mq.dead_letters("t")) == 3
    async with mq.transaction() as tx:
        assert await mq.purge_dead_letters("t", letters=[b], connection=tx) == 1
    assert await left(mq) == [("g", "a"), ("g", "c")]


@on_mysql
@pytest.mark.parametrize("act", ["redrive", "purge_dead_letters"])
def test_what_a_snapshot_still_shows_has_gone_all_the_same(database: Database, act: str) -> None:
    """At REPEATABLE READ, which is MySQL's default: it would be delivered a second time."""
    assert isinstance(database, MySQLDatabase)
    with rowmq.connect(database.url) as mq, database.connect() as connection:
        mq.publish_many("t", numbered(2))
        with mq.subscribe("t", group="g") as sub:
            for delivery in sub.poll(timeout=5):
                delivery.reject(error="no")
        gone, there = mq.dead_letters("t")
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.begin()
        connection.query("SELECT COUNT(*) FROM rowmq_dead_letters")
        assert mq.purge_dead_letters("t", letters=[gone]) == 1
        assert getattr(mq, act)("t", letters=[gone, there], connection=connection) == 1
        connection.commit()
        assert mq.dead_letters("t") == []
        assert sum(row.lag for row in mq.lag("t", "g")) == (1 if act == "redrive" else 0)


@async_only
async def test_no_more_than_asked_for_the_oldest_first(mq: Any) -> None:
    await mq.publish_many("t", numbered(250))
    for group in ("a", "b"):
        await bury(mq, group, 250, batch_size=250, max_in_flight=300)
    assert await mq.redrive("t", limit=130) == 130
    assert {group for group, *_ in await letters(mq, group="a", limit=1_000)} == {"a"}
    assert len(await mq.dead_letters("t", group="a", limit=1_000)) == 120
    assert await mq.purge_dead_letters("t", group="a", limit=119) == 119
    (last,) = await mq.dead_letters("t", group="a")
    assert last.message.payload == 250
    assert await mq.purge_dead_letters("t", ids=["id250", "id249"], limit=2) == 2
    assert await mq.redrive("t", limit=1_000) == 249
    assert await mq.dead_letters("t") == []


@async_only
async def test_what_fails_again_meanwhile_is_not_taken_again(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    async with mq.subscribe("t", group="g", max_attempts=1, **QUICK) as sub:
        for delivery in await take(sub, 3):
            await delivery.reject(error="no")
        assert await mq.redrive("t", limit=100) == 3
        assert sorted(payloads(await take(sub, 3))) == [1, 2, 3]


@async_only
@pytest.mark.parametrize(
    "letters", ["1.2.3", ["x"], ["1.2"], [1], [None], 7, ["1.2.3", "-1.2.3"], ["٣.1.1"]], ids=str
)
async def test_what_is_no_handle_is_refused(mq: Any, letters: Any) -> None:
    await alike(mq)
    for call in (mq.redrive, mq.purge_dead_letters, mq.preview_redrive, mq.preview_purge):
        with pytest.raises(errors.InvalidOption, match="letter"):
            await call("t", letters=letters)
    assert len(await mq.dead_letters("t")) == 3


@async_only
async def test_letters_are_meant_in_one_way(mq: Any) -> None:
    a, *_ = await alike(mq)
    for call in (mq.redrive, mq.purge_dead_letters, mq.preview_redrive, mq.preview_purge):
        with pytest.raises(errors.InvalidOption, match="not both"):
            await call("t", ids=["x"], letters=[a])
        assert await call("t", letters=[]) in (0, [])
    for ways in ({}, {"id": "x"}, {"group": "g"}, {"group": "g", "id": "x", "letter": a}):
        with pytest.raises(errors.InvalidOption, match="which letter"):
            await mq.redrive_edited("t", payload=1, **ways)
    with pytest.raises(errors.UnknownGroup):
        await mq.redrive("t", group="nobody", letters=[a])
    for call in (mq.redrive, mq.purge_dead_letters):
        with pytest.raises(errors.InvalidOption, match="limit"):
            await call("t", limit=0)
    assert len(await mq.dead_letters("t")) == 3
