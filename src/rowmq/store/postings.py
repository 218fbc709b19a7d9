"""Postings: jobs that are to be written, and what becomes of those that are offered by key.

Nothing here asks the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rowmq.codec import decode_headers, encode, encode_headers
from rowmq.errors import InvalidOption, PayloadTooLarge
from rowmq.message import Outcome
from rowmq.naming import check_headers
from rowmq.quoting import quoted
from rowmq.store.lines import Member
from rowmq.store.queues import Lane, LaneName

__all__ = [
    "PRIORITY_MAX",
    "KeyIdentity",
    "KeyRow",
    "Offer",
    "Place",
    "Posting",
    "Stored",
    "decide",
    "decide_all",
    "in_same_line",
    "oversized",
    "posting_like",
    "posting_of",
    "refuse_oversized",
]

PRIORITY_MAX = 32_767

ROW_OVERHEAD_BYTES = 150
"""What a job's rows take beside its payload, roughly, when statements are filled."""

OF_TRACES = ("traceparent", "tracestate")

KeyIdentity = tuple[int, str, str]
"""Queue, key and kind: what must be unique. Sorted, they are the order in which keys are locked."""


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """A job that passed every check and is encoded: ready to be written.

    It is due at a time, or, if that is None, after a delay from now.
    """

    lane: LaneName
    at: int | None
    delay_us: int
    data: bytes
    encoding: int
    headers: str | None
    key: str | None
    ordering_key: str | None

    @property
    def size(self) -> int:
        """About how many bytes it adds to a statement."""
        return len(self.data) + len(self.headers or "") + ROW_OVERHEAD_BYTES

    @property
    def plain(self) -> bool:
        """Whether no other job can stand in its way."""
        return self.key is None and self.ordering_key is None


class Place(NamedTuple):
    """A posting with its id, its lane, when it is due and when it was made."""

    posting: Posting
    job_id: int
    lane: Lane
    due_at: int
    created_at: int

    @property
    def key(self) -> "KeyRow":
        """The row of its key, which it must have."""
        name = self.posting.lane
        return KeyRow(
            self.lane.queue_id,
            str(self.posting.key),
            name.kind,
            self.job_id,
            self.lane.id,
            self.due_at,
        )

    @property
    def member(self) -> Member:
        """Its place in its line, which it must have."""
        name = self.posting.lane
        return Member(
            self.lane.queue_id,
            str(self.posting.ordering_key),
            name.precedence,
            self.due_at,
            self.job_id,
            self.lane.id,
        )


class KeyRow(NamedTuple):
    """The row of a live job's key; lane and due time are where it is ready, if it is."""

    queue_id: int
    job_key: str
    kind: str
    job_id: int
    lane_id: int
    due_at: int

    @property
    def identity(self) -> KeyIdentity:
        """What must be unique: the key within its queue and kind."""
        return self[:3]

    @property
    def ready(self) -> tuple[int, int, int]:
        """The key of its ready row, if it has one."""
        return self.lane_id, self.due_at, self.job_id


class Offer(NamedTuple):
    """A posting with a key, and whether it may take the place of a live job with that key."""

    posting: Posting
    can_update: bool


def untraced(headers: str | None) -> dict[str, str] | str | None:
    """Headers without those that tell in which trace they were sent, which is another each time."""
    try:
        known = decode_headers(headers)
    except msgspec.MsgspecError:  # another program may have written them
        return headers
    return {name: value for name, value in known.items() if name.lower() not in OF_TRACES}


