"""Consumer groups: how far each is behind, partition by partition; and moved, with a preview."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from rowmq.errors import InvalidInput, InvalidOption
from rowmq.markup import Markup
from rowmq.message import GroupInfo, LagInfo
from rowmq.overview import GroupTraffic, SeekPreview
from rowmq.rights import Role
from rowmq.store.groups import PARTITIONS_MAX as SEARCHED_MAX
from rowmq.store.groups import STARTS
from rowmq.store.keys import Offsets, Place
from rowmq.web import charts
from rowmq.web.asking import Ask
from rowmq.web.charts import Bar, Line
from rowmq.web.existing import no_group
from rowmq.web.fields import given, moment_or_none, number_or_none
from rowmq.web.pages.topics import groups_in, in_traffic, tabs
from rowmq.web.places import place_in, said
from rowmq.web.routing import Route
from rowmq.web.sampling import Snapshot
from rowmq.web.trends import Grid, a_second, chart
from rowmq.web.wording import number

__all__ = ["ROUTES"]

PARTITIONS_MAX = 200
"""How many partitions of a group are shown: those with the most lag."""

COLUMNS_MAX = 60
"""How many of them are columns of the chart."""

STEPS_MAX = 100
"""How many partitions of a preview are shown: those for which the most would change."""

FIELDS = ("to", "at", "offset", "key", "shard")

ENDS = {"earliest": "the oldest message there is", "latest": "whatever is published next"}


# --- all groups of a topic ------------------------------------------------------------------------


async def show_groups(ask: Ask) -> Response:
    """The groups of a topic."""
    return await page(ask, {}, {})


async def create(ask: Ask) -> Response:
    """Register a group, so that nothing is collected before it has acked it."""
    topic, fields = ask.path["topic"], await ask.form()
    name, start = fields.get("group", ""), fields.get("start", STARTS[0])
    ask.concerns(topic, name)
    ask.note(start=start)
    try:
        new = await ask.mq.create_group(topic, name, start=start)
    except InvalidInput as error:
        return await page(ask, fields, {"group": str(error)})
    ask.sampler.expire()
    flash = "Created." if new else "There was a group of this name: it stays as it is."
    level = "ok" if new else "note"
    return ask.redirect("topics", topic, "groups", name, flash=flash, level=level)


async def page(ask: Ask, fields: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    topic = ask.path["topic"]
    seen: Snapshot = await ask.sampler.look(ask.mq)
    return ask.render(
        "groups.html",
        status=422 if errors else 200,
        name=topic,
        groups=await groups_in(ask, seen, topic),
        values={"start": STARTS[0], **fields},
        starts=tuple((start, f"{start}: {ENDS[start]}") for start in STARTS),
        errors=errors,
        tabs=tabs(ask, topic, "groups"),
    )


# --- one group ------------------------------------------------------------------------------------


async def show_group(ask: Ask) -> Response:
    """A group: what it has before it, who does it, and partition by partition."""
    topic, name = ask.path["topic"], ask.path["group"]
    seen: Snapshot = await ask.sampler.look(ask.mq)
    traffic = group_in(seen, topic, name)
    # Of a group that the sampler has seen, all else is known.
    info = traffic or in_traffic(await group_named(ask, topic, name))
    lags = await ask.mq.lag(topic, name, limit=PARTITIONS_MAX + 1)
    shown = lags[:PARTITIONS_MAX]
    # The sampler's sum is a moment older than these, and beside them would belie them.
    is_whole = len(lags) <= PARTITIONS_MAX
    behind = sum(lag.lag for lag in lags) if is_whole else info.lag
    grid = Grid(seen.samples, every=seen.every, now=seen.traffic.at)
    return ask.render(
        "group.html",
        name=topic,
        info=info,
        lag=behind,
        traffic=traffic,
        in_flight=sum(lag.in_flight for lag in lags) if traffic is None else traffic.in_flight,
        lags=shown,
        most=max((lag.lag for lag in shown), default=0),
        behind=sum(lag.lag > 0 for lag in lags),
        more_behind=not is_whole and lags[-1].lag > 0,
        retrying=sum(lag.retrying for lag in lags),
        searched=searched_in(seen, topic),
        left_out=not is_whole,
        columns=columns_of(shown),
        owners=owners_of(shown),
        figures=figures(grid, topic, name, behind),
        tabs=tabs(ask, topic, "groups"),
    )


def searched_in(seen: Snapshot, topic: str) -> int | None:
    """Among how many partitions those with the most lag were looked for, if it was not all."""
    known = sum(one.partitions for one in seen.traffic.topics if one.topic == topic)
    return SEARCHED_MAX if known > SEARCHED_MAX else None


def group_in(seen: Snapshot, topic: str, name: str) -> GroupTraffic | None:
    """A group as the sampler has seen it."""
    return next((one for one in seen.groups_of(topic) if one.group == name), None)


async def group_named(ask: Ask, topic: str, name: str) -> GroupInfo:
    """The group that the path names."""
    info: GroupInfo | None = await ask.mq.group(topic, name)
    if info is None:
        raise no_group(ask)
    return info


def columns_of(lags: Sequence[LagInfo]) -> Markup | None:
    """The lag of each partition as a column; none if there are too few for a chart."""
    chosen = sorted((lag for lag in lags if lag.lag), key=lambda lag: -lag.lag)[:COLUMNS_MAX]
    if len(chosen) < 2:
        return None
    bars = [
        Bar(
            f"{said((lag.key, lag.shard))}: {number(lag.lag)} behind",
            lag.lag,
            "warning" if lag.owner is None else "",
        )
        for lag in chosen
    ]
    label = (
        f"Lag of the {len(bars)} partitions with the most: "
        f"from {number(chosen[0].lag)} to {number(chosen[-1].lag)} messages"
    )
    return charts.columns(bars, label=label)


def owners_of(lags: Sequence[LagInfo]) -> list[tuple[str, int]]:
    """Who owns how many of the partitions, those with the most first."""
    counts: dict[str, int] = {}
    for lag in lags:
        if lag.owner is not None:
            counts[lag.owner] = counts.get(lag.owner, 0) + 1
    return sorted(counts.items(), key=lambda owner: (-owner[1], owner[0]))


def figures(
    grid: Grid, topic: str, group: str, behind: int
) -> list[tuple[str, str, Markup, tuple[Line, ...]]]:
    """The charts of a group."""

    def of(pick: str) -> Any:
        def find(sample: Any) -> float | None:
            counted = sample.by_group.get((topic, group))
            return None if counted is None else float(getattr(counted, pick))

        return find

    lag = Line("not acked", grid.levels(of("waiting")), "one")
    flying = Line("in flight", grid.levels(of("in_flight")), "info")
    acked = Line("acked", grid.rates(of("went")), "two")
    now = next((value for value in reversed(acked.values) if value is not None), 0.0)
    return [
        ("Lag", number(behind), chart(grid, lag, flying, whole=True), (lag, flying)),
        ("Acked", a_second(now), chart(grid, acked, say=a_second), (acked,)),
    ]


async def drop(ask: Ask) -> Response:
    """Forget a group and its place."""
    topic, name = ask.path["topic"], ask.path["group"]
    if not await ask.mq.drop_group(topic, name):
        raise no_group(ask)
    ask.sampler.expire()
    return ask.redirect("topics", topic, "groups", flash="Dropped. Its dead letters stay.")


# --- seek -----------------------------------------------------------------------------------------


class Target(NamedTuple):
    """Where a group is to be moved to, and which of its partitions."""

    to: str | datetime | Offsets
    place: str | Place | None
    words: str

    @property
    def key(self) -> str | Place | None:
        """What `seek` is to be given as key: offsets name their partition themselves."""
        return self.place if isinstance(self.to, str | datetime) else None


def target_in(fields: Mapping[str, str]) -> Target | None:
    """What a form says; None if nothing was chosen yet."""
    to, place = given(fields, "to"), place_in(fields)
    if to is None:
        return None
    where = f" in {said(place)}"
    if to in ENDS:
        return Target(to, place, f"{ENDS[to]},{where}")
    if to == "time":
        at = moment_or_none(given(fields, "at"))
        if at is None:
            raise InvalidOption("say a time")
        return Target(
            at, place, f"the first message published at or after {at:%Y-%m-%d %H:%M:%S} UTC,{where}"
        )
    if to != "offset":
        raise InvalidOption("choose where to: earliest, latest, a time or an offset")
    offset = number_or_none(given(fields, "offset"), name="an offset", least=1)
    if offset is None or place is None:
        raise InvalidOption("offsets count within a key: say the key, or the shard, and the offset")
    offsets: Any = {place: offset}
    return Target(offsets, place, f"offset {offset:,},{where}")


async def show_seek(ask: Ask) -> Response:
    """The form of a seek, and what it would do."""
    topic, name = ask.path["topic"], ask.path["group"]
    if group_in(await ask.sampler.look(ask.mq), topic, name) is None:
        await group_named(ask, topic, name)
    error, target, effect = None, None, None
    try:
        target = target_in(ask.query)
        if target is not None:
            to, key = target.to, target.key
            effect = await ask.mq.preview_seek(topic, name, to=to, key=key, limit=STEPS_MAX)
    except InvalidInput as found:
        error = str(found)
    return seek_page(ask, ask.query, target, effect, error)


async def seek(ask: Ask) -> Response:
    """Move a group."""
    topic, name, fields = ask.path["topic"], ask.path["group"], await ask.form()
    ask.note(**{field: fields[field] for field in FIELDS if fields.get(field)})
    try:
        target = target_in(fields)
        if target is None:
            raise InvalidOption("choose where to")
        moved = await ask.mq.seek(topic, name, to=target.to, key=target.key)
    except InvalidInput as error:
        return seek_page(ask, fields, None, None, str(error))
    ask.note(moved=moved)
    ask.sampler.expire()
    what = "1 partition" if moved == 1 else f"{moved:,} partitions"
    flash = f"Moved to {target.words}: {what}."
    return ask.redirect("topics", topic, "groups", name, flash=flash)


def seek_page(
    ask: Ask,
    fields: Mapping[str, str],
    target: Target | None,
    effect: SeekPreview | None,
    error: str | None,
) -> Response:
    values = {name: fields.get(name, "") for name in FIELDS}
    return ask.render(
        "seek.html",
        status=422 if error else 200,
        name=ask.path["topic"],
        group=ask.path["group"],
        values=values,
        target=target,
        effect=effect,
        error=error,
        sent={name: value for name, value in values.items() if value},
        tabs=tabs(ask, ask.path["topic"], "groups"),
    )


of_topic = partial(Route, topic="topic")

ROUTES = [
    of_topic("GET", "/topics/{topic}/groups", show_groups, needs=Role.READ),
    of_topic(
        "POST",
        "/topics/{topic}/groups",
        create,
        needs=Role.CONSUME,
        action="group.create",
        may_be_new=True,
    ),
    of_topic("GET", "/topics/{topic}/groups/{group}", show_group, needs=Role.READ),
    of_topic(
        "POST", "/topics/{topic}/groups/{group}/drop", drop, needs=Role.ADMIN, action="group.drop"
    ),
    of_topic("GET", "/topics/{topic}/groups/{group}/seek", show_seek, needs=Role.READ),
    of_topic(
        "POST", "/topics/{topic}/groups/{group}/seek", seek, needs=Role.ADMIN, action="group.seek"
    ),
]
