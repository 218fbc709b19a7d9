"""Whatever somebody called things, or put after a question mark, is text on every page."""

import re
from functools import partial

import pytest

import rowmq
from rowmq.store.workers import Running, WorkerFacts
from rowmq.web import Settings, Site, dashboard
from rowmq.web.routing import quote
from tests.databases import Database
from tests.web.visiting import visiting

PAGES = [
    route
    for route in Site("sqlite://", Settings()).routes.all
    if route.method == "GET" and not route.is_for_programs and route.params != ("file",)
]

EVIL = (
    "\"'><img src=x onerror=alert(1)></textarea></title><script>alert(2)</script>"
    "{{1234*5678}}/..%2f"
)

ASKED = (
    *("action", "after", "all", "at", "before", "examine", "from", "group", "header", "id", "key"),
    *("kind", "matching", "name", "new", "next", "offset", "prefix", "put", "shard", "since"),
    *("state", "until", "who"),
)
"""What pages look for in a query, and some more."""

RUNS = re.compile(r'<img|<script(?! src="/static/live\.js)|</textarea></title>|7006652')
"""What would have become of it, if it was not escaped, or was taken for a template."""


@pytest.fixture
def named(broker: rowmq.RowMQ) -> dict[str, str]:
    """One of everything, called like that; and what is in paths."""
    broker.publish(EVIL, {EVIL: [EVIL]}, key=EVIL, id=EVIL, headers={EVIL: EVIL})
    broker.publish(EVIL, EVIL, headers={"note": EVIL})
    with broker.subscribe(EVIL, group=EVIL, name=EVIL) as sub:
        for delivery in sub.poll(timeout=5):
            delivery.reject(error=f"{EVIL}\n{EVIL}")
    work = broker.queue(EVIL)
    job = work.put(EVIL, key=EVIL, headers={EVIL: EVIL})
    claimed = work.try_poll()
    assert claimed is not None
    claimed.reject(error=EVIL)
    work.put({EVIL: EVIL}, ordering_key=EVIL)
    broker.cron.install_periodic(EVIL, 60, queue=EVIL, payload=EVIL, tend=False)
    facts = WorkerFacts(app=EVIL, host=EVIL, pid=7, version=EVIL, handlers=(EVIL,))
    running = Running(
        handler=EVIL, source=EVIL, id=EVIL, key=EVIL, attempt=1, seconds=1.0, note=EVIL
    )
    beat = partial(broker._store.workers.beat, EVIL, facts, [running], lease_us=60_000_000)
    broker._run(beat)
    broker.access.create_token(EVIL, roles=["read"], topics=[EVIL], queues=[EVIL])
    broker.access.record("x.y", who=EVIL, target=EVIL, details={EVIL: EVIL}, remote=EVIL[:90])
    names = dict.fromkeys(("topic", "queue", "group", "schedule", "worker"), EVIL)
    (letter, *_) = (one for one in broker.dead_letters(EVIL) if one.message.id == EVIL)
    return names | {"id": str(job.id), "letter": letter.handle}


@pytest.mark.parametrize("evil_query", [False, True])
async def test_what_others_wrote_is_text_on_every_page(
    database: Database, broker: rowmq.RowMQ, named: dict[str, str], evil_query: bool
) -> None:
    secret = broker.access.create_token("ann", roles=["admin"])
    query = dict.fromkeys(ASKED, EVIL) if evil_query else {}
    site = dashboard(database.url)
    seen, wrong = set(), []
    async with visiting(site, token=secret) as visitor:
        for route in PAGES:
            path = "/".join(quote(named[s[1:-1]]) if s[0] == "{" else s for s in route.segments)
            place = {"key": EVIL, "offset": "1"} if route.path.endswith("/message") else {}
            if route.path.endswith(("/redrive", "/purge")):
                place = {"group": EVIL, "all": "yes"}
            answer = await visitor.get(f"/{path}", params=place | query)
            assert answer.status_code in ((200, 303, 400, 404, 422) if evil_query else (200,)), path
            found = RUNS.search(answer.text)
            if found:
                at = found.start()
                wrong.append(f"{route}: {answer.text[max(0, at - 90) : at + 60]!r}")
            if "&lt;img src=x" in answer.text:
                seen.add(route.path)
    await site.close()
    assert wrong == []
    if not evil_query:
        assert {route.path for route in PAGES} - seen <= {"/login", "/health", "/doctor", "/spark"}