def posting_of(
    queue: str,
    kind: str,
    payload: Any,
    *,
    at: int | None = None,
    delay_us: int = 0,
    priority: int = 0,
    key: str | None = None,
    ordering_key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Posting:
    """The posting of a job. The payload, its headers and the priority are checked here."""
    if type(priority) is not int or not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise InvalidOption(
            f"priority must be a whole number from -{PRIORITY_MAX:,} to {PRIORITY_MAX:,}, "
            f"not {quoted(priority)}"
        )
    encoded = encode(payload)
    return Posting(
        lane=LaneName(queue, kind, -priority),
        at=at,
        delay_us=delay_us,
        data=encoded.data,
        encoding=int(encoded.encoding),
        headers=encode_headers(check_headers(headers)),
        key=key,
        ordering_key=ordering_key,
    )


def posting_like(other: Posting, payload: Any) -> Posting:
    """The posting of another job that is put in the same way: only its payload is to be checked."""
    data, encoding = encode(payload)
    return Posting(
        lane=other.lane,
        at=other.at,
        delay_us=other.delay_us,
        data=data,
        encoding=int(encoding),
        headers=other.headers,
        key=other.key,
        ordering_key=other.ordering_key,
    )


class Stored(NamedTuple):
    """A job as its row has it."""

    id: int
    queue_id: int
    lane_id: int
    due_at: int
    data: bytes
    encoding: int
    headers: str | None
    key: str | None
    ordering_key: str | None
    kind: str
    precedence: int

    def same_as(self, place: Place) -> bool:
        """Whether an offer would change nothing. One for now is for another time than before."""
        p = place.posting
        mine = (self.data, self.encoding, self.due_at, self.precedence)
        same = mine == (p.data, p.encoding, p.at, p.lane.precedence)
        return same and (self.headers == p.headers or untraced(self.headers) == untraced(p.headers))


def decide_all(
    offers: Sequence[Offer], places: Sequence[Place], stored: Mapping[KeyIdentity, Stored]
) -> tuple[list[Outcome], dict[KeyIdentity, Place]]:
    """The outcome of each offer, and what is to be written in the end, of keys that change."""
    outcomes = [Outcome.IGNORED] * len(offers)
    groups: dict[KeyIdentity, list[tuple[Offer, Place, int]]] = {}
    for number, (offer, place) in enumerate(zip(offers, places, strict=True)):
        groups.setdefault(place.key.identity, []).append((offer, place, number))
    final: dict[KeyIdentity, Place] = {}
    for identity, group in groups.items():
        last = decide(group, stored.get(identity), outcomes)
        if last is not None:
            final[identity] = last
    return outcomes, final


def decide(
    offers: Sequence[tuple[Offer, Place, int]], stored: Stored | None, outcomes: list[Outcome]
) -> Place | None:
    """The outcomes of offers of one key, in their order, and what is to be written in the end."""
    final: Place | None = None
    for offer, place, number in offers:
        if stored is None and final is None:
            outcomes[number], final = Outcome.CREATED, place
        elif offer.can_update and not is_same(place, final, stored):
            outcomes[number], final = Outcome.UPDATED, place
    return final


def is_same(place: Place, final: Place | None, stored: Stored | None) -> bool:
    """Whether an offer is for the job that an earlier one of its batch made, or that is stored."""
    if final is not None:
        return place.posting == final.posting
    return stored is not None and stored.same_as(place)


def in_same_line(place: Place, stored: Stored | None) -> Place:
    """An update stays in the line that the job was in."""
    if stored is None or stored.ordering_key is None:
        return place
    posting = msgspec.structs.replace(place.posting, ordering_key=stored.ordering_key)
    return place._replace(posting=posting)


def refuse_oversized(postings: Iterable[Posting], lanes: Mapping[LaneName, Lane]) -> None:
    """Raise for the first payload that is over its queue's limit."""
    for posting in postings:
        limit = lanes[posting.lane].payload_bytes_max
        if len(posting.data) > limit:
            raise oversized(posting.lane.queue, len(posting.data), limit)


def oversized(queue: str, payload_bytes: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a payload of {payload_bytes:,} bytes is over the limit of queue {queue!r}, {limit:,} "
        f"bytes; raise it with queue({queue!r}).configure(max_payload_bytes=...), or store the "
        f"data elsewhere and put where it is"
    )
