"""Workers: who is alive, what each of them owns and runs, and who else subscribes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from starlette.responses import Response

from rowmq.message import RunningInfo, SubscriberInfo, WorkerInfo
from rowmq.rights import Role
from rowmq.store.workers import OWNED_MAX
from rowmq.web.asking import Ask
from rowmq.web.callers import Caller
from rowmq.web.problems import Problem
from rowmq.web.routing import Route

__all__ = ["ROUTES"]

WORKERS_MAX = 200
"""How many workers stand on the page: those that are alive first."""

RUNNING_MAX = 50
"""How many of the messages and jobs that are at work are shown: the longest at it."""


class Running(NamedTuple):
    """A message or job, and who is at it."""

    worker: WorkerInfo
    info: RunningInfo


class Seen(NamedTuple):
    """A worker as the caller may see it."""

    info: WorkerInfo
    running: Sequence[Running]
    owns: Sequence[SubscriberInfo]

    @property
    def partitions(self) -> int:
        """How many partitions it owns, of all that it subscribes to."""
        return sum(one.partitions for one in self.owns)

    @property
    def capped(self) -> bool:
        """Whether it may be more: they are counted up to a limit."""
        return any(one.partitions >= OWNED_MAX for one in self.owns)


async def show_workers(ask: Ask) -> Response:
    """The workers, those that are alive first, what they are at, and subscribers that are none."""
    subscribers = await subscribers_of(ask)
    workers = sorted(await ask.mq.workers(), key=lambda one: not one.alive)
    seen = [seen_by(ask.caller, worker, subscribers) for worker in workers]
    owned = {id(one) for worker in seen for one in worker.owns}
    running = [one for worker in seen if worker.info.alive for one in worker.running]
    alive = [worker for worker in workers if worker.alive]
    return ask.render(
        "workers.html",
        workers=seen[:WORKERS_MAX],
        counted_max=OWNED_MAX,
        left_out=len(seen[WORKERS_MAX:]),
        others=[one for one in subscribers if id(one) not in owned],
        alive=len(alive),
        gone=len(workers) - len(alive),
        running=longest(running)[:RUNNING_MAX],
        running_count=len(running),
        versions=sorted({worker.version for worker in alive}),
    )


async def show_worker(ask: Ask) -> Response:
    """One worker, with all that it is at and owns."""
    name = ask.path["worker"]
    for info in await ask.mq.workers():
        if info.name == name:
            seen = seen_by(ask.caller, info, await subscribers_of(ask))
            return ask.render(
                "worker.html",
                one=seen,
                counted_max=OWNED_MAX,
                running=longest(seen.running)[:RUNNING_MAX],
                left_out=len(seen.running[RUNNING_MAX:]),
            )
    raise Problem(404, f"there is no worker {name!r}: it has ended, or died more than a day ago")


async def subscribers_of(ask: Ask) -> list[SubscriberInfo]:
    """The subscribers that the caller may see."""
    return [one for one in await ask.mq.subscribers() if ask.caller.sees_topic(one.topic)]


def longest(running: Iterable[Running]) -> list[Running]:
    """What is at work, the longest first."""
    return sorted(running, key=lambda one: one.info.since)


def seen_by(caller: Caller, info: WorkerInfo, subscribers: Iterable[SubscriberInfo]) -> Seen:
    """A worker without what is out of the caller's scope."""
    # A subscriber of a worker is named as its process is, with another ending.
    process = info.name.rpartition("-")[0]
    owns = [one for one in subscribers if process and one.name.rpartition("-")[0] == process]
    seen = caller.worker_seen(info)
    return Seen(seen, [Running(seen, one) for one in seen.running], owns)


ROUTES = [
    Route("GET", "/workers", show_workers, needs=Role.READ),
    Route("GET", "/workers/{worker}", show_worker, needs=Role.READ),
]
