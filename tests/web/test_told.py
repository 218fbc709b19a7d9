"""What pages say: of one and of several, of what is not to be done here, and of where one is."""

from datetime import timedelta
from functools import partial

import msgspec

import rowmq
from rowmq.store.workers import Running, WorkerFacts
from tests.databases import Database
from tests.web.operating import operating, text_of
from tests.web.scenes import give_up, shop
from tests.web.visiting import ELSEWHERE, visiting

NAVIGATION = 'aria-label="Main"'


async def test_a_page_that_is_not_there_keeps_the_navigation_for_who_is_known(
    database: Database, broker: rowmq.RowMQ
) -> None:
    async with operating(database.url) as operator:
        for path in (("nowhere",), ("queues", "nope"), ("topics", "nope", "messages")):
            answer = await operator.get(*path)
            assert answer.status_code == 404
            assert NAVIGATION in answer.text, path
            assert "Audit trail" in answer.text, "what administrators may go to"
        assert 'aria-current="page"' not in (await operator.get("nowhere")).text
        secret = broker.access.create_token("ann", roles=["read"])
        async with visiting(operator.site, remote=ELSEWHERE) as stranger:
            assert NAVIGATION not in (await stranger.get("/nowhere")).text
            await stranger.sign_in(secret)
            page = (await stranger.get("/nowhere")).text
            assert NAVIGATION in page
            assert "Audit trail" not in page


async def test_a_read_only_site_has_no_tab_for_what_cannot_be_done(
    database: Database, broker: rowmq.RowMQ
) -> None:
    shop(broker)
    for read_only in (False, True):
        async with operating(database.url, read_only=read_only) as operator:
            for path, tab in ((("queues", "emails"), "put"), (("topics", "orders"), "publish")):
                page = await operator.read(*path)
                assert (f'{operator.path(*path)}/{tab}"' in page) is not read_only, tab


async def test_what_came_lately_is_said_to_have_come_within_a_time(
    database: Database, broker: rowmq.RowMQ
) -> None:
    broker.publish_many("orders", [rowmq.Message(payload=n) for n in range(9)])
    give_up(broker, "orders", "billing", ["boom"])
    async with operating(database.url) as operator:
        sampler = operator.site.sampler
        await sampler.look(await operator.site.connect())
        at, began = sampler._traffics[0]
        earlier = began.at - timedelta(seconds=151)
        sampler._traffics[0] = (at, msgspec.structs.replace(began, at=earlier))
        give_up(broker, "orders", "billing", ["boom", "boom"])
        sampler.expire()
        assert "2 more in the last 2 min 3" in await operator.see("letters")
        assert "2 came in the last 2 min 3" in await operator.see()


async def test_the_overview_counts_handlers_in_words(
    database: Database, broker: rowmq.RowMQ
) -> None:
    broker.queue("emails").put(1)
    async with operating(database.url) as operator:
        for count, said in ((1, "1 handler at work"), (2, "2 handlers at work")):
            running = [
                Running(
                    handler="shop.send",
                    source="emails",
                    id=str(n),
                    key=None,
                    attempt=1,
                    seconds=1.0,
                    source_type="queue",
                )
                for n in range(count)
            ]
            facts = WorkerFacts(app="shop", host="h", pid=7, version="1", handlers=("shop.send",))
            beat = partial(broker._store.workers.beat, "h-7-a", facts, running, lease_us=60_000_000)
            broker._run(beat)
            operator.site.sampler.expire()
            page = await operator.read()
            assert said in text_of(page)
            assert "0 processing" in text_of(page), "nobody has claimed any: it is another figure"
