"""A trial: all take part, something goes wrong, it must go on; then it is judged what came of it.

```
all run ─► fault ─► each group gets each key again, each queue and schedule goes on ─► a moment more
        ─► publishers end ─► all is done ─► everybody ends ─► what is in the database ─► verdict
```
"""

import random
import tempfile
import time
from pathlib import Path

import rowmq
from tests.chaos import remains
from tests.chaos.cast import Cast
from tests.chaos.faults import Fault, Stage
from tests.chaos.load import GROUPS, KEYS, MAIL, PARCELS, SCHEDULE, TICKS
from tests.chaos.places import Place
from tests.chaos.verdict import Verdict, blame, history_of, judge
from tests.simulation.history import Claimed, Delivered, Published, Put
from tests.simulation.rules import Violation

__all__ = ["try_fault"]

AFTERWARDS_SECONDS = 0.5
STREAMS = {
    *((group, key) for group in GROUPS for key in KEYS),
    *((queue, "") for queue in (MAIL, PARCELS, TICKS)),
}


def try_fault(
    fault: Fault, place: Place, folder: Path, *, seconds: float, seed: int, count: int = 2
) -> Verdict:
    """What comes of a fault on a database, where there are so many of each role."""
    verdict = Verdict(fault=fault.name, database=place.name)
    with place.fresh(small=fault.on_small_disk):
        records = Path(tempfile.mkdtemp(prefix=f"{place.name}-{fault.name}-", dir=folder))
        with Cast(records, place.url, count) as cast:
            stage = Stage(cast, place, random.Random(seed))
            try:
                play(stage, fault, seconds, verdict)
            except TimeoutError as error:
                blame(verdict, Violation("it goes on", str(error)))
        conclude(place, cast, verdict)
    return verdict


def play(stage: Stage, fault: Fault, seconds: float, verdict: Verdict) -> None:
    """From the first message to the last."""
    cast = stage.cast
    cast.wait(cast.all_ready, "all are ready")
    cast.wait(Flow(cast, since=time.monotonic_ns()).everywhere, "all of it flows")
    fault.do(stage, seconds)
    over = time.monotonic_ns()
    flow = Flow(cast, since=over)
    cast.wait(flow.everywhere, "all of it flows again")
    verdict.recovered_after = (flow.complete_at() - over) / 1e9
    time.sleep(AFTERWARDS_SECONDS)
    cast.stop("publisher")
    with rowmq.connect(stage.place.database.url, notify=False) as mq:
        mq.cron.pause(SCHEDULE)
        cast.wait(lambda: remains.left(mq) == 0, "all is done")
    cast.stop()


def conclude(place: Place, cast: Cast, verdict: Verdict) -> None:
    """Look at what is there, and judge."""
    for story in cast.failures():
        blame(verdict, Violation("nobody fails", story))
    with rowmq.connect(place.database.url, notify=False) as mq:
        judge(verdict, history_of(cast.told(), remains.find(place.database, mq)))


class Flow:
    """Whether what was published, put or due after a moment has come to those whom it is for."""

    def __init__(self, cast: Cast, since: int) -> None:
        self.cast = cast
        self.since = since
        self.since_us = time.time_ns() // 1000
        self.arrived: dict[tuple[str, str], int] = {}
        self._fresh: set[str] = set()
        self._early: list[Delivered | Claimed] = []
        """What has arrived, and was not told of by its publisher yet."""

    def everywhere(self) -> bool:
        """Whether each group got something of each key, and each queue was worked on."""
        arrivals = self._early
        self._early = []
        for event in self.cast.look():
            if isinstance(event, Published | Put):
                if event.began > self.since:
                    self._fresh.add(event.mark)
            elif isinstance(event, Delivered | Claimed):
                arrivals.append(event)
        for event in arrivals:
            self._arrive(event)
        return self.arrived.keys() >= STREAMS

    def _arrive(self, event: Delivered | Claimed) -> None:
        ended = event.ended or event.began
        if ended < self.since:
            return
        if isinstance(event, Delivered):
            stream = (event.place.group, str(event.place.partition.key))
            fresh = event.mark in self._fresh
        elif event.queue == TICKS:
            stream, fresh = (TICKS, ""), int(event.mark.split()[1]) > self.since_us
        else:
            stream, fresh = (event.queue, ""), event.mark in self._fresh
        if fresh:
            self.arrived[stream] = min(ended, self.arrived.get(stream, ended))
        else:
            self._early.append(event)

    def complete_at(self) -> int:
        """When the last of them was reached."""
        return max(self.arrived.values())
