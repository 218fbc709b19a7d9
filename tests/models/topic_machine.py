"""A topic, and its model, with which the subscribers of two groups do all that can be done."""

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    multiple,
    precondition,
    rule,
)

import rowmq
from rowmq.drivers.base import take_steps
from rowmq.errors import AlreadySettled, StaleLease
from rowmq.times import from_micros, to_micros
from tests.crash import core_of, crash
from tests.models.topic_model import ATTEMPTS_MAX, Delivered, Place, TopicModel
from tests.models.world import World

__all__ = ["TopicMachine"]

SECOND = 1_000_000
VISIBILITY_SECONDS = 250
LEASE = timedelta(days=30)
NEVER = 3_600.0
ALL = 1_000
TROUBLE = "it is no use"

SLOTS = ("loose", "loose", "strict")
"""The groups of those subscribers that there may be at a time."""

SEATS = st.sampled_from(range(len(SLOTS)))
KEYS = st.sampled_from(["a", "a", "b", None])
IDS = st.none() | st.sampled_from(["x", "y"])
GROUPS = st.sampled_from(["loose", "strict"])
LATE = "late"
ANY_GROUPS = st.sampled_from(["loose", "strict", LATE])
SETTLES = st.sampled_from(["ack", "ack", "nack", "reject", "release", "extend"])

# A subscriber's clock goes on while the database's stands: no time is near the sum of others.
DELAYS = st.sampled_from([60, 250])
MOVES = st.sampled_from([100, 300])

Held = tuple[Delivered, Any]
"""A delivery in the model, and the real one."""


class Undone(Exception):
    """Rolls back."""


