"""A browser, and a server for it to look at: one of each for a process that runs tests.

The browser is Debian's Chromium, installed or unpacked as the servers of databases are. The sync
functions of Playwright keep to one thread and leave an event loop running there, which asynchronous
tests could not bear: so they have a thread to themselves, and tests that want a page run on it.
"""

import asyncio
import os
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from starlette.applications import Starlette
from starlette.routing import Mount

from rowmq.web import Settings, Site
from rowmq.web.routing import quote
from tests.servers.packages import Program, locate

__all__ = ["DESKTOP", "PHONE", "BrowserThread", "Served", "Server", "go", "watched"]

T = TypeVar("T")

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

LOOPBACK = "127.0.0.1"

START_SECONDS_MAX = 30

PACKAGES = ("chromium", "fonts-dejavu-core")

FONTS = """<?xml version="1.0"?>
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{root}/fonts-cache</cachedir>
  <match target="pattern">
    <edit name="family" mode="append_last"><string>sans-serif</string></edit>
  </match>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""

SWITCHES = ("--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb")

Work = tuple[Callable[[], Any], "Future[Any]"]


def chromium() -> Program:
    """The browser's program, which is installed or else unpacked."""
    return locate("chromium", folders=["usr/lib/chromium"], packages=PACKAGES)


def environment(program: Program) -> dict[str, str | float | bool]:
    """What an unpacked browser has to know: its libraries, and the fonts, which are in its root or,
    where they are installed already, the machine's.
    """
    if program.root is None:
        return dict(os.environ)
    file = program.root / "fonts.conf"
    staged = file.with_suffix(f".{os.getpid()}")  # others may be reading it
    staged.write_text(FONTS.format(root=program.root), encoding="utf-8")
    staged.replace(file)
    return {**os.environ, **program.environment, "FONTCONFIG_FILE": str(file)}


class BrowserThread:
    """A thread with a browser, which does what it is given."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="browser", daemon=True)
        self._browser: Browser | None = None
        self._thread.start()

    def call(self, function: Callable[..., T], **arguments: Any) -> T:
        """Call something on the browser's thread."""
        done: Future[T] = Future()
        self._work.put((lambda: function(**arguments), done))
        return done.result()

    def new_context(self, **options: Any) -> BrowserContext:
        """A fresh profile; to be called on the browser's thread."""
        assert self._browser is not None
        return self._browser.new_context(**options)

    def close(self) -> None:
        """End the browser."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        refused: BaseException | None = None
        try:
            program = chromium()
            with sync_playwright() as playwright:
                self._browser = playwright.chromium.launch(
                    executable_path=program.path,
                    args=SWITCHES,
                    chromium_sandbox=os.getuid() != 0,
                    env=environment(program),
                )
                self._serve()
                self._browser.close()
        except Exception as error:  # noqa: BLE001 - whoever asks is told
            refused = error
        if refused is not None:
            while (work := self._work.get()) is not None:
                work[1].set_exception(refused)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            function, done = work
            try:
                done.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is
                done.set_exception(error)


class Served:
    """A site that can be looked at."""

    def __init__(self, site: Site, root: str) -> None:
        self.site = site
        self.root = root

    def url(self, *segments: object, **query: object) -> str:
        """The URL of a page."""
        path = "/".join(quote(str(segment)) for segment in segments)
        return f"{self.root}/{path}" + (f"?{urlencode(query)}" if query else "")


class Server:
    """Serves the site of the test that runs."""

    def __init__(self) -> None:
        self._site: Site | None = None
        self._app: Any = None
        self._socket = socket.socket()
        self._socket.bind((LOOPBACK, 0))
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._answer, interface="asgi3", lifespan="off", ws="none", log_config=None
            )
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()
        assert self._started.wait(START_SECONDS_MAX)

    @cached_property
    def root(self) -> str:
        """Where it can be reached."""
        return f"http://{LOOPBACK}:{self._socket.getsockname()[1]}"

    def show(self, source: Any, *, below: str = "", **settings: Any) -> Served:
        """Serve a database from now on; `below` a prefix, in an application of somebody's."""
        self.hide()
        self._site = Site(source, Settings(**settings))
        self._app = Starlette(routes=[Mount(below, app=self._site)]) if below else self._site
        return Served(self._site, self.root + below)

    def hide(self) -> None:
        """Serve nothing."""
        site, self._site = self._site, None
        if site is not None:
            asyncio.run_coroutine_threadsafe(site.close(), self._loop).result()

    def close(self) -> None:
        """End serving."""
        self.hide()
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._site is not None, "no test serves a site now"
        await self._app(scope, receive, send)

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._started.set)
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())


def go(page: Page, url: str) -> str:
    """Go to a page that must be there; what the server answered."""
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == 200, f"{answer.status} for {url}"
    return answer.text()


def watched(page: Page) -> list[str]:
    """What goes wrong in a page from now on: errors of scripts, and what the policy refused.
    Answers that are errors are not: a test may want some.
    """
    troubles: list[str] = []

    def hear(message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            troubles.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    return troubles
