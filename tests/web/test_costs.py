"""What pages that renew themselves cost: beginnings of payloads, and kinds once for all."""

from typing import Any

import rowmq
from rowmq.web.kinds import KEPT_SECONDS, Kinds
from tests.consuming import statements
from tests.databases import Database
from tests.web.operating import operating, text_of
from tests.web.scenes import give_up

LARGE = 200_000

LISTS = (("topics", "t", "messages"), ("topics", "t", "letters"), ("queues", "q"), ("jobs",))


async def test_lists_read_the_beginnings_of_payloads(
    database: Database, broker: rowmq.RowMQ
) -> None:
    kept = {"begins": 1, "rest": "x" * LARGE, "ends": 1}
    hidden = {"password": "hunter2", "rest": "x" * LARGE}
    broker.publish_many("t", [rowmq.Message(payload=one) for one in (kept, hidden)])
    broker.queue("q").put_many([kept, hidden], delay=60)
    broker.queue("failing").put_many([kept, hidden])
    for job in broker.queue("failing").try_poll_many(2):
        job.reject(error="boom")
    give_up(broker, "t", "g", ["boom"] * 2)
    async with operating(database.url) as operator:
        mq = await operator.site.connect()
        for path in LISTS:
            with statements(mq) as sent:
                page = await operator.read(*path)
            assert '{"begins":1' in text_of(page).replace(" ", "")
            assert "•••" in page
            assert "hunter2" not in page
            names = {statement.name for statement in sent}
            assert names & {"topics.beginnings", "archive.begin", "sorting.beginnings"}, path
            assert not names & {"topics.read", "archive.fetch", "sorting.read"}, path


async def test_pages_that_renew_themselves_leave_counting_to_the_sampler(
    database: Database, broker: rowmq.RowMQ
) -> None:
    broker.publish_many("t", [rowmq.Message(payload=n, key=f"k{n}") for n in range(20)])
    broker.configure_topic("t", retention=3600)
    broker.publish("plain", 1)
    async with operating(database.url) as operator:
        mq = await operator.site.connect()
        await operator.site.sampler.look(mq)
        for path in (("topics", "t"), ("topics", "plain"), ("spark",)):
            with statements(mq) as sent:
                shown = await operator.see(*path)
            names = {statement.name for statement in sent}
            assert not {name for name in names if name.startswith(("sweeping.", "pipelines."))}
            if path == ("topics", "t"):
                assert "Messages 20" in shown
                assert "Kept 1 h" in shown
            if path == ("topics", "plain"):
                assert "Kept for ever" in shown


async def test_kinds_are_found_once_for_all_renewals(
    database: Database, broker: rowmq.RowMQ
) -> None:
    broker.publish_many("t", [rowmq.Message(payload=n) for n in range(20)])
    give_up(broker, "t", "g", ["ValueError: 1"])
    now = 0.0
    kinds = Kinds(clock=lambda: now)
    async with await rowmq.connect_async(database.url) as mq:

        async def counts(*, lately: bool, group: str | None = None) -> list[Any]:
            found = await kinds.look(mq, "t", group, lately=lately)
            return [kind.count for kind in found]

        assert await counts(lately=True) == [1]
        give_up(broker, "t", "g", ["ValueError: 2"])
        now = KEPT_SECONDS - 1
        assert await counts(lately=True) == [1], "as it was lately"
        assert await counts(lately=True, group="g") == [2], "of a group by itself"
        assert await counts(lately=False) == [2], "who opens a page sees it as it is"
        assert await counts(lately=True) == [2]
        now += KEPT_SECONDS + 1
        give_up(broker, "t", "g", ["ValueError: 3"])
        assert await counts(lately=True) == [3]
        assert len(kinds._found) == 1, "what nobody looks at is forgotten"