class TopicMachine(RuleBasedStateMachine):
    """What is published, delivered and settled on both sides."""

    deliveries = Bundle("deliveries")

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        world.begin()
        self.mq = world.connect()
        self.model = TopicModel(world.now, {"loose": False, "strict": True})
        for name in self.model.groups:
            self.mq.create_group("t", name)
        self.seats: dict[int, Any] = {}
        self.swept: list[Any] = []
        """Those that have crashed, and whose leases nobody has taken over yet."""
        self.published = 0

    @initialize(
        retention=st.sampled_from([None, None, 450]),
        keys=st.lists(KEYS, min_size=1, max_size=6),
        seats=st.sets(SEATS, min_size=1),
    )
    def begin(self, retention: int | None, keys: list[str | None], seats: set[int]) -> None:
        if retention is not None:
            self.mq.configure_topic("t", retention=retention)
            self.model.retention = retention * SECOND
        self.publish_many(keys)
        for seat in sorted(seats):
            self.seats[seat] = self._subscribed(seat)

    # --- publish ----------------------------------------------------------------------------------

    @rule(key=KEYS, id=IDS, stays=st.sampled_from([True, True, True, False]))
    def publish(self, key: str | None, id: str | None, *, stays: bool) -> None:
        """Publish, in a transaction that is rolled back unless it `stays`."""
        self.published += 1
        id = id or f"m{self.published}"  # which says the shard, where a random one would not
        with suppress(Undone), self.mq.transaction() as tx:
            told = tx.publish("t", self.published, key=key, id=id, headers=self._headers())
            if not stays:
                raise Undone
        if stays:
            self._published(told)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=5))
    def publish_many(self, keys: list[str | None]) -> None:
        self.published += 1
        payload, headers = self.published, self._headers()
        messages = [
            rowmq.Message(payload=payload, key=key, id=f"m{payload}-{place}", headers=headers)
            for place, key in enumerate(keys)
        ]
        for told in self.mq.publish_many("t", messages):
            self._published(told)

    def _headers(self) -> dict[str, str]:
        """Headers that begin as those of ticks do, and those that letters get."""
        return {"rowmq-n": str(self.published)}

    def _published(self, told: Any) -> None:
        expected = self.model.publish((told.key, told.shard), told.id, self.published)
        assert (told.offset, told.duplicate) == expected

    # --- subscribe, poll --------------------------------------------------------------------------

    @precondition(lambda self: len(self.seats) < len(SLOTS))
    @rule()
    def subscribe(self) -> None:
        """Somebody takes the first empty seat."""
        seat = min(set(range(len(SLOTS))) - self.seats.keys())
        self.seats[seat] = self._subscribed(seat)

    def _subscribed(self, seat: int) -> Any:
        sub = self.mq.subscribe(
            "t",
            group=SLOTS[seat],
            strict=SLOTS[seat] == "strict",
            visibility=VISIBILITY_SECONDS,
            lease_duration=LEASE,
            max_attempts=ATTEMPTS_MAX,
            discovery_interval=NEVER,
            idle_timeout=NEVER,
        )
        sub._flavour.stopping.set()  # it is tended where the machine says so
        return sub

    @precondition(lambda self: self.seats)
    @rule(which=SEATS, dies=st.booleans())
    def leave(self, which: int, *, dies: bool) -> None:
        """Somebody is closed, or dies without a word."""
        seat = self._seat(which)
        sub = self.seats.pop(seat)
        if dies:
            asyncio.run(crash(self.world.database, sub))
            self.swept.append((SLOTS[seat], sub))
        else:
            sub.close()
            self.model.give_back(sub)

    def _seat(self, which: int) -> int:
        """One of those that are taken."""
        taken = sorted(self.seats)
        return taken[which % len(taken)]

    @precondition(lambda self: self.seats)
    @rule(which=SEATS, limit=st.integers(1, 5), target=deliveries)
    def poll(self, which: int, limit: int) -> MultipleResults[Held]:
        """A poll gives something if there is anything, and nothing that may not be given."""
        return self._polled(self._seat(which), limit)

    @precondition(lambda self: self._has_due())
    @rule(limit=st.integers(1, 5), target=deliveries)
    def poll_what_is_due(self, limit: int) -> MultipleResults[Held]:
        """One of those poll who may be given something."""
        return self._polled(self._has_due()[0], limit)

    def _has_due(self) -> list[int]:
        """Seats whose group has something due."""
        due = {g for g in self.model.groups for p in self.model.logs if self.model.due(g, p)}
        return [seat for seat in sorted(self.seats) if SLOTS[seat] in due]

    def _polled(self, seat: int, limit: int) -> MultipleResults[Held]:
        sub, group = self.seats[seat], SLOTS[seat]
        self.share_out()
        core_of(sub).polling.found_at = -NEVER  # what it knows is too old, however quick we are
        open = self._open(sub)
        due = any(self.model.due(group, place) for place in open)
        found = sub.poll(max=limit, timeout=0)
        assert bool(found) == due
        assert len(found) <= limit
        # Of partitions that were not looked at, nothing is given up.
        self._given_up(group, open, all=not found)
        return multiple(*[self._delivered(group, sub, delivery) for delivery in found])

    def _given_up(self, group: str, open: list[Place], *, all: bool) -> None:
        """A poll has given up what has had all its attempts: some of it, or all."""
        spent = {(place, offset) for place in open for offset in self.model.spent(group, place)}
        if not spent:
            return
        told = Counter((place_of(letter), letter.offset) for letter in self._letters(group))
        known = self.model.groups[group].letters
        fresh = told - Counter((letter.place, letter.offset) for letter in known)
        assert fresh.keys() == spent if all else fresh.keys() <= spent
        for place, offset in fresh.elements():
            self.model.give_up(group, place, offset)

    def _letters(self, group: str) -> list[Any]:
        return self.mq.dead_letters("t", group=group, limit=ALL)

    def _delivered(self, group: str, sub: Any, real: Any) -> Held:
        message = real.message
        delivery = Delivered(group, place_of(real), message.offset, sub)
        self._is_as_published(message)
        self.model.deliver(delivery, real.attempt, message.payload)
        self.model.item(delivery).until = self.model.now + VISIBILITY_SECONDS * SECOND
        return delivery, real

    def _is_as_published(self, message: Any) -> None:
        """What is read, delivered or kept as a letter is what was published."""
        log, offset = self.model.logs[message.key, message.shard], message.offset
        assert message.payload == log.payloads[offset]
        assert message.headers == {"rowmq-n": str(message.payload)}
        assert to_micros(message.published_at) == log.published[offset]
        assert message.id == log.names[offset] or offset in log.renamed

    @staticmethod
    def _open(sub: Any) -> list[Place]:
        """The partitions that a subscriber owns, and is not about to give up."""
        return [h.place for h in core_of(sub).holdings.values() if not h.draining]

    def share_out(self) -> None:
        """Have all subscribers look around, as they do every second: the first ones give up what
        the others then take.
        """
        for _ in range(2):
            for sub in self.seats.values():
                core = core_of(sub)
                core.sharing.due_at = 0.0
                take_steps(core.tend())
        for name in self.model.groups:
            living = [sub for seat, sub in self.seats.items() if SLOTS[seat] == name]
            if not living:
                continue
            owned = [h.place for sub in living for h in core_of(sub).holdings.values()]
            assert len(owned) == len(set(owned)), "two own one partition"
            wanted = {p for p in self.model.logs if self.model.lag(name, p)}
            assert wanted <= set(owned), "a partition has no owner"
            for group, dead in [gone for gone in self.swept if gone[0] == name]:
                self.model.give_back(dead)
                self.swept.remove((group, dead))

    # --- settle -----------------------------------------------------------------------------------

    @rule(held=deliveries)
    def ack(self, held: Held) -> None:
        self.settle(held, "ack", 0)

    @rule(held=deliveries, delay=DELAYS)
    def nack(self, held: Held, delay: int) -> None:
        self.settle(held, "nack", delay)

    @rule(held=deliveries, how=st.sampled_from(["reject", "release"]))
    def give_up(self, held: Held, how: str) -> None:
        self.settle(held, how, 0)

    @rule(held=deliveries, delay=DELAYS)
    def extend(self, held: Held, delay: int) -> None:
        self.settle(held, "extend", delay)

    def settle(self, held: Held, how: str, delay: int) -> None:
        delivery, real = held
        allowed = self._told(delivery)
        told = self._settle(real, how, delay)
        assert told in allowed
        if told is None:
            self.model.settle(delivery, how, delay * SECOND, TROUBLE)

    @rule(held=deliveries, how=SETTLES)
    def settle_in_vain(self, held: Held, how: str) -> None:
        """Settle in a transaction that is rolled back: then nothing is settled."""
        delivery, real = held
        with suppress(Undone), self.mq.transaction() as tx:
            assert self._settle(real, how, 60, connection=tx) in self._told(delivery)
            delivery.tried = True
            raise Undone

    @rule(held=deliveries, how=SETTLES, delay=DELAYS)
    def settle_in_transaction(self, held: Held, how: str, delay: int) -> None:
        delivery, real = held
        allowed = self._told(delivery)
        with suppress(Undone), self.mq.transaction() as tx:
            told = self._settle(real, how, delay, connection=tx)
            assert told in allowed
            delivery.tried = True
            if told is not None:
                raise Undone
        if told is None:
            self.model.settle(delivery, how, delay * SECOND, TROUBLE)

    def _told(self, delivery: Delivered) -> set[type[Exception] | None]:
        """What may be told to whoever settles a delivery."""
        if delivery.settled:
            return {AlreadySettled, StaleLease} if delivery.tried else {AlreadySettled}
        if not self.model.is_held(delivery):
            return {AlreadySettled, StaleLease} if delivery.tried else {StaleLease}
        dead = any(sub is delivery.subscriber for _, sub in self.swept)
        return {None, StaleLease} if dead or self.model.is_over(delivery) else {None}

    @staticmethod
    def _settle(real: Any, how: str, delay: int, **where: Any) -> type[Exception] | None:
        try:
            if how == "nack":
                real.nack(delay=delay, error=TROUBLE, **where)
            elif how == "reject":
                real.reject(error=TROUBLE, **where)
            elif how == "extend":
                real.extend(delay, **where)
            else:
                getattr(real, how)(**where)
        except (StaleLease, AlreadySettled) as error:
            return type(error)
        return None

    # --- move, collect, time ----------------------------------------------------------------------

    @rule(
        group=ANY_GROUPS,
        to=st.sampled_from(["earliest", "latest", 0, 100, 300]),
        which=st.none() | st.integers(0, 9),
    )
    def seek(self, group: str, to: str | int, which: int | None) -> None:
        """Move a group, in all partitions or in one: to an end, or to so many seconds ago."""
        if group not in self.model.groups:
            return
        places = [] if which is None else [[*self.model.logs][which % len(self.model.logs)]]
        end = to if isinstance(to, str) else self.model.now - to * SECOND
        real = end if isinstance(end, str) else from_micros(end)
        told = self.mq.seek("t", group, to=real, key=places[0] if places else None)
        assert told == self.model.seek(group, end, *places)

    @rule(group=ANY_GROUPS, which=st.integers(0, 9), where=st.integers(0, 9))
    def seek_to_an_offset(self, group: str, which: int, where: int) -> None:
        places = list(self.model.logs)
        if places and group in self.model.groups:
            place = places[which % len(places)]
            log = self.model.logs[place]
            offset = log.first + where % (log.last + 2 - log.first)
            to = {place: offset}
            assert self.mq.seek("t", group, to=to) == self.model.seek(group, to)

    @precondition(lambda self: any(group.letters for group in self.model.groups.values()))
    @rule(group=GROUPS)
    def redrive(self, group: str) -> None:
        assert self.mq.redrive("t", group=group) == self.model.redrive(group)

    @precondition(lambda self: any(group.letters for group in self.model.groups.values()))
    @rule(group=GROUPS)
    def purge(self, group: str) -> None:
        assert self.mq.purge_dead_letters("t", group=group) == self.model.purge(group)

    @rule(start=st.sampled_from(["earliest", "latest"]))
    def create_group(self, start: str) -> None:
        """A group that keeps what it has not acked, and which nobody consumes."""
        created = self.mq.create_group("t", LATE, start=start)
        assert created is self.model.create_group(LATE, start=start)

    @precondition(lambda self: LATE in self.model.groups)
    @rule()
    def drop_group(self) -> None:
        dropped = self.mq.drop_group("t", LATE)
        assert dropped is self.model.drop_group(LATE)

    @rule()
    def collect(self) -> None:
        assert self.mq.gc("t") == self.model.collect()

    @rule(seconds=MOVES)
    def pass_time(self, seconds: int) -> None:
        """Time passes, also for subscribers, whose own clocks go on from what they heard."""
        self.world.clock.move(seconds=seconds)
        self.model.now = self.world.now
        for sub in [*self.seats.values(), *(sub for _, sub in self.swept)]:
            core_of(sub).clock.hear(self.model.now)

    # --- look -------------------------------------------------------------------------------------

    @rule(group=ANY_GROUPS)
    def look(self, group: str) -> None:
        """Everything that is told of the topic and the group is so."""
        model = self.model
        groups = {told.name: (told.expired, told.lag) for told in self.mq.groups("t")}
        assert groups == {
            name: (known.expired, sum(model.lag(name, place) for place in model.logs))
            for name, known in model.groups.items()
        }
        self._look_at_logs()
        if group not in model.groups:
            return
        told = {(row.key, row.shard): row for row in self.mq.lag("t", group)}
        assert told.keys() == model.logs.keys()
        for place, row in told.items():
            log = model.logs[place]
            assert (row.last_offset, row.lag) == (log.last, model.lag(group, place))
            assert row.offset_acked == model.acked(group, place)
            out = [i.delivery for i in model.groups[group].items[place].values() if i.delivery]
            there = [delivery for delivery in out if delivery.subscriber in self.seats.values()]
            assert row.in_flight == len(there)
        self._look_at_letters(group)

    def _look_at_letters(self, group: str) -> None:
        """What a group gave up is kept as it was published, with the reason."""
        letters = self._letters(group)
        known = sorted(self.model.groups[group].letters, key=repr)
        assert len(letters) == len(known)
        for letter in letters:
            self._is_as_published(letter.message)
            place = place_of(letter)
            (match, *_) = [
                k
                for k in known
                if (k.place, k.offset) == (place, letter.offset)
                and k.attempts == letter.attempts
                and letter.error.startswith(k.error)
            ]
            known.remove(match)

    def _look_at_logs(self) -> None:
        """A reader sees all that no group has let go of, as it was published."""
        logs = self.model.logs
        for partition in self.mq.partitions("t"):
            log = logs[partition.key, partition.shard]
            assert (partition.first_offset, partition.last_offset) == (log.first, log.last)
        read = self.mq.read("t", limit=ALL)
        for message in read:
            self._is_as_published(message)
        told = sorted((repr((m.key, m.shard)), m.offset) for m in read)
        there = {place: range(log.first, log.last + 1) for place, log in logs.items()}
        assert told == sorted((repr(place), o) for place, all in there.items() for o in all)

    def teardown(self) -> None:
        """End the example; if nothing went wrong, see what becomes of what is left."""
        try:
            if sys.exception() is None:
                self._finish()
        finally:
            self.world.end()

    def _finish(self) -> None:
        """In the end every group gets all that it has not acked, and then all of it can go."""
        while self.seats:
            self.leave(0, dies=False)
        for seat, group in ((1, "loose"), (2, "strict")):
            self.look(group)
            self.seats[seat] = self._subscribed(seat)
            self.pass_time(300)
            while (results := self._polled(seat, 10)).values:
                for delivery, real in results.values:
                    real.ack()
                    self.model.settle(delivery, "ack", 0)
            self.look(group)
            assert not any(self.model.lag(group, place) for place in self.model.logs)
        self.drop_group()
        self.collect()
        self.look("loose")
        assert not any(log.first <= log.last for log in self.model.logs.values())
        while self.seats:
            self.leave(0, dies=False)


def place_of(told: Any) -> Place:
    """The partition of a delivery's or a letter's message."""
    return told.message.key, told.message.shard
