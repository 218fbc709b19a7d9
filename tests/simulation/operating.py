"""Operators: they collect garbage, give dead letters back, and set groups back, while all others
are at work.
"""

import contextlib
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import rowmq
from rowmq.errors import TransientError
from tests.simulation.history import (
    Event,
    Outcome,
    Partition,
    Place,
    Pruned,
    Redriven,
    Sought,
)
from tests.simulation.looking import GROUPS, MAIL, TOPIC
from tests.simulation.notes import Notes
from tests.simulation.plans import COLLECT, REDRIVE, SEEK

__all__ = ["Operator"]


class Operator:
    """Somebody who has duties."""

    def __init__(
        self, mq: rowmq.RowMQ, notes: Notes, chance: random.Random, duties: Sequence[str]
    ) -> None:
        self._mq = mq
        self._notes = notes
        self._chance = chance
        self._duties = duties

    def go_round(self) -> None:
        """One of the duties."""
        duty = self._chance.choice(self._duties)
        with contextlib.suppress(TransientError):
            {COLLECT: self._collect, REDRIVE: self._redrive, SEEK: self._seek}[duty]()

    def _collect(self) -> None:
        self._mq.gc(TOPIC)

        def pruned(outcome: Outcome, _: Any, **when: Any) -> Event:
            return Pruned(queue=MAIL, outcome=outcome, **when)

        self._notes.attempt(pruned, partial(self._mq.queue(MAIL).prune, older_than=0))

    def _redrive(self) -> None:
        group = self._chance.choice(list(GROUPS))

        def redriven(outcome: Outcome, _: Any, **when: Any) -> Event:
            return Redriven(topic=TOPIC, group=group, outcome=outcome, **when)

        self._notes.attempt(redriven, partial(self._mq.redrive, TOPIC, group=group))

    def _seek(self) -> None:
        """Set a group back: to what it has acked, or to what comes next for it."""
        group = self._chance.choice(list(GROUPS))
        infos = self._mq.lag(TOPIC, group)
        if not infos:
            return
        info = self._chance.choice(infos)
        offset = self._chance.randint(1, info.offset_acked + 1)
        place = Place(group, Partition(TOPIC, info.key, info.shard))

        def sought(outcome: Outcome, _: Any, **when: Any) -> Event:
            return Sought(place=place, offset=offset, outcome=outcome, **when)

        to = {(info.key, info.shard): offset}
        self._notes.attempt(sought, partial(self._mq.seek, TOPIC, group, to=to))
