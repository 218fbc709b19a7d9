"""Templates to pages. Everything that is put into one is escaped, unless it is markup of our own.

Templates have the request's own things at hand, such as `url`, `can` and `csrf_field`, also in the
macros of `PARTS`: while a page is rendered, which takes no waiting, `current` is its request.

A live section is a block of a page. Its script asks for the page again with a header that names the
block, and gets that block only.
"""

import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import escape

from rowmq.markup import Markup, el, raw
from rowmq.rights import Role
from rowmq.web import charts, viewing, wording
from rowmq.web.assets import asset_of
from rowmq.web.icons import icon

if TYPE_CHECKING:
    from rowmq.web.asking import Ask, Flash
    from rowmq.web.callers import Caller

__all__ = ["FRAGMENT", "render"]

FRAGMENT = "x-fragment"
"""The header that asks for one block of a page."""

THEMES = frozenset({"light", "dark"})
THEME_COOKIE = "rowmq_theme"

EVERY_MS = 2_000
"""How often a live section is asked for again."""

PARTS = ("parts", "topics_parts", "jobs_parts", "schedules_parts", "workers_parts")
"""Templates of macros, which all others have at hand under these names. What a page imports itself
is not there when one block of it is asked for.
"""

BLOCK = re.compile(r"[a-z_]{1,40}")

current: ContextVar["Ask"] = ContextVar("rowmq.web.rendering.current")


class Item(NamedTuple):
    """An entry of the navigation; `letter` goes there after a g."""

    label: str
    path: tuple[str, ...]
    icon: str
    letter: str
    admin: bool = False
    here: bool = False


class Missing(jinja2.StrictUndefined):
    """What is not there is an error, as a name that is spelled wrong; but a field that a form or a
    mapping does not have is nothing.
    """

    def __bool__(self) -> bool:  # type: ignore[override]
        self._check()
        return False

    def __str__(self) -> str:  # type: ignore[override]
        self._check()
        return ""

    def _check(self) -> None:
        if not isinstance(self._undefined_obj, Mapping):
            self._fail_with_undefined_error()


MENU = (
    (
        Item("Overview", (), "overview", "o"),
        Item("Topics", ("topics",), "topics", "t"),
        Item("Dead letters", ("letters",), "letters", "l"),
    ),
    (
        Item("Queues", ("queues",), "queues", "q"),
        Item("Schedules", ("schedules",), "schedules", "s"),
    ),
    (
        Item("Workers", ("workers",), "workers", "w"),
        Item("Spark", ("spark",), "spark", "p"),
        Item("Doctor", ("doctor",), "doctor", "d", admin=True),
    ),
    (
        Item("Tokens", ("tokens",), "tokens", "k", admin=True),
        Item("Audit trail", ("audit",), "audit", "a", admin=True),
    ),
)
"""Where one can go, in groups. What is for administrators of everything is shown to nobody else."""


def render(ask: "Ask", template: str, **context: Any) -> str:
    """A page, or the block of it that was asked for."""
    token = current.set(ask)
    try:
        page = environment().get_template(template)
        block = ask.request.headers.get(FRAGMENT, "")
        if BLOCK.fullmatch(block) and block in page.blocks:
            return "".join(page.blocks[block](page.new_context(context)))
        return page.render(context)
    finally:
        current.reset(token)


@cache
def environment() -> jinja2.Environment:
    """The templates, compiled when they are first used."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("rowmq.web"),
        autoescape=True,
        undefined=Missing,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.globals |= GLOBALS
    env.filters |= FILTERS
    for name in PARTS:
        env.globals[name] = env.get_template(f"{name}.html").module
    return env


# --- what templates have at hand ------------------------------------------------------------------


def url(*segments: object, **query: object) -> str:
    """The URL of a page: each segment and value is quoted; None in the query is left out."""
    return current.get().url(*segments, **query)


def static(name: str) -> str:
    """The URL of a file of the package, which changes when the file does."""
    return current.get().url("static", name, v=asset_of(name).version)


def live(block: str, every: int = EVERY_MS) -> Markup:
    """The attributes of a section that renews itself: it holds this block, and nothing else."""
    attributes = {
        "id": f"live-{block}",
        "data-live": address(current.get()),
        "data-part": block,
        "data-every": every,
    }
    return raw(" ".join(f'{name}="{escape(value)}"' for name, value in attributes.items()))


def address(ask: "Ask") -> str:
    """Where this page is, as its own links would name it."""
    steps = (ask.path.get(step.strip("{}"), step) for step in ask.route.segments)
    query = ask.request.url.query
    return ask.url(*steps) + (f"?{query}" if query else "")


def can(role: str) -> bool:
    """Whether the caller may do such things now: forms that would be refused are not shown."""
    ask = current.get()
    return not ask.settings.read_only and ask.caller.may(Role(role))


def flashes() -> Sequence["Flash"]:
    """What is to be said about the action before."""
    return current.get().flashes


def read_only() -> bool:
    """Whether nobody can change anything here."""
    return current.get().settings.read_only


def signed_in() -> bool:
    """Whether one can sign out."""
    return current.get().signed_in


def who() -> "Caller":
    """Who asks."""
    return current.get().caller


def csrf_field() -> Markup:
    """What every form that writes has in it."""
    return el("input", type="hidden", name="csrf", value=current.get().csrf)


def theme() -> str:
    """Light or dark, if somebody chose; else it is the system's."""
    chosen = current.get().request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else ""


def menu() -> list[list[Item]]:
    """The navigation, with where we are."""
    caller, segments = current.get().caller, current.get().route.segments
    # The letters of a topic belong to the letters.
    place = ("letters",) if "letters" in segments else segments
    rules = caller.may(Role.ADMIN) and caller.sees_everything
    return [
        [
            item._replace(here=place[: len(item.path) or None] == item.path)
            for item in group
            if rules or not item.admin
        ]
        for group in MENU
        if rules or not all(item.admin for item in group)
    ]


def masked_view(payload: Any) -> viewing.Seen:
    """A payload as it may be shown."""
    masked = current.get().mask(payload)
    return viewing.see(masked, masked=masked is not payload)


def masked_glance(payload: Any, chars: int = 96) -> Markup:
    """The beginning of a payload as it may be shown."""
    return viewing.glance(current.get().mask(payload), chars)


def masked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers as they may be shown."""
    return current.get().mask_headers(headers)


def now() -> datetime:
    """The time of this machine: pages say how long ago something was by it."""
    return datetime.now(UTC)


def ago(moment: datetime) -> str:
    """How long ago something was."""
    return wording.ago(moment, now())


def shown_lines(text: object, cut: int | None = None) -> Markup:
    """What somebody else wrote, over several lines."""
    return wording.shown(text, cut, lines=True)


GLOBALS: dict[str, Any] = {
    "can": can,
    "charts": charts,
    "csrf_field": csrf_field,
    "draw_bar": charts.bar,
    "flashes": flashes,
    "glance": masked_glance,
    "icon": icon,
    "live": live,
    "masked_headers": masked_headers,
    "menu": menu,
    "now": now,
    "read_only": read_only,
    "signed_in": signed_in,
    "static": static,
    "theme": theme,
    "tone": wording.tone,
    "url": url,
    "view": masked_view,
    "who": who,
}

FILTERS: dict[str, Any] = {
    "ago": ago,
    "duration": wording.duration,
    "first_line": wording.first_line,
    "iso": wording.iso,
    "number": wording.number,
    "short": wording.short,
    "shown": wording.shown,
    "shown_lines": shown_lines,
    "size": wording.size,
    "utc": wording.utc,
}
