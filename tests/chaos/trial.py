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
from tests.chaos.flow import flows
from tests.chaos.load import SCHEDULE
from tests.chaos.places import Place
from tests.chaos.verdict import Verdict, blame, course_violations, history_of, judge
from tests.simulation.rules import Violation

__all__ = ["try_fault"]

AFTERWARDS_SECONDS = 0.5


def try_fault(
    fault: Fault, place: Place, folder: Path, *, seconds: float, seed: int, count: int = 2
) -> Verdict:
    """What comes of a fault on a database, where there are so many of each role."""
    verdict = Verdict(fault=fault.name, database=place.name)
    with place.fresh(small=fault.on_small_disk):
        verdict.version = place.database.version
        records = Path(tempfile.mkdtemp(prefix=f"{place.name}-{fault.name}-", dir=folder))
        with Cast(records, place.url, count) as cast:
            stage = Stage(cast, place, random.Random(seed))
            try:
                play(stage, fault, seconds, verdict)
            except TimeoutError as error:
                blame(verdict, Violation("it goes on", str(error)))
        conclude(place, cast, fault, verdict)
    return verdict


def play(stage: Stage, fault: Fault, seconds: float, verdict: Verdict) -> None:
    """From the first message to the last."""
    cast = stage.cast
    cast.wait(cast.all_ready, "all are ready")
    verdict.flowed_after = flows(cast)
    began = time.monotonic()
    verdict.hits = fault.do(stage, seconds)
    verdict.lasted = time.monotonic() - began
    verdict.recovered_after = flows(cast)
    time.sleep(AFTERWARDS_SECONDS)
    cast.stop("publisher")
    began = time.monotonic()
    with rowmq.connect(stage.place.database.url, notify=False) as mq:
        mq.cron.pause(SCHEDULE)
        cast.wait(lambda: remains.left(mq) == 0, "all is done")
    verdict.done_after = time.monotonic() - began
    cast.stop()


def conclude(place: Place, cast: Cast, fault: Fault, verdict: Verdict) -> None:
    """Look at what is there, and judge."""
    for story in cast.failures():
        blame(verdict, Violation("nobody fails", story))
    for violation in course_violations(verdict, hits=fault.hits):
        blame(verdict, violation)
    with rowmq.connect(place.database.url, notify=False) as mq:
        judge(verdict, history_of(cast.told(), remains.find(place.database, mq)))
