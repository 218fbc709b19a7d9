"""What a replay is asked for, checked."""

from collections.abc import Sequence
from datetime import datetime

from rowmq.errors import InvalidOption
from rowmq.naming import check_group, check_key, check_queue, check_topic
from rowmq.spark.pipelines.archive import check_numbers
from rowmq.spark.pipelines.replaying.selection import Selection
from rowmq.times import to_micros

__all__ = ["check_id", "chunk_size", "selection_of"]

CHUNK = 10_000
GROUP_CHUNK = 200
"""How many rows are one transaction; of those for a group, each is looked at."""

ID_BYTES_MAX = 100

PACE_SECONDS = 0.5
"""How much of what a rate allows is one transaction."""


def check_id(id: str) -> None:
    if not isinstance(id, str) or not id or "\0" in id or len(id.encode()) > ID_BYTES_MAX:
        raise InvalidOption(
            f"id must name the replay in 1 to {ID_BYTES_MAX} bytes, so that it is not done twice, "
            f"not be {id!r}"
        )


def chunk_size(selection: Selection, chunk: int | None, rate: float | None) -> int:
    """How many rows are one transaction, if the last word has not been said by the rows' size."""
    if rate is not None and (isinstance(rate, bool) or not 0 < rate < 2**62):
        raise InvalidOption(f"rate must be rows per second, more than 0, not {rate!r}")
    if chunk is not None:
        check_numbers(chunk=chunk)
    usual = CHUNK if selection.to_group is None else GROUP_CHUNK
    paced = usual if rate is None else max(1, min(usual, int(rate * PACE_SECONDS)))
    return chunk or paced


def selection_of(
    *,
    topics: Sequence[str] | str,
    queue: str | None,
    to_topic: str | None,
    to_queue: str | None,
    to_group: str | None,
    since: datetime | None,
    until: datetime | None,
    key: str | None,
    where: str | None,
    keep_ids: bool,
) -> Selection:
    """What is asked for, checked."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if bool(names) == (queue is not None):
        raise InvalidOption("replay what? Name topics or a queue, one of the two")
    if sum(target is not None for target in (to_topic, to_queue, to_group)) != 1:
        raise InvalidOption("replay where to? Name one of to_topic, to_queue and to_group")
    if to_group is not None and queue is not None:
        raise InvalidOption("a group is delivered messages: jobs go to a queue or to a topic")
    if keep_ids and (to_topic is None or queue is not None):
        raise InvalidOption("keep_ids is for messages that go to a topic")
    if since is not None and until is not None and since >= until:
        raise InvalidOption("since must be before until")
    return Selection(
        topics=tuple(sorted({check_topic(name) for name in names})),
        queue=None if queue is None else check_queue(queue),
        to_topic=None if to_topic is None else check_topic(to_topic),
        to_queue=None if to_queue is None else check_queue(to_queue),
        to_group=None if to_group is None else check_group(to_group),
        since=None if since is None else to_micros(since),
        until=None if until is None else to_micros(until),
        key=check_key(key),
        where=where,
        keep_ids=keep_ids,
    )
