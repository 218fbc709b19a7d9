"""Five schedulers in a process whose machine has the wrong time.

    python -m tests.processes.scheduler sync|async URL HOURS

HOURS is by how much the machine's clock is off. Each scheduler has a client of its own, installs
the schedules of `SCHEDULES`, and tends them until the process is ended; the database's clock is a
table that the test moves. One of them also puts ticks ahead of time, for the hours around what it
believes the time to be. It says "ready" on its standard output when all is installed.
"""

import asyncio
import datetime as dt
import sys
import time
from datetime import UTC, timedelta
from datetime import datetime as real_datetime
from typing import Any

__all__ = ["AHEAD", "SCHEDULERS", "SCHEDULES", "around"]

SCHEDULERS = 5
PAUSE_SECONDS = 0.06
AHEAD = "ahead"
"""The queue of the ticks that are put ahead of time."""

SCHEDULES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    # name: method, its own arguments, options
    "paris at night": ("install", ("30 2 * * *",), {"queue": "q", "tz": "Europe/Paris"}),
    "new york at night": ("install", ("30 1 * * *",), {"topic": "t", "tz": "America/New_York"}),
    "new york often": ("install", ("*/30 * * * *",), {"queue": "q", "tz": "America/New_York"}),
    "paris by day": (
        "install_daily",
        ([dt.time(2), dt.time(2, 30), dt.time(14)],),
        {"queue": "q", "tz": "Europe/Paris"},
    ),
    "new york by day": (
        "install_daily",
        ([dt.time(1, 15), dt.time(23, 59)],),
        {"topic": "t", "tz": "America/New_York"},
    ),
    "beat": ("install_periodic", (2700,), {"queue": "q"}),
}


def set_machine_clock(hours: float) -> None:
    """Have this process believe that it is earlier or later than it is."""
    offset = hours * 3600
    real_time = time.time

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_datetime)

    class Wrong(real_datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real_datetime.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real_datetime.fromtimestamp(time.time(), UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return real_datetime.fromtimestamp(time.time())  # noqa: DTZ006 - it has none either

    time.time = lambda: real_time() + offset
    time.time_ns = lambda: round((real_time() + offset) * 1e9)
    dt.datetime = Wrong  # type: ignore[misc]


def around(now_us: int, hours: float) -> list[Any]:
    """Ticks for the hours around what a scheduler believes the time to be."""
    import rowmq  # noqa: PLC0415 - only once the clock is wrong

    believed = dt.datetime.fromtimestamp(now_us / 1e6, UTC) + timedelta(hours=hours)
    hour = believed.replace(minute=0, second=0, microsecond=0)
    times = [hour + timedelta(hours=number) for number in range(-2, 18)]
    return [rowmq.CronMessage(None, time) for time in times]


def options_of(name: str) -> dict[str, Any]:
    return {**SCHEDULES[name][2], "catch_up": "all", "tend": False}


async def schedule(mq: Any, hours: float, *, puts_ahead: bool, ready: Any) -> None:
    """One scheduler; its client is of either kind, awaited."""
    for name, (method, arguments, _) in SCHEDULES.items():
        await getattr(mq.cron, method)(name, *arguments, **options_of(name))
    ready()
    known = 0
    while True:
        await mq.cron.tend()
        if puts_ahead:
            async with mq.transaction() as tx:
                ((now_us,),) = await tx.execute("SELECT now_us FROM moved_clock")
            if now_us != known:
                known = now_us
                messages = around(now_us, hours)
                await mq.cron.install_tick("the only one", AHEAD, messages, queue=AHEAD)
        await asyncio.sleep(PAUSE_SECONDS)


async def main() -> None:
    from tests.clocks import connect  # noqa: PLC0415 - only once the clock is wrong

    flavour, url, hours = sys.argv[1], sys.argv[2], float(sys.argv[3])
    clients = [await connect(flavour, url, pool_size=2) for _ in range(SCHEDULERS)]
    installed = [asyncio.Event() for _ in clients]
    tasks = [
        asyncio.create_task(schedule(mq, hours, puts_ahead=number == 0, ready=ready.set))
        for number, (mq, ready) in enumerate(zip(clients, installed, strict=True))
    ]
    for ready in installed:
        await ready.wait()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    set_machine_clock(float(sys.argv[3]))
    asyncio.run(main())
