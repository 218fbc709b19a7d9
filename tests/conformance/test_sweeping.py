"""What is told of large topics: the newest keys are seen as well as the oldest, and where not all
are looked at, that is said.
"""

from typing import Any

import pytest

from rowmq import Level, Message, Thresholds
from rowmq.doctor import work
from rowmq.store import doctor, groups, sweeping, traffic
from tests.choices import async_only
from tests.conformance.test_dead_letters import numbered
from tests.conformance.test_groups import QUICK
from tests.conformance.test_overseeing import establish
from tests.consuming import take
from tests.databases import Database
from tests.plans import reads_of

pytestmark = async_only  # test_client sees that the sync methods are the same

MANY = 12_000


def add_keys(database: Database, count: int, topic: str = "t") -> None:
    """Keys that each had a message once."""
    rows = ", ".join(f"('{topic}', 'old{n:05}', 2, 2)" for n in range(count))
    database.execute(
        "INSERT INTO rowmq_partitions (topic, partition_key, first_offset, next_offset) "
        f"VALUES {rows}"
    )


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few partitions be many."""
    for name, most in (("NEWEST_MAX", 3), ("PART_MAX", 4), ("LOOKS_MAX", 6), ("PARTS_MAX", 2)):
        monkeypatch.setattr(sweeping, name, most)


async def establish_nowhere(mq: Any, database: Database) -> None:
    """Have Spark read a topic from the beginning, without places as yet."""
    await establish(mq, "t", "lake")
    database.execute(
        "DELETE FROM rowmq_offsets WHERE group_id = "
        "(SELECT id FROM rowmq_groups WHERE consumer_group = 'lake')"
    )


async def lags_of(mq: Any) -> list[Any]:
    """What the doctor says of each group's lag, however little that is."""
    thresholds = Thresholds(lag_messages=0, lag_age=0, unattended=0)
    return [*(await mq.doctor(checks=["lag"], thresholds=thresholds))]


async def test_what_comes_to_a_new_key_of_a_large_topic_is_seen(
    mq: Any, database: Database
) -> None:
    add_keys(database, MANY)
    await mq.create_group("t", "g", start="latest")
    before = await mq.traffic()
    assert [(one.published, one.partitions) for one in before.topics] == [(MANY, MANY)]
    assert [(one.lag, one.acked, one.oldest_at) for one in before.groups] == [(0, MANY, None)]
    await mq.publish_many("t", numbered(3, key="new"))
    first = (await mq.read("t", key="new", limit=1))[0]

    (topic,), (group,) = (seen := await mq.traffic()).topics, seen.groups
    assert (topic.published, topic.messages, topic.partitions) == (MANY + 3, 3, MANY + 1)
    assert (group.lag, group.acked, group.oldest_at) == (3, MANY, first.published_at)
    assert [topic.capped, group.capped, group.oldest_capped] == [False] * 3
    assert [row.key for row in await mq.lag("t", "g", limit=1)] == ["new"]
    assert [one.lag for one in await mq.groups("t")] == [3]
    assert await mq.groups("t") == [await mq.group("t", "g")]

    preview = await mq.preview_seek("t", "g", to="latest")
    assert (preview.partitions, preview.skipped, preview.again) == (MANY + 1, 3, 0)
    assert len(preview.steps) == 100
    assert (preview.steps[0].key, preview.steps[0].skipped) == ("new", 3)
    assert [step.key for step in preview.steps[1:3]] == ["old00000", "old00001"]


async def test_the_doctor_and_pipelines_see_a_new_key_of_a_large_topic(
    mq: Any, database: Database
) -> None:
    add_keys(database, MANY)
    await mq.create_group("t", "g", start="latest")
    await establish_nowhere(mq, database)
    (fine,) = await lags_of(mq)
    assert (fine.level, fine.details["lag"]) == (Level.OK, 0)
    await mq.publish_many("t", numbered(3, key="new"))
    first = (await mq.read("t", key="new", limit=1))[0]
    for found in await lags_of(mq):
        assert (found.details["lag"], found.details["keys_behind"]) == (3, 1)
        assert found.details["oldest_seconds"] is not None
        assert "at least" not in found.summary
    (reader,) = (await mq.pipelines()).readers
    assert (reader.partitions, reader.behind, reader.lag) == (MANY + 1, 1, 3)
    assert reader.oldest_at == first.published_at
    assert (reader.capped, reader.oldest_capped) == (False, False)
    topic = await mq.topic("t")
    assert [topic] == await mq.topics()
    assert (topic.partitions, topic.messages) == (MANY + 1, 3)


