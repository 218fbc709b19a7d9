"""Takes pictures of the pages, light and dark, by a real browser:

    python -m tests.web.seeding sqlite:///shop.db --live 600 &
    python -m tests.web.picturing sqlite:///shop.db docs/assets/dashboard --watch 120
    python -m tests.web.picturing sqlite:///shop.db /tmp/pictures --every

The first ones are those of the documentation. With `--every` it is every page, on a desk and on a
phone, to be looked at. Charts begin when somebody looks: `--watch` says for how many seconds.
"""

import argparse
import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import Page, ViewportSize, sync_playwright
from rich.console import Console
from rich.progress import track

import rowmq
from tests.web.browser import DESKTOP, PHONE, SWITCHES, Served, Server, chromium, environment, go

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

QUALITY = 80

SETTLED_MS = 300


class Picture(NamedTuple):
    """A page, and how much of it is to be seen."""

    path: tuple[object, ...]
    query: tuple[tuple[str, str], ...] = ()
    height: int = DESKTOP["height"]


def told(mq: rowmq.RowMQ) -> dict[str, Picture]:
    """The pictures of the documentation, by name."""
    tried = mq.queue("payments").find(limit=1).jobs[0].id
    group = ("topics", "orders", "groups", "search")
    return {
        "overview": Picture((), height=1_180),
        "group": Picture(("topics", "orders", "groups", "billing"), height=1_000),
        "seek": Picture((*group, "seek"), (("to", "earliest"),)),
        "letters": Picture(("topics", "orders", "letters")),
        "jobs": Picture(("queues", "emails"), height=800),
        "job": Picture(("queues", "payments", "jobs", tried)),
        "workers": Picture(("workers",), height=640),
    }


def every(mq: rowmq.RowMQ) -> dict[str, Picture]:
    """All pages that can be looked at in a shop, and in an empty database."""
    pages = ["topics", "letters", "queues", "jobs", "schedules", "workers", "spark", "doctor"]
    found = {name: Picture((name,)) for name in [*pages, "tokens", "audit"]}
    found |= {"overview": Picture(())}
    if not mq.topics():
        return found
    orders = ("topics", "orders")
    letter = mq.dead_letters("orders", limit=1)[0]
    of_group = (("group", letter.group), ("all", "yes"))
    inside = {
        "topic": Picture(orders),
        "topic-settings": Picture((*orders, "settings")),
        "messages": Picture((*orders, "messages")),
        "message": Picture(("topics", "mails", "messages")),
        "publish": Picture((*orders, "publish")),
        "groups": Picture((*orders, "groups")),
        "letter": Picture((*orders, "letters", "of", letter.handle)),
        "edit": Picture((*orders, "letters", "of", letter.handle, "edit")),
        "redrive": Picture((*orders, "letters", "redrive"), of_group),
        "purge": Picture((*orders, "letters", "purge"), of_group),
        "put": Picture(("queues", "emails", "put")),
        "queue-settings": Picture(("queues", "emails", "settings")),
    }
    for row in mq.cron.list()[:1]:
        inside["schedule"] = Picture(("schedules", row.name))
    for worker in mq.workers()[:1]:
        inside["worker"] = Picture(("workers", worker.name))
    return found | told(mq) | inside


@contextlib.contextmanager
def opened() -> Iterator[Page]:
    """A page of a browser."""
    program = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program.path, args=SWITCHES, env=environment(program)
        )
        yield browser.new_page(reduced_motion="reduce")
        browser.close()


def take(page: Page, served: Served, picture: Picture, file: Path, *, width: int) -> None:
    """One picture, as WebP."""
    size: ViewportSize = {"width": width, "height": picture.height}
    page.set_viewport_size(size)
    go(page, served.url(*picture.path, **dict(picture.query)))
    page.wait_for_timeout(SETTLED_MS)
    session = page.context.new_cdp_session(page)
    shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    session.detach()
    file.write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--watch", type=float, default=0.0)
    parser.add_argument("--every", action="store_true")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with Server() as server, opened() as page, rowmq.connect(chosen.url) as mq:
        served = server.show(chosen.url)
        go(page, served.url())
        page.wait_for_timeout(chosen.watch * 1_000)
        pictures = (every if chosen.every else told)(mq)
        sizes = {"": DESKTOP["width"]} | ({"-phone": PHONE["width"]} if chosen.every else {})
        for name, picture in track(pictures.items(), description="pictures", console=console):
            for ending, width in sizes.items():
                for scheme in SCHEMES:
                    page.emulate_media(color_scheme=scheme)
                    file = chosen.folder / f"{name}{ending}-{scheme}.webp"
                    take(page, served, picture, file, width=width)


if __name__ == "__main__":
    main()
