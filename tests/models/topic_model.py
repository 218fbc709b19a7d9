"""What a topic is to its groups, without a database: logs and deliveries, in dictionaries."""

from dataclasses import dataclass, field, replace
from enum import Enum

__all__ = ["ATTEMPTS_MAX", "Delivered", "Group", "Item", "Letter", "Place", "Stage", "TopicModel"]

ATTEMPTS_MAX = 3
"""What the subscribers are told of attempts."""

NEVER_SETTLED = "delivered "
"""How it begins that is told of a message whose last attempt nobody has settled."""

Place = tuple[str | None, int]
"""Key and shard: a partition."""


class Stage(Enum):
    """How far a group is with a message."""

    NEW = "new"
    OUT = "out"
    WAITING = "waiting"
    DONE = "done"


@dataclass(eq=False)
class Delivered:
    """What a subscriber has in hand: a delivery."""

    group: str
    place: Place
    offset: int
    subscriber: object
    settled: bool = False
    tried: bool = False
    """Whether it was settled in a transaction, of which nobody remembers what became."""


@dataclass
class Item:
    """A message, to one group."""

    stage: Stage = Stage.NEW
    attempts: int = 0
    until: int = 0
    delivery: Delivered | None = None


@dataclass(frozen=True)
class Letter:
    """A message that a group gave up."""

    place: Place
    offset: int
    attempts: int
    error: str
    """What is told of why begins so."""
    id: str | None
    """None if nobody but the database knows."""


@dataclass
class Log:
    """A partition."""

    first: int = 1
    payloads: dict[int, int] = field(default_factory=dict)
    """By offset, of all that there ever were."""
    ids: dict[str, int] = field(default_factory=dict)
    """Offsets of what is there."""
    published: dict[int, int] = field(default_factory=dict)
    """When, by offset."""
    names: dict[int, str] = field(default_factory=dict)
    """Ids, by offset, of all that there ever were."""
    given_back: set[int] = field(default_factory=set)
    """What was put back below the log."""
    renamed: set[int] = field(default_factory=set)
    """What was put back when its id was another's by then."""

    @property
    def last(self) -> int:
        return len(self.payloads)


@dataclass
class Group:
    """A consumer group."""

    strict: bool
    items: dict[Place, dict[int, Item]] = field(default_factory=dict)
    letters: list[Letter] = field(default_factory=list)
    expired: int = 0
    """How many messages age took from it that it had not acked."""


