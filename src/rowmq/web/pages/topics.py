"""Topics: how much is in them and comes in; a topic with its partitions, and its settings."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from rowmq.errors import InvalidInput
from rowmq.markup import Markup
from rowmq.message import GroupInfo, TopicInfo
from rowmq.overview import GroupTraffic, TopicTraffic
from rowmq.rights import Role
from rowmq.spelling import FOREVER, duration, duration_of, size, size_of
from rowmq.store.keys import Place
from rowmq.store.topics import UNCONFIGURED, topic_info
from rowmq.web import charts
from rowmq.web.asking import Ask
from rowmq.web.charts import Line
from rowmq.web.existing import no_topic
from rowmq.web.fields import given, put_in_words
from rowmq.web.places import fields_of, place_in
from rowmq.web.routing import Route
from rowmq.web.sampling import Counted, Snapshot
from rowmq.web.trends import Grid, a_second, chart
from rowmq.web.wording import short

__all__ = ["ROUTES", "groups_in", "in_traffic", "tabs"]

TOPICS_MAX = 500
"""How many topics stand on the page; others are found by their names."""

PAGE = 50


class Seen(NamedTuple):
    """A topic in the list."""

    info: TopicTraffic
    groups: list[GroupTraffic]
    rate: float
    drawing: Markup

    @property
    def lag(self) -> int:
        """How far its groups are behind, all together."""
        return sum(group.lag for group in self.groups)

    @property
    def lag_capped(self) -> bool:
        """Whether it may be more."""
        return any(group.capped for group in self.groups)

    @property
    def letters(self) -> int:
        """How many dead letters its groups have."""
        return sum(group.dead_letters for group in self.groups)

    @property
    def capped(self) -> bool:
        """Whether there are more of them."""
        return any(group.letters_capped for group in self.groups)


async def show_topics(ask: Ask) -> Response:
    """All topics that the caller may see, or those whose names have some letters in them."""
    if (new := given(ask.query, "new")) is not None:
        return ask.redirect("topics", new, "publish")
    wanted = given(ask.query, "name")
    seen: Snapshot = await ask.sampler.look(ask.mq)
    known = list(seen.traffic.topics)
    if seen.traffic.capped and wanted is not None:
        known = [counted(info) for info in await ask.mq.topics()]
    found = [
        topic
        for topic in known
        if ask.caller.sees_topic(topic.topic) and (wanted is None or wanted in topic.topic)
    ]
    return ask.render(
        "topics.html",
        topics=[seen_in(seen, topic) for topic in found[:TOPICS_MAX]],
        more=seen.traffic.capped or len(found) > TOPICS_MAX,
        wanted=wanted or "",
    )


def counted(info: TopicInfo) -> TopicTraffic:
    """A topic as a snapshot would have it, if there were not so many."""
    return TopicTraffic(
        topic=info.name,
        partitions=info.partitions,
        published=info.messages,
        messages=info.messages,
    )


async def groups_in(ask: Ask, seen: Snapshot, topic: str) -> list[GroupTraffic]:
    """The groups of a topic; those that a snapshot of very many has left out, with less of them."""
    known = {group.group: group for group in seen.groups_of(topic)}
    if not seen.traffic.capped:
        return list(known.values())
    return [known.get(info.name) or in_traffic(info) for info in await ask.mq.groups(topic)]


def in_traffic(info: GroupInfo) -> GroupTraffic:
    """A group as a snapshot would have it, with less of it."""
    return GroupTraffic(
        topic=info.topic,
        group=info.name,
        acked=0,
        lag=info.lag,
        in_flight=0,
        subscribers=info.subscribers,
        expired=info.expired,
        dead_letters=0,
        created_at=info.created_at,
    )


def seen_in(seen: Snapshot, topic: TopicTraffic) -> Seen:
    """A topic with its groups, and how much came in lately."""
    grid = Grid(seen.samples, every=seen.every, now=seen.traffic.at)
    rates = grid.rates(picked(topic.topic, lambda counted: counted.came))
    now = next((value for value in reversed(rates) if value is not None), 0.0)
    label = f"published: {a_second(now)} now"
    return Seen(topic, seen.groups_of(topic.topic), now, charts.spark(rates, label=label))


def picked(topic: str, pick: Callable[[Counted], float]) -> Callable[[Any], float | None]:
    """A figure of a topic, in a look; none where it was not looked at."""

    def find(sample: Any) -> float | None:
        counted = sample.by_topic.get(topic)
        return None if counted is None else pick(counted)

    return find


# --- one topic ------------------------------------------------------------------------------------


async def show_topic(ask: Ask) -> Response:
    """A topic: its groups, what comes and goes, and its partitions."""
    name, prefix = ask.path["topic"], ask.query.get("prefix") or None
    error, after, found = None, None, list[Any]()
    try:
        after = place_in(ask.query)
        found = await partitions_of(ask, name, prefix, after)
    except InvalidInput as wrong:
        error = str(wrong)
    seen: Snapshot = await ask.sampler.look(ask.mq)
    traffic = next((one for one in seen.traffic.topics if one.topic == name), None)
    shown = found[:PAGE]
    grid = Grid(seen.samples, every=seen.every, now=seen.traffic.at)
    more = fields_of(shown[-1].key, shown[-1].shard) if len(found) > PAGE else None
    return ask.render(
        "topic.html",
        status=422 if error else 200,
        name=name,
        error=error,
        info=await info_of(ask, name, traffic),
        groups=await groups_in(ask, seen, name),
        traffic=traffic,
        figures=figures(grid, name),
        partitions=shown,
        prefix=prefix or "",
        first=ask.url("topics", name, prefix=prefix) if after else None,
        older=None if more is None else ask.url("topics", name, prefix=prefix, **more),
        tabs=tabs(ask, name, "topic"),
    )


async def info_of(ask: Ask, name: str, traffic: TopicTraffic | None) -> TopicInfo:
    """A topic and its settings, not counted once more if the sampler has done so."""
    if traffic is None:
        return await topic_of(ask)
    look = partial(ask.mq._store.topics.find_settings, name)  # noqa: SLF001 - the library's own
    settings = await ask.mq._run(look)  # noqa: SLF001
    counted = (name, traffic.partitions, traffic.messages)
    return topic_info((*counted, *(settings or UNCONFIGURED)))


async def topic_of(ask: Ask) -> TopicInfo:
    """The topic of the path, counted."""
    info = await ask.mq.topic(ask.path["topic"])
    if info is None:
        raise no_topic(ask)
    return info


async def partitions_of(
    ask: Ask, topic: str, prefix: str | None, after: str | Place | None
) -> list[Any]:
    """A page of partitions, and one more if there is another page."""
    return list(await ask.mq.partitions(topic, prefix=prefix, after=after, limit=PAGE + 1))


def figures(grid: Grid, topic: str) -> list[tuple[str, str, Markup, tuple[Line, ...]]]:
    """The charts of a topic."""
    came = Line("published", grid.rates(picked(topic, lambda one: one.came)), "one")
    went = Line("acked, by all groups", grid.rates(picked(topic, lambda one: one.went)), "two")
    lag = Line("not acked, by all groups", grid.levels(picked(topic, lambda one: one.waiting)))
    now = next((value for value in reversed(came.values) if value is not None), 0.0)
    behind = next((value for value in reversed(lag.values) if value is not None), 0.0)
    return [
        ("Messages", a_second(now), chart(grid, came, went, say=a_second), (came, went)),
        ("Lag", short(behind), chart(grid, lag, whole=True), (lag,)),
    ]


def tabs(ask: Ask, name: str, here: str) -> list[tuple[str, str, bool]]:
    """The pages of one topic."""
    pages = {}
    if ask.caller.may(Role.READ):
        pages = {
            "topic": ("Overview", ask.url("topics", name)),
            "messages": ("Messages", ask.url("topics", name, "messages")),
            "groups": ("Groups", ask.url("topics", name, "groups")),
            "letters": ("Dead letters", ask.url("topics", name, "letters")),
            "settings": ("Settings", ask.url("topics", name, "settings")),
        }
    if ask.caller.may(Role.PRODUCE) and not ask.settings.read_only:
        pages["publish"] = ("Publish", ask.url("topics", name, "publish"))
    return [(label, url, page == here) for page, (label, url) in pages.items()]


# --- settings -------------------------------------------------------------------------------------


async def show_settings(ask: Ask) -> Response:
    """The form of a topic's settings, as they are."""
    return form(ask, await topic_of(ask), {}, {})


