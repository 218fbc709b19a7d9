"""Fixtures of the dashboard's tests: a database, a site on it, and a browser's page.

A test that wants `page` is run on the browser's thread, and fails if a script of a page did, or if
the policy of a page had to refuse something.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

import rowmq
from tests.databases import Database, Databases
from tests.web.browser import DESKTOP, BrowserThread, Served, Server, watched

PAGE_SECONDS_MAX = 10


@pytest.fixture(params=["sqlite"])
def database(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    """SQLite; a test that is parametrized with others gets these."""
    found = databases.get(request.param)
    yield found
    databases.give_back(found)


@pytest.fixture
def broker(database: Database) -> Iterator[rowmq.RowMQ]:
    """A client, to put things there and to see what an action did."""
    with rowmq.connect(database.url) as client:
        yield client


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.fixture
def serve(server: Server, database: Database) -> Iterator[Callable[..., Served]]:
    """Serves the test's database, with settings of the test's choice."""
    yield lambda **settings: server.show(database.url, **settings)
    server.hide()


@pytest.fixture
def dashboard(serve: Callable[..., Served]) -> Served:
    """The test's database, served."""
    return serve()


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserThread]:
    found = BrowserThread()
    yield found
    found.close()


@pytest.fixture
def page(browser: BrowserThread, serve: Any) -> Iterator[Page]:  # noqa: ARG001 - the site goes last
    """A page of a browser that nobody has used yet."""

    def open_page() -> tuple[Page, list[str]]:
        context = browser.new_context(
            viewport=DESKTOP, color_scheme="light", reduced_motion="reduce"
        )
        context.set_default_timeout(PAGE_SECONDS_MAX * 1000)
        opened = context.new_page()
        return opened, watched(opened)

    opened, troubles = browser.call(open_page)
    yield opened
    browser.call(opened.context.close)
    assert troubles == []


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that has a page where its page is."""
    thread = pyfuncitem.funcargs.get("browser")
    if "page" not in pyfuncitem.funcargs or not isinstance(thread, BrowserThread):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in wanted}
    thread.call(pyfuncitem.obj, **arguments)
    return True
