"""What happened in a run: every operation and its outcome, and what is in the database afterwards.

Every operation has a beginning and an end on one line of time: the number of a step in the
simulator, nanoseconds of the machine's clock where processes are at work. It happened somewhere in
between; of one without an end, whoever asked for it has died. What is published, put or ticked
carries a *mark* that nothing else has, as its payload. Where fields have a default, that says that
nobody has written it down, and what can be known without it is judged.

A history is only told here. Whether it is a good one, `rules` say.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, TypeVar

import msgspec

__all__ = [
    "Claimed",
    "Crashed",
    "Delivered",
    "Effect",
    "Event",
    "Final",
    "History",
    "Job",
    "JobSettled",
    "Letter",
    "Outcome",
    "Partition",
    "Place",
    "Progress",
    "Pruned",
    "Published",
    "Put",
    "Redriven",
    "Settled",
    "Sought",
    "Stored",
    "Tick",
]


class Outcome(Enum):
    """What came of an operation, as far as whoever asked for it knows, or whoever looks on."""

    OK = "it happened"
    REFUSED = "it changed nothing: the lease, or the lock, was somebody else's by then"
    FAILED = "it changed nothing"
    UNKNOWN = "it may have happened: no answer came, and nobody saw"

    @property
    def possible(self) -> bool:
        """Whether it may have happened."""
        return self in (Outcome.OK, Outcome.UNKNOWN)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that somebody did."""

    actor: str
    began: int
    ended: int | None = None

    def before(self, other: "Event") -> bool:
        """Whether it was over when another one began."""
        return self.ended is not None and self.ended < other.began


class Partition(NamedTuple):
    """Where messages have an order: a topic and a key; without one, a shard."""

    topic: str
    key: str | None
    shard: int = 0


class Place(NamedTuple):
    """A group, in a partition."""

    group: str
    partition: Partition


class Published(Event, frozen=True, kw_only=True):
    """A message was published, or was to be."""

    partition: Partition
    mark: str
    outcome: Outcome
    offset: int | None = None
    """Where it is, if that was answered."""
    duplicate: bool = False
    """Whether the answer was that it was there already."""


class Delivered(Event, frozen=True, kw_only=True):
    """A message was handed out, under a lease: its epoch is higher than that of any before it."""

    place: Place
    offset: int
    mark: str
    epoch: int
    attempt: int = 1
    number: int = 0
    """Its place among all deliveries, in the order in which they were handed out."""
    until: int = 0
    """Until when it is invisible to others, at least, by the database's clock."""


class Settled(Event, frozen=True, kw_only=True):
    """A delivery was settled, or was to be: `kind` is ack, nack, reject or release."""

    place: Place
    offset: int
    epoch: int
    kind: str
    outcome: Outcome
    attempt: int = 1
    number: int = 0
    """That of the delivery."""

    @property
    def ends(self) -> bool:
        """Whether it says that the message is done with."""
        return self.kind in ("ack", "reject")


class Redriven(Event, frozen=True, kw_only=True):
    """The dead letters of a group were given back to it, or were to be."""

    topic: str
    group: str
    outcome: Outcome


class Sought(Event, frozen=True, kw_only=True):
    """A group was set back, in a partition, or was to be; never to behind what it had done."""

    place: Place
    offset: int
    """What it is given next."""
    outcome: Outcome


class Put(Event, frozen=True, kw_only=True):
    """A job was put, or offered under a key, which replaces what was offered before."""

    queue: str
    mark: str
    outcome: Outcome
    key: str | None = None
    line: str | None = None
    """Its ordering key."""
    replaces: bool = True
    """Whether it may have taken the place of a job with its key."""
    ignored: bool = False
    """Whether the answer was that there is a job with its key."""


class Pruned(Event, frozen=True, kw_only=True):
    """Completed jobs of a queue were deleted, or were to be."""

    queue: str
    outcome: Outcome


class Claimed(Event, frozen=True, kw_only=True):
    """A job was handed out under a lock, at a time and until a time of the database's clock."""

    queue: str
    job: int
    mark: str
    token: int
    now: int
    until: int
    key: str | None = None


class JobSettled(Event, frozen=True, kw_only=True):
    """A claim was settled, or was to be: `kind` is ack, nack, reject, release or extend."""

    queue: str
    job: int
    token: int
    kind: str
    outcome: Outcome
    until: int = 0
    """For an extend: until when, by the database's clock."""

    @property
    def ends(self) -> bool:
        """Whether it says that the job is done with."""
        return self.kind in ("ack", "reject")


class Crashed(Event, frozen=True, kw_only=True):
    """Somebody died, or lost all connections."""


class Stored(NamedTuple):
    """A message that is in the database."""

    partition: Partition
    offset: int
    mark: str


class Progress(NamedTuple):
    """How far a group is in a partition: all up to `done` are, and some after that."""

    place: Place
    start: int
    """The last offset that the group does not ask for."""
    done: int
    more: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    """Which of them are dead letters."""

    def is_done(self, offset: int) -> bool:
        return offset <= self.done or offset in self.more


class Letter(NamedTuple):
    """A dead letter, and where its message stood."""

    place: Place
    offset: int
    mark: str


class Job(NamedTuple):
    """A job that is in the database, in whatever state."""

    queue: str
    id: int
    mark: str
    state: str
    key: str | None = None


class Tick(NamedTuple):
    """The job of a schedule for a time."""

    schedule: str
    due: int
    job: int


class Effect(NamedTuple):
    """A row that a transactional handler has written: for a message of a group, or a job."""

    of: str
    """The group, or the queue."""
    mark: str


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the database when all is done."""

    messages: tuple[Stored, ...] = ()
    begins: dict[Partition, int] = {}
    """The first offset of each log: garbage collection has let go of what was before."""
    progress: tuple[Progress, ...] = ()
    letters: tuple[Letter, ...] = ()
    jobs: tuple[Job, ...] = ()
    ticks: tuple[Tick, ...] = ()
    due: tuple[tuple[str, int], ...] = ()
    """The ticks that there must be: a schedule and a time."""
    effects: tuple[Effect, ...] = ()
    """In the order in which they were committed."""
    counts: dict[str, dict[str, int]] = {}
    """By queue: what RowMQ says how many jobs are in each state."""
    lags: dict[tuple[str, str], int] = {}
    """By topic and group: what RowMQ says how many messages are not done."""
    rests: dict[str, int] = {}
    """Rows that only what is alive needs, or that belong to nothing, by what they are."""


E = TypeVar("E", bound=Event)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A run, from its first operation to what is left of it."""

    events: tuple[Event, ...]
    final: Final
    strict: frozenset[str] = frozenset()
    """Groups in which a message is handled when all before it are done."""
    transactional: frozenset[str] = frozenset()
    """Groups and queues whose handlers write an effect in the transaction of their ack."""
    clocks: tuple[int, ...] = ()
    """What the database's clock showed at each step, where time is counted in steps."""
    limits: dict[str, int] = {}
    """How many jobs of a queue may be claimed at a time."""

    def of(self, kind: type[E]) -> Iterator[E]:
        """The events of a kind, in the order in which they began."""
        return (event for event in self.events if isinstance(event, kind))
