"""What Prometheus is given by a site, and who may have it."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

import rowmq
from rowmq import Role
from rowmq.web import Settings, Site
from tests.databases import Database
from tests.web.visiting import ELSEWHERE, visiting


@pytest.fixture
async def site(database: Database) -> AsyncIterator[Site]:
    found = Site(database.url, Settings())
    yield found
    await found.close()


async def test_prometheus_reads_what_the_database_and_the_site_do(
    site: Site, broker: rowmq.RowMQ
) -> None:
    broker.create_group("<b>orders</b>", "billing")
    broker.publish_many("<b>orders</b>", [rowmq.Message(payload=n) for n in range(3)])
    broker.queue("emails").put_many([1, 2])
    async with visiting(site) as visitor:
        answer = await visitor.get("/metrics")
        again = await visitor.get("/metrics")
    assert answer.status_code == again.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["cache-control"] == "no-store"
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(again.text)
        for sample in family.samples
    }
    assert found["rowmq_group_lag", "billing", "<b>orders</b>"] == 3
    assert found["rowmq_queue_jobs", "emails", "pending"] == 2
    assert found["rowmq_database_answers",] == 1
    assert found["rowmq_pool_size",] >= 1
    assert any(name[0] == "rowmq_statement_seconds_bucket" for name in found)


async def test_a_scraper_is_no_browser(site: Site, broker: rowmq.RowMQ) -> None:
    """It is refused plainly, and not sent to where people sign in."""
    reader = broker.access.create_token("prometheus", roles=[Role.READ])
    some = broker.access.create_token("some", roles=[Role.READ], topics=["orders"])
    producer = broker.access.create_token("producer", roles=[Role.PRODUCE])
    for token, status in ((None, 401), ("wrong", 401), (producer, 403), (some, 403), (reader, 200)):
        async with visiting(site, remote=ELSEWHERE, token=token) as visitor:
            answer = await visitor.get("/metrics")
        assert answer.status_code == status, answer.text
        if status != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert "rowmq_" not in answer.text


async def test_an_outage_of_the_database_is_told(broker: rowmq.RowMQ, database: Database) -> None:
    site = Site(database.url, Settings())
    async with visiting(site) as visitor:
        assert "rowmq_database_answers 1.0" in (await visitor.get("/metrics")).text
        figures = site.scrapes._figures
        assert figures is not None
        figures._tried_at = float("-inf")  # as if some seconds had passed
        database.execute("ALTER TABLE rowmq_partitions RENAME TO gone")
        told = (await visitor.get("/metrics")).text
        database.execute("ALTER TABLE gone RENAME TO rowmq_partitions")
    await site.close()
    assert "rowmq_database_answers 0.0" in told
    assert "rowmq_pool_size" in told
    assert broker.topics() == []
