"""Every section that is live renews itself by what the page says it is asked for by."""

import html
import re

import rowmq
from tests.databases import Database
from tests.web.operating import operating, text_of
from tests.web.scenes import shop

LIVE = re.compile(r'data-live="([^"]*)" data-part="([^"]*)"')


async def test_every_live_section_can_be_asked_for_by_itself(
    database: Database, broker: rowmq.RowMQ
) -> None:
    """What a page has at hand has to be at hand for its blocks, too."""
    shop(broker)
    broker.cron.install_periodic("beat", 60, queue="emails", tend=False)
    paths: list[tuple[object, ...]] = [
        (),
        ("topics",),
        ("topics", "orders"),
        ("topics", "orders", "messages"),
        ("topics", "orders", "groups"),
        ("topics", "orders", "groups", "billing"),
        ("topics", "orders", "letters"),
        ("letters",),
        ("queues",),
        ("queues", "emails"),
        ("queues", "emails", "jobs", broker.queue("emails").live()[0].id),
        ("jobs",),
        ("schedules",),
        ("schedules", "beat"),
        ("workers",),
        ("spark",),
        ("audit",),
    ]
    async with operating(database.url) as operator:
        for path in paths:
            page = await operator.read(*path)
            found = LIVE.findall(page)
            assert found, path
            for url, part in found:
                headers = {"X-Fragment": part}
                answer = await operator.client.get(html.unescape(url), headers=headers)
                assert answer.status_code == 200, (path, part)
                assert "<html" not in answer.text
                assert text_of(answer.text)[:40] in text_of(page), (path, part)