async def test_no_statement_looks_at_all_of_a_large_topic(mq: Any, database: Database) -> None:
    add_keys(database, MANY)
    await mq.create_group("t", "g")
    seen: dict[str, Any] = {}
    mq._driver.observers.append(lambda statement: seen.update({statement.name: statement}))
    await mq.traffic()
    await mq.lag("t", "g", limit=5)
    await mq.groups("t")
    await mq.preview_seek("t", "g", to="earliest", limit=5)
    await mq.doctor(checks=["lag"])
    await establish_nowhere(mq, database)
    await mq.pipelines()
    await mq.topic("t")
    parts = ("sweeping.next", "sweeping.behind", "groups.most_lag", "previews.standings")
    assert set(parts) <= set(seen)
    roughly = 4 if database.dialect == "sqlite" else 1  # which tells its steps, and not rows
    most = roughly * 10 * sweeping.LOOKS_MAX
    for name in parts:
        assert max(reads_of(database, [seen[name]]).values()) <= most, name


@pytest.mark.parametrize("keys", [1, 2, 3, 4, 7, 8, 11, 12, 30])
async def test_parts_are_all_there_is(mq: Any, monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    """However many partitions there are, each is in one part: no edge is left out, or in two."""
    await mq.publish_many("t", [m for n in range(keys) for m in numbered(n % 5 + 1, key=f"k{n}")])
    await mq.publish_many("u", numbered(2))
    for group in ("g", "h"):
        await mq.create_group("t", group)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        deliveries = await take(sub, min(2, keys))
        await deliveries[-1].ack()
        small_parts(monkeypatch)
        seen = await mq.traffic()
        everything = {name: await mq.lag("t", name) for name in ("g", "h")}
        told = {one.group: one for one in seen.groups}
        examined = {one.details["group"]: one.details for one in await lags_of(mq)}
        for name, rows in everything.items():
            assert told[name].lag == sum(row.lag for row in rows)
            if told[name].lag:
                assert examined[name]["lag"] == told[name].lag
                assert examined[name]["keys_behind"] == sum(row.lag > 0 for row in rows)
            assert told[name].in_flight == sum(row.in_flight for row in rows)
            most = sorted(rows, key=lambda row: (-row.lag, row.key))
            assert await mq.lag("t", name, limit=5) == most[:5]
        preview = await mq.preview_seek("t", "g", to="latest", limit=2)
        assert preview.partitions == len(everything["g"]) == keys
        assert preview.skipped == told["g"].lag
        assert preview.in_flight == told["g"].in_flight
        assert len(preview.steps) == min(2, keys)
    total = sum(n % 5 + 1 for n in range(keys))
    assert [(one.partitions, one.published) for one in seen.topics] == [(keys, total), (1, 2)]
    assert [one.lag for one in await mq.groups("t")] == [total - 1, total]
    assert not any(one.capped for one in [*seen.topics, *seen.groups])
    assert await mq.topics() == [await mq.topic("t"), await mq.topic("u")]


async def test_beyond_the_bound_both_ends_are_seen_and_that_is_said(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n:02}") for n in range(40)])
    await mq.publish_many("u", numbered(2))
    await mq.create_group("t", "g", start="latest")
    await mq.create_group("u", "g")
    small_parts(monkeypatch)
    monkeypatch.setattr(traffic, "PARTITIONS_MAX", 12)
    monkeypatch.setattr(groups, "PARTITIONS_MAX", 12)
    for key in ("k00", "k39"):
        await mq.publish_many("t", numbered(5, key=key, start=100 + int(key[1:])))
    (t, u), (g, small) = (seen := await mq.traffic()).topics, seen.groups
    assert (t.capped, g.capped, g.oldest_capped) == (True, True, True)
    assert (u.capped, small.capped, small.oldest_capped) == (False, False, False)
    assert (small.lag, g.lag) == (2, 10)
    assert 11 <= t.partitions < 40
    assert {row.key for row in await mq.lag("t", "g", limit=2)} == {"k00", "k39"}
    large, _ = sorted(await lags_of(mq), key=lambda found: str(found.details["topic"]))
    assert "at least 10 messages behind, the oldest at least" in large.summary


async def test_the_doctor_passes_over_no_group_that_it_has_not_seen_whole(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n:02}") for n in range(40)])
    await mq.create_group("t", "g", start="latest")
    await establish(mq, "t", "lake")
    small_parts(monkeypatch)
    (fine, *_) = await mq.doctor(checks=["lag"])
    assert fine.level is Level.OK
    monkeypatch.setattr(traffic, "PARTITIONS_MAX", 12)
    one, other = await mq.doctor(checks=["lag"])
    assert {one.level, other.level} == {Level.NOTE}
    assert "more keys than are looked at" in one.summary
    assert {one.details["group"], other.details["group"]} == {"g", "lake"}
    (reader,) = (await mq.pipelines()).readers
    assert (reader.capped, reader.oldest_capped) == (True, True)
    assert reader.lag == reader.partitions < 40
    monkeypatch.setattr(traffic, "PARTITIONS_MAX", 100)
    monkeypatch.setattr(doctor, "ROWS_MAX", 2)
    monkeypatch.setattr(work, "ROWS_MAX", 2)
    (few,) = await mq.doctor(checks=["lag"])
    assert (few.level, few.summary) == (
        Level.NOTE,
        "the first 2 groups were looked at, and there may be more",
    )


async def test_the_oldest_is_found_behind_messages_that_were_deleted_by_name(
    mq: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.publish_many("t", [m for n in range(30) for m in numbered(3, key=f"k{n:02}")])
    await mq.create_group("t", "g")
    database.execute("DELETE FROM rowmq_messages WHERE message_offset < 3")
    left = await mq.read("t", limit=100)
    (group,) = (await mq.traffic()).groups
    assert (group.oldest_at, group.oldest_capped) == (min(m.published_at for m in left), False)
    monkeypatch.setattr(traffic, "GAPS_MAX", 29)
    (group,) = (await mq.traffic()).groups
    assert group.oldest_at is not None
    assert group.oldest_capped
    (found,) = await lags_of(mq)
    assert "the oldest at least" in found.summary
    database.execute("DELETE FROM rowmq_messages")
    monkeypatch.setattr(traffic, "GAPS_MAX", 30)
    (group,) = (await mq.traffic()).groups
    assert (group.oldest_at, group.oldest_capped) == (None, False)


async def test_the_oldest_is_looked_for_at_both_ends(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.publish_many("t", [Message(payload=n, key=f"k{n:02}") for n in range(40)])
    await mq.create_group("t", "g")
    small_parts(monkeypatch)
    monkeypatch.setattr(traffic, "OLDEST_MAX", 8)
    (group,) = (await mq.traffic()).groups
    assert (group.lag, group.capped, group.oldest_capped) == (40, False, True)
    monkeypatch.setattr(traffic, "OLDEST_MAX", 40)
    (group,) = (await mq.traffic()).groups
    assert not group.oldest_capped


async def test_one_group_as_in_the_list_of_all(mq: Any) -> None:
    assert await mq.group("t", "g") is None
    await mq.publish_many("t", numbered(3))
    await mq.create_group("t", "g")
    await mq.create_group("t", "h", start="latest")
    assert await mq.groups("t") == [await mq.group("t", "g"), await mq.group("t", "h")]
    assert [one.created_at for one in (await mq.traffic()).groups] == [
        one.created_at for one in await mq.groups("t")
    ]
    assert await mq.group("u", "g") is None


async def test_one_queue_as_in_the_list_of_all(mq: Any) -> None:
    assert await mq.queue("emails").info() is None
    await mq.queue("emails").put(1)
    await mq.queue("emails", kind="urgent").put(1)
    await mq.queue("other").configure(keep_completed=True, rate=5, rate_period=60)
    found = await mq.queues()
    assert [one.name for one in found] == ["emails", "other"]
    assert found == [await mq.queue(one.name).info() for one in found]
    assert (await mq.queue("emails").info()) == found[0]


async def test_a_look_at_one_queue_reads_one(mq: Any, database: Database) -> None:
    """Of so many that it is worth an index."""
    await mq.queue("q7").put(7)
    others = ", ".join(f"({n}, 0, 'x{n}')" for n in range(10_000, 15_000))
    database.execute(f"INSERT INTO rowmq_queues (id, created_at, queue) VALUES {others}")
    seen: list[Any] = []
    mq._driver.observers.append(seen.append)
    assert await mq.queue("q7").info() is not None
    assert {one.name for one in seen} == {"queues.look", "queues.look_kinds"}
    reads = reads_of(database, seen)
    roughly = 4 if database.dialect == "sqlite" else 1  # which tells its steps, and not rows
    assert max(reads.values()) <= roughly * 50, reads
