"""Looks at every page and every GET call of the API, and tells how long each SQL statement took:

    python -m tests.web.seeding sqlite:///large.db --jobs 350000 --archived 100000 --letters 100000
    python -m tests.web.looking sqlite:///large.db

It is no part of the tests. It fails if a statement takes longer than it may, in the median of a few
visits. What a doctor asks takes as long as it has to, and is told, but not judged.
"""

import argparse
import asyncio
import contextlib
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote

from rich.console import Console
from rich.table import Table

import rowmq
from rowmq.store.statement import Statement
from rowmq.web import Settings, Site
from tests.web.visiting import Visitor, visiting

MS_MAX = 100.0

SHOWN = 25

NOT_JUDGED = ("doctor.",)

PARAM = re.compile(r"\{([a-z_]+)\}")

QUERIES: dict[str, tuple[str, ...]] = {
    "/topics/{topic}/message": ("key={key}&offset=1",),
    "/topics/{topic}/messages": ("", "key={key}", "id={id}", "at=2026-01-01T00:00"),
    "/topics/{topic}/groups/{group}/seek": ("", "to=earliest", "to=time&at={at}"),
    "/topics/{topic}/letters": ("", "group={group}", "id={id}"),
    "/topics/{topic}/letters/redrive": ("group={group}&all=yes",),
    "/topics/{topic}/letters/purge": ("group={group}&all=yes",),
    "/queues/{queue}": ("", "state=pending", "state=failed", "state=completed", "key=none"),
    "/jobs": ("", "id={job}"),
    "/api/v1/topics/{topic}/groups/{group}/seek": ("to=earliest", "at={at}:00Z&limit=500"),
    "/api/v1/queues/{queue}/jobs": ("", "state=failed", "state=completed"),
}
"""What pages and calls are asked with; all others with nothing."""


class Time(NamedTuple):
    """How long a statement took, and on which page."""

    statement: str
    page: str
    ms: float


class Watch:
    """Times the statements of the page that is looked at."""

    def __init__(self) -> None:
        self.slowest: dict[str, float] = {}

    def __call__(self, statement: Statement) -> Callable[[BaseException | None], None]:
        """A statement begins."""
        began = perf_counter()

        def ended(_: BaseException | None) -> None:
            ms = (perf_counter() - began) * 1_000
            self.slowest[statement.name] = max(self.slowest.get(statement.name, 0.0), ms)

        return ended

    def take(self) -> dict[str, float]:
        """The slowest of each name since the last time."""
        taken, self.slowest = self.slowest, {}
        return taken


def named_in(mq: rowmq.RowMQ) -> dict[str, str]:
    """What stands for the parameters of paths and queries."""
    letter = mq.browse_letters("orders", group="billing", limit=1).letters[0]
    message = next(one for one in mq.browse("orders", limit=50).messages if one.key)
    return {
        "topic": "orders",
        "group": letter.group,
        "letter": letter.handle,
        "id": letter.message.id or "",
        "key": message.key or "",
        "queue": "emails",
        "job": str(mq.queue("emails").find(limit=1).jobs[0].id),
        "at": f"{message.published_at:%Y-%m-%dT%H:%M}",
        "schedule": "none",
        "worker": "none",
    }


def visits(site: Site, names: dict[str, str]) -> Iterator[str]:
    """Everything that can be looked at, as URLs."""
    for route in site.routes.all:
        if route.method != "GET" or route.path.startswith("/static"):
            continue
        known = names | ({"id": names["job"]} if "/jobs/" in route.path else {})
        filled = {name: quote(value, safe="") for name, value in known.items()}
        path = PARAM.sub(lambda match, filled=filled: filled[match[1]], route.path)  # type: ignore[misc]
        for query in QUERIES.get(route.path, ("",)):
            yield f"{path}?{query.format(**filled)}" if query else path


async def look(visitor: Visitor, site: Site, watch: Watch, url: str, times: int) -> list[Time]:
    """Visit a page some times, each time as if nobody had looked before."""
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(times):
        site.sampler.expire()
        watch.take()
        answer = await visitor.get(url)
        if answer.status_code >= 500 or answer.status_code in {400, 422}:
            raise SystemExit(f"{url} answers {answer.status_code}: {answer.text[:500]}")
        for statement, ms in watch.take().items():
            found[statement].append(ms)
    return [Time(name, url, statistics.median(each)) for name, each in found.items()]


async def look_at_all(url: str, times: int) -> list[Time]:
    """All pages, one after the other."""
    with rowmq.connect(url) as mq:
        names = named_in(mq)
    watch = Watch()
    found: list[Time] = []
    async with contextlib.AsyncExitStack() as stack:
        client = await rowmq.connect_async(url)
        stack.push_async_callback(client.close)
        client._driver.timers.append(watch)
        site = Site(client, Settings())
        stack.push_async_callback(site.close)
        visitor = await stack.enter_async_context(visiting(site))
        for page in visits(site, names):
            found += await look(visitor, site, watch, page, times)
    return found


def table_of(found: list[Time]) -> Table:
    """The slowest statements, each with the page where it is slowest."""
    slowest: dict[str, Time] = {}
    for one in sorted(found, key=lambda one: one.ms):
        slowest[one.statement] = one
    table = Table("statement", "ms", "slowest on", title=f"of {len(slowest)} statements")
    for one in sorted(slowest.values(), key=lambda one: -one.ms)[:SHOWN]:
        table.add_row(one.statement, f"{one.ms:,.1f}", one.page)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ms", type=float, default=MS_MAX)
    chosen = parser.parse_args()
    found: list[Any] = asyncio.run(look_at_all(chosen.url, chosen.times))
    Console(width=140).print(table_of(found))
    judged = (one for one in found if not one.statement.startswith(NOT_JUDGED))
    slow = {one.statement for one in judged if one.ms > chosen.ms}
    if slow:
        sys.exit(f"slower than {chosen.ms:g} ms: {', '.join(sorted(slow))}")


if __name__ == "__main__":
    main()
