"""Whether all of it flows: from those who publish and put to all whom it is for."""

import time

from tests.chaos.cast import Cast
from tests.chaos.load import GROUPS, KEYS, MAIL, PARCELS, TICKS
from tests.simulation.history import Claimed, Delivered, Published, Put

__all__ = ["Flow", "flows"]

STREAMS = {
    *((group, key) for group in GROUPS for key in KEYS),
    *((queue, "") for queue in (MAIL, PARCELS, TICKS)),
}


def flows(cast: Cast) -> float:
    """Wait until all of it flows; how long that took. Raises `TimeoutError`."""
    flow = Flow(cast)
    try:
        cast.wait(flow.everywhere, "all of it flows")
    except TimeoutError as error:
        raise TimeoutError(f"{error}, which {flow.missing()} did not") from error
    return flow.seconds()


class Flow:
    """Whether what was published, put or due from now on has come to those whom it is for."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.since = time.monotonic_ns()
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

    def missing(self) -> str:
        """What has not been reached."""
        return ", ".join(" ".join(stream).strip() for stream in sorted(STREAMS - set(self.arrived)))

    def seconds(self) -> float:
        """How long it took until the last of them was reached."""
        return (max(self.arrived.values()) - self.since) / 1e9
