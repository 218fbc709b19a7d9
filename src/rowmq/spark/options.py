"""The options of the data source, checked: what is unknown or contradictory is an error that names
the right one.

They are named as those of Spark's Kafka source are, where it has one. Spark gives them as text, and
their names without regard to upper and lower case.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeVar

import msgspec

from rowmq.errors import InvalidOption
from rowmq.naming import check_group, check_key, check_queue, check_topic
from rowmq.spark.place import Place, place_of
from rowmq.store.keys import KEYLESS, SHARD_KEYS
from rowmq.store.positions import EARLIEST, LATEST
from rowmq.times import to_micros

__all__ = ["Bound", "Given", "JobsOptions", "TopicsOptions", "jobs_options", "topics_options"]

T = TypeVar("T")

PLACE = ("url", "prefix", "schema")
TOPICS = ("topic", "subscribe", "subscribePattern")
JOBS = ("queue", "archive", "deadLetters")
SPLITTING = ("minPartitions", "maxRecordsPerPartition", "includeHeaders")
BOUNDS = ("startingOffsets", "startingTimestamp", "failOnDataLoss", "group")
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
READING = (*PLACE, *TOPICS, *JOBS, *SPLITTING, *BOUNDS, *BATCH_ONLY, *STREAM_ONLY)

RECORDS_MAX = 250_000
"""How many messages one task reads, unless it is told."""

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Bound(NamedTuple):
    """Where to begin or to end: a word, a time, or offsets by topic and stored key."""

    word: str = ""
    time: int | None = None
    offsets: Mapping[str, Mapping[str, int]] | None = None


class TopicsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read topics."""

    place: Place
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start: Bound = Bound("earliest")
    end: Bound = Bound("latest")
    group: str | None = None
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int | None = None
    delay_seconds_max: float = 900.0
    partitions_min: int | None = None
    records_max: int = RECORDS_MAX
    fail_on_loss: bool = True


class JobsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read jobs, finished jobs or dead letters; of one of them, all or those named."""

    place: Place
    what: str
    names: tuple[str, ...]
    since: int | None = None
    until: int | None = None
    partitions_min: int | None = None
    records_max: int = RECORDS_MAX


class Given:
    """Options as Spark gives them, asked for by name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values = {str(name).lower(): value for name, value in options.items()}

    def get(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def named(self, names: Iterable[str]) -> list[str]:
        """Which of these were given."""
        return [name for name in names if name.lower() in self.values]

    def parse(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        """An option's value, or a default."""
        text = self.get(name)
        return default if text is None else parse(name, str(text))

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise for an option that nobody knows, with the nearest that somebody does."""
        spelt = {name.lower(): name for name in known}
        for name in self.values:
            if name == "path":
                raise InvalidOption(
                    "load() and save() take no path here: name the topic, as in "
                    ".option('topic', 'orders').load()"
                )
            if name not in spelt:
                near = difflib.get_close_matches(name, spelt, n=1)
                hint = f"did you mean {spelt[near[0]]!r}?" if near else f"known are {listed(known)}"
                raise InvalidOption(f"there is no option {name!r}: {hint}")

    def refuse_together(self, names: Iterable[str]) -> None:
        """Raise if more than one of these was given."""
        found = self.named(names)
        if len(found) > 1:
            raise InvalidOption(f"give one of the options {listed(found)}, not both")

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise if one of these was given."""
        for name in self.named(names):
            raise InvalidOption(f"the option {name!r} {why}")

    @property
    def place(self) -> Place:
        return place_of(self.values)


def topics_options(given: Given, *, stream: bool) -> TopicsOptions:
    """The options of a read of topics, as a batch or as a stream."""
    given.refuse_unknown(READING)
    given.refuse_together((*TOPICS, *JOBS))
    given.refuse_together(("startingOffsets", "startingTimestamp"))
    given.refuse_together(("endingOffsets", "endingTimestamp"))
    if stream:
        given.refuse(JOBS, "reads a table as it is now: use spark.read, not readStream")
        given.refuse(BATCH_ONLY, "is for batches: a stream ends when it is stopped")
    else:
        given.refuse(STREAM_ONLY, "is for streams: a batch has no triggers")
    start = given.parse("startingOffsets", bound, Bound("earliest"))
    start = given.parse("startingTimestamp", moment, start)
    end = given.parse("endingOffsets", bound, Bound("latest"))
    end = given.parse("endingTimestamp", moment, end)
    options = TopicsOptions(
        place=given.place,
        topics=chosen_topics(given),
        pattern=given.parse("subscribePattern", pattern, None),
        start=start,
        end=end,
        group=given.parse("group", lambda _, text: check_group(text), None),
        offsets_max=given.parse("maxOffsetsPerTrigger", number, None),
        bytes_max=given.parse("maxBytesPerTrigger", size, None),
        offsets_min=given.parse("minOffsetsPerTrigger", number, None),
        delay_seconds_max=given.parse("maxTriggerDelay", seconds, 900.0),
        partitions_min=given.parse("minPartitions", number, None),
        records_max=given.parse("maxRecordsPerPartition", number, RECORDS_MAX),
        fail_on_loss=given.parse("failOnDataLoss", truth, True),
    )
    check_together(options, given, stream=stream)
    return options


def check_together(options: TopicsOptions, given: Given, *, stream: bool) -> None:
    """Raise for options that do not go together."""
    if not options.topics and options.pattern is None:
        raise InvalidOption(
            "which topic? Give .option('topic', 'orders'), 'subscribe' for several, or "
            "'subscribePattern'; or 'queue', 'archive' or 'deadLetters' for those"
        )
    if stream and options.group is None:
        raise InvalidOption(
            "a stream is a consumer group, so that nothing is collected before it has read it: "
            "give it a name of its own, as in .option('group', 'lake')"
        )
    if options.start.word == "group" and options.group is None:
        raise InvalidOption("startingOffsets is 'group': say which, by the option 'group'")
    if not stream and options.group is not None and options.start.word != "group":
        raise InvalidOption(
            "a batch is no consumer group: 'group' is for streams, or for a batch that begins "
            "where a group stands, with .option('startingOffsets', 'group')"
        )
    check_bounds(options, stream=stream)
    least, most = options.offsets_min, options.offsets_max
    if least is not None and most is not None and least > most:
        raise InvalidOption("minOffsetsPerTrigger must not be over maxOffsetsPerTrigger")
    if given.named(["maxTriggerDelay"]) and least is None:
        raise InvalidOption("maxTriggerDelay needs minOffsetsPerTrigger: it ends its waiting")


def check_bounds(options: TopicsOptions, *, stream: bool) -> None:
    """Raise for a beginning or an end that cannot be one."""
    for name, bound in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        strange = sorted(set(bound.offsets or ()) - set(options.topics))
        if strange and options.pattern is None:
            raise InvalidOption(f"{name} names the topic {strange[0]!r}, which is not read")
    if options.start.word == "latest" and not stream:
        raise InvalidOption("startingOffsets cannot be 'latest' in a batch: it would read nothing")
    if options.end.word in ("earliest", "group"):
        raise InvalidOption(f"endingOffsets must be 'latest' or JSON, not {options.end.word!r}")


def chosen_topics(given: Given) -> tuple[str, ...]:
    """The topics that `topic` or `subscribe` names."""
    single = given.get("topic")
    if single is not None:
        return (check_topic(single),)
    several: tuple[str, ...] = ()
    return tuple(check_topic(name) for name in given.parse("subscribe", names, several))


def jobs_options(given: Given) -> JobsOptions:
    """The options of a read of jobs, finished jobs or dead letters."""
    given.refuse_unknown(READING)
    given.refuse_together((*TOPICS, *JOBS))
    (what,) = given.named(JOBS)
    times = ("startingTimestamp", "endingTimestamp")
    refused = [name for name in (*BOUNDS, *BATCH_ONLY, *STREAM_ONLY) if name not in times]
    given.refuse(refused, f"is for topics, not for {what!r}")
    if what == "queue":
        given.refuse(times, "is for what is finished: live jobs have no time of their own")
    check = check_topic if what == "deadLetters" else check_queue
    every: tuple[str, ...] = ()
    return JobsOptions(
        place=given.place,
        what=what,
        names=tuple(check(name) for name in given.parse(what, names, every)),
        since=given.parse("startingTimestamp", moment, Bound()).time,
        until=given.parse("endingTimestamp", moment, Bound()).time,
        partitions_min=given.parse("minPartitions", number, None),
        records_max=given.parse("maxRecordsPerPartition", number, RECORDS_MAX),
    )


# --- what the text of an option means ---------------------------------------------------------


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def names(name: str, text: str) -> tuple[str, ...]:
    """Names with commas between them; `*` for all there are."""
    if text.strip() == "*":
        return ()
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise InvalidOption(f"{name} is a list of names with commas between them, not {text!r}")
    return tuple(dict.fromkeys(found))


def number(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < 1:
        raise InvalidOption(f"{name} must be a whole number from 1 on, not {text!r}")
    return int(text)


def truth(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidOption(f"{name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def seconds(name: str, text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)", text.strip())
    if found is None:
        raise InvalidOption(f"{name} must be a time such as 500ms, 30s, 15m or 1h, not {text!r}")
    return float(found[1]) * SECONDS[found[2]]


def size(name: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?)b?", text.strip().lower())
    if found is None or int(found[1]) < 1:
        raise InvalidOption(f"{name} must be a number of bytes, such as 64m or 1g, not {text!r}")
    return int(found[1]) * BYTES[found[2]]


def pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"{name} is no regular expression: {error}") from error
    return text


def moment(name: str, text: str) -> Bound:
    """A time: milliseconds since 1970, as Kafka has them, or ISO 8601 with a zone."""
    if re.fullmatch(r"[0-9]{1,15}", text.strip()):
        return Bound(time=int(text) * 1000)
    try:
        return Bound(time=to_micros(datetime.fromisoformat(text.strip())))
    except ValueError as error:
        raise InvalidOption(
            f"{name} must be milliseconds since 1970, or a time with its zone such as "
            f"2026-01-31T12:00:00Z, not {text!r}"
        ) from error


def bound(name: str, text: str) -> Bound:
    """A word, or offsets in JSON."""
    if text.strip().lower() in ("earliest", "latest", "group"):
        return Bound(text.strip().lower())
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError as error:
        raise InvalidOption(
            f"{name} must be 'earliest', 'latest', 'group', or JSON with an offset for each key, "
            f'such as {{"orders": {{"customer-1": 17, "": 3}}}}, where "" stands for messages '
            f"without a key, -2 for the earliest offset and -1 for the latest; {text!r} is not: "
            f"{error}"
        ) from error
    for topic, offsets in found.items():
        check_topic(topic)
        for key, offset in offsets.items():
            if key != KEYLESS and key not in SHARD_KEYS:
                check_key(key)
            if offset not in (EARLIEST, LATEST) and not 1 <= offset < 2**62:
                raise InvalidOption(
                    f"{name}: an offset is a whole number from 1 on, or -2 or -1, not {offset}"
                )
    return Bound(offsets=found)
