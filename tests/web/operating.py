"""Somebody who operates a dashboard without a browser: reads pages, fills in and sends forms.

What is sent is what the page's own form would send: a button that is not there cannot be pressed.
"""

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rowmq.web import Settings, Site
from rowmq.web.routing import quote
from tests.web.visiting import Visitor, visiting

__all__ = ["Operator", "form_of", "operating", "text_of"]

TAG = re.compile(r"<[^>]*>")
FORM = re.compile(r"<form\b([^>]*)>(.*?)</form>", re.DOTALL)
ATTRIBUTE = re.compile(r'([a-z-]+)="([^"]*)"')
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
ACTION = re.compile(r'formaction="([^"]*)"')


class Operator:
    """Somebody who looks at pages and presses buttons."""

    def __init__(self, client: Visitor, site: Site) -> None:
        self.client = client
        self.site = site

    def path(self, *segments: object) -> str:
        """The path of a page."""
        return "/" + "/".join(quote(str(segment)) for segment in segments)

    async def get(self, *segments: object, **query: Any) -> httpx.Response:
        """Ask for a page."""
        return await self.client.get(self.path(*segments), params=query)

    async def read(self, *segments: object, **query: Any) -> str:
        """A page that is there, as HTML."""
        answer = await self.get(*segments, **query)
        assert answer.status_code == 200, (answer.status_code, text_of(answer.text)[-500:])
        return answer.text

    async def see(self, *segments: object, **query: Any) -> str:
        """A page that is there, as words."""
        return text_of(await self.read(*segments, **query))

    async def press(
        self, page: str, *action: object, fields: dict[str, Any] | None = None
    ) -> httpx.Response:
        """Send the form of a page that does this, with what was filled in; where it led to."""
        sent = form_of(page, self.path(*action)) | (fields or {})
        answer = await self.client.post(
            self.path(*action), data=sent, params=query_of(page, action)
        )
        if answer.status_code == 303:
            return await self.client.get(answer.headers["location"])
        return answer


def query_of(page: str, action: tuple[object, ...]) -> dict[str, str]:
    """What stands after the question mark of a form's action, if anything does."""
    ending = html.escape("/" + "/".join(quote(str(segment)) for segment in action), quote=True)
    found = re.search(re.escape(ending) + r'\?from=list"', page)
    return {"from": "list"} if found else {}


def form_of(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the form that does something."""
    for attributes, inside in FORM.findall(page):
        told = dict(ATTRIBUTE.findall(attributes))
        goals = [told.get("action", ""), *ACTION.findall(inside)]
        if told.get("method") == "post" and action in [
            html.unescape(goal).partition("?")[0] for goal in goals
        ]:
            return {name: html.unescape(value) for name, value in HIDDEN.findall(inside)}
    raise AssertionError(f"no form of this page does {action}")


def text_of(page: str) -> str:
    """What a page says, with single spaces."""
    return " ".join(html.unescape(TAG.sub(" ", page)).split())


@asynccontextmanager
async def operating(
    source: Any, *, token: str | None = None, **settings: Any
) -> AsyncIterator[Operator]:
    """Somebody at this machine, or with a token, at a site of a database."""
    site = Site(source, Settings(**settings))
    async with visiting(site, token=token) as client:
        yield Operator(client, site)
    await site.close()