async def configure(ask: Ask) -> Response:
    """Change what was changed in the form, and nothing else."""
    name, info = ask.path["topic"], await topic_of(ask)
    fields, errors = await ask.form(), dict[str, str]()
    shown = shown_settings(info)
    chosen: dict[str, Any] = {}
    for field, read in READERS.items():
        text = fields.get(field, "").strip()
        if field in fields and text != shown[field]:
            chosen[field] = put_in_words(partial(read, text), errors, field)
    if errors:
        return form(ask, info, fields, errors)
    if not chosen:
        return ask.redirect("topics", name, "settings", flash="Nothing was changed.", level="note")
    ask.note(**{field: fields[field].strip() for field in chosen})
    try:
        await ask.mq.configure_topic(name, **chosen)
    except InvalidInput as error:
        return form(ask, info, fields, {"": str(error)})
    ask.sampler.expire()
    return ask.redirect("topics", name, "settings", flash="Saved.")


def form(
    ask: Ask, info: TopicInfo, fields: Mapping[str, str], errors: Mapping[str, str]
) -> Response:
    name = ask.path["topic"]
    return ask.render(
        "topic_settings.html",
        status=422 if errors else 200,
        name=name,
        info=info,
        values=shown_settings(info) | dict(fields),
        errors=errors,
        tabs=tabs(ask, name, "settings"),
    )


def shown_settings(info: TopicInfo) -> dict[str, str]:
    """A topic's settings as they stand in the form, each as it can be given."""
    return {"retention": kept(info.retention), "max_payload_bytes": size(info.max_payload_bytes)}


def kept(span: timedelta | None) -> str:
    return FOREVER if span is None else duration(span)


READERS: dict[str, Callable[[str], Any]] = {
    "retention": partial(duration_of, forever=True),
    "max_payload_bytes": size_of,
}
"""What each field of the form stands for."""


ROUTES = [
    Route("GET", "/topics", show_topics, needs=Role.READ),
    Route("GET", "/topics/{topic}", show_topic, needs=Role.READ, topic="topic"),
    Route("GET", "/topics/{topic}/settings", show_settings, needs=Role.READ, topic="topic"),
    Route(
        "POST",
        "/topics/{topic}/settings",
        configure,
        needs=Role.ADMIN,
        topic="topic",
        action="topic.configure",
    ),
]