class TopicModel:
    """A topic and its groups at a time, in microseconds."""

    def __init__(self, now: int, groups: dict[str, bool]) -> None:
        self.now = now
        self.retention: int | None = None
        self.logs: dict[Place, Log] = {}
        self.groups = {name: Group(strict) for name, strict in groups.items()}

    # --- publish, collect -------------------------------------------------------------------------

    def publish(self, place: Place, id: str, payload: int) -> tuple[int, bool]:
        """Append a message, unless its id is known; its offset, and whether it was known."""
        log = self.logs.get(place)
        if log is None:
            log = self.logs[place] = Log()
            for group in self.groups.values():
                group.items[place] = {}
        if id in log.ids:
            return log.ids[id], True
        offset = log.last + 1
        log.payloads[offset], log.published[offset] = payload, self.now
        log.ids[id], log.names[offset] = offset, id
        for group in self.groups.values():
            group.items[place][offset] = Item()
        return offset, False

    def acked(self, group: str, place: Place) -> int:
        """Up to which offset all is done."""
        items = self.groups[group].items[place]
        offset = 0
        while (item := items.get(offset + 1)) is not None and item.stage is Stage.DONE:
            offset += 1
        return offset

    def lag(self, group: str, place: Place) -> int:
        items = self.groups[group].items[place].values()
        return sum(item.stage is not Stage.DONE for item in items)

    def collect(self) -> int:
        """Let go of what every group has acked, and of what is too old; how many messages that
        were.
        """
        gone = 0
        for place, log in self.logs.items():
            floor = min(self.acked(name, place) for name in self.groups)
            below = [offset for offset in log.given_back if offset <= floor]
            gone += len(below) + max(0, floor + 1 - log.first)
            for offset in below:
                log.given_back.remove(offset)
            log.first = max(log.first, floor + 1)
            gone += self._expire(place, log)
            there = {*range(log.first, log.last + 1), *log.given_back}
            log.ids = {id: offset for id, offset in log.ids.items() if offset in there}
        return gone

    def _expire(self, place: Place, log: Log) -> int:
        """Take what is too old from all groups; how many messages that were."""
        if self.retention is None:
            return 0
        oldest = self.now - self.retention
        old = {offset for offset in log.given_back if log.published[offset] < oldest}
        log.given_back -= old
        while log.first <= log.last and log.published[log.first] < oldest:
            old.add(log.first)
            log.first += 1
        for group in self.groups.values():
            items = group.items[place]
            group.expired += sum(items[offset].stage is not Stage.DONE for offset in old)
            items |= {offset: Item(Stage.DONE) for offset in old}
        return len(old)

    # --- deliver ----------------------------------------------------------------------------------

    def may_come(self, group: Group, item: Item) -> bool:
        """Whether a message may be delivered now."""
        if item.stage is Stage.OUT and group.strict:
            return False  # its handler is alive, however long it takes
        return item.stage is Stage.NEW or (
            item.stage in (Stage.OUT, Stage.WAITING) and item.until <= self.now
        )

    def due(self, name: str, place: Place) -> list[int]:
        """What may be delivered of a partition, in the order of offsets; in strict order, one: the
        first that is not given up.
        """
        found = self._next(name, place)
        spent = self.spent(name, place)
        return [offset for offset in found if offset not in spent]

    def spent(self, name: str, place: Place) -> list[int]:
        """What is given up instead of being delivered: it has had all its attempts."""
        items = self.groups[name].items[place]
        return [o for o in self._next(name, place) if items[o].attempts >= ATTEMPTS_MAX]

    def _next(self, name: str, place: Place) -> list[int]:
        """What has its turn; in strict order also what follows those that are given up."""
        group = self.groups[name]
        items = group.items[place]
        found = [o for o, item in sorted(items.items()) if self.may_come(group, item)]
        if not group.strict:
            return found
        if any(item.stage is Stage.OUT for item in items.values()):
            return []
        turn = []
        following = self.acked(name, place) + 1
        while following in found or (following in items and items[following].stage is Stage.DONE):
            if following in found:
                turn.append(following)
                if items[following].attempts < ATTEMPTS_MAX:
                    break
            following += 1
        return turn

    def give_up(self, name: str, place: Place, offset: int) -> None:
        """A message has had all its attempts, and the last one was not settled."""
        group = self.groups[name]
        item = group.items[place][offset]
        item.stage, item.delivery = Stage.DONE, None
        group.letters.append(self._letter(place, offset, item, NEVER_SETTLED))

    def _letter(self, place: Place, offset: int, item: Item, error: str) -> Letter:
        log = self.logs[place]
        id = None if offset in log.renamed else log.names[offset]
        return Letter(place, offset, item.attempts, error, id)

    def deliver(self, delivery: Delivered, attempt: int, payload: int) -> None:
        """A message is delivered: it may be, and in this order."""
        items = self.groups[delivery.group].items[delivery.place]
        item = items[delivery.offset]
        assert delivery.offset in self.due(delivery.group, delivery.place)
        assert payload == self.logs[delivery.place].payloads[delivery.offset]
        assert attempt == item.attempts + 1
        if item.stage is Stage.NEW:
            assert all(i.stage is not Stage.NEW for o, i in items.items() if o < delivery.offset)
        item.stage, item.attempts, item.delivery = Stage.OUT, attempt, delivery

    # --- settle -----------------------------------------------------------------------------------

    def item(self, delivery: Delivered) -> Item:
        return self.groups[delivery.group].items[delivery.place][delivery.offset]

    def is_held(self, delivery: Delivered) -> bool:
        """Whether a delivery is the last one of its message, and can be settled."""
        return self.item(delivery).delivery is delivery

    def is_over(self, delivery: Delivered) -> bool:
        """Whether its time is over, so that whoever has it may find it taken away, or not."""
        strict = self.groups[delivery.group].strict
        return not strict and self.item(delivery).until <= self.now

    def settle(self, delivery: Delivered, how: str, delay: int, error: str = "") -> None:
        """Settle a delivery that is held. The last attempt is not followed by another."""
        item = self.item(delivery)
        if how == "extend":
            item.until = self.now + delay
            return
        delivery.settled, item.delivery = True, None
        last = how == "nack" and item.attempts >= ATTEMPTS_MAX
        if how in ("ack", "reject") or last:
            item.stage = Stage.DONE
            if how != "ack":
                letter = self._letter(delivery.place, delivery.offset, item, error)
                self.groups[delivery.group].letters.append(letter)
            return
        item.stage, item.until = Stage.WAITING, self.now + delay
        if how == "release":
            item.until = 0
            item.attempts -= 1

    def give_back(self, subscriber: object) -> None:
        """A subscriber is gone: what it had in hand is due at once."""
        for group in self.groups.values():
            for items in group.items.values():
                for item in items.values():
                    if item.delivery is not None and item.delivery.subscriber is subscriber:
                        item.stage, item.until, item.delivery = Stage.WAITING, 0, None

    # --- groups that come and go ------------------------------------------------------------------

    def create_group(self, name: str, *, start: str) -> bool:
        """A group of which nobody takes anything; whether it is new."""
        if name in self.groups:
            return False
        group = self.groups[name] = Group(strict=False)
        for place, log in self.logs.items():
            done, new = (Item(Stage.DONE), Item(Stage.NEW))
            group.items[place] = {
                offset: replace(done if start == "latest" or offset < log.first else new)
                for offset in log.payloads
            }
        return True

    def drop_group(self, name: str) -> bool:
        return self.groups.pop(name, None) is not None

    # --- move -------------------------------------------------------------------------------------

    def seek(self, name: str, to: str | int | dict[Place, int], *places: Place) -> int:
        """Move a group, in these partitions or in all: to an end, a time, or offsets. How many that
        moves. All that was in flight there is void.
        """
        moved = to if isinstance(to, dict) else places or self.logs
        for place in moved:
            log, items = self.logs[place], self.groups[name].items[place]
            following = to[place] if isinstance(to, dict) else self._following(log, to)
            for offset, item in items.items():
                below = offset < log.first
                if below and to != "latest" and item.stage is not Stage.DONE:
                    items[offset] = Item(Stage.WAITING)
                else:
                    done = below or offset < following
                    items[offset] = Item(Stage.DONE if done else Stage.NEW)
        return len(moved)

    @staticmethod
    def _following(log: Log, to: str | int) -> int:
        """The first offset that is delivered after a move to an end, or to a time."""
        if isinstance(to, str):
            return {"earliest": log.first, "latest": log.last + 1}[to]
        there = range(log.first, log.last + 1)
        return min((o for o in there if log.published[o] >= to), default=log.last + 1)

    def purge(self, name: str) -> int:
        """Forget what a group gave up; how many letters that were."""
        group = self.groups[name]
        letters, group.letters = group.letters, []
        return len(letters)

    def redrive(self, name: str) -> int:
        """Give a group what it gave up; how many letters that were."""
        group = self.groups[name]
        letters, group.letters = group.letters, []
        for letter in letters:
            place, offset = letter.place, letter.offset
            item = group.items[place][offset]
            if item.stage is not Stage.DONE:
                continue  # it comes in any case
            group.items[place][offset] = Item(Stage.WAITING)
            log = self.logs[place]
            if offset < log.first and offset not in log.given_back:
                log.given_back.add(offset)
                if letter.id is None or log.ids.setdefault(letter.id, offset) != offset:
                    log.renamed.add(offset)
                else:
                    log.renamed.discard(offset)
        return len(letters)
