"""`mq.cron`: the handles of schedules, the same for sync and async code.

Each method is a line or two: what happens is in `core`, and in the background in `tending`.
"""

import asyncio
import builtins
import copy
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, time
from typing import Any, Self
from zoneinfo import ZoneInfo

from rowmq.cron.core import Core, Round
from rowmq.cron.options import Function
from rowmq.cron.tending import Tender
from rowmq.drivers.base import SyncDriver, take_steps, take_steps_async
from rowmq.message import CronMessage, Outcome, ScheduledMessage, ScheduleInfo
from rowmq.queue.desk import Desk
from rowmq.schedule import CatchUp, cron_of, daily_of, periodic_of
from rowmq.store.schedules import Sees
from rowmq.times import Duration

__all__ = ["AsyncCron", "Cron"]

GRACE_SECONDS = 60.0
"""How late a tick may be made that is not to be caught up with."""


class _Handle:
    """What both kinds of handles are made of."""

    def __init__(self, desk: Desk, open_driver: Callable[[], SyncDriver], *, notify: bool) -> None:
        """`open_driver` opens the connection that schedules are tended on."""
        functions: dict[tuple[str, str], Function] = {}
        self._core = Core(desk, functions, notify=notify)

        def new_core(run: Callable[..., Any]) -> Core:
            # Ids and connection are its own; those who wait are the client's.
            own = Desk(
                desk.store,
                run,
                notifier=desk.notifier,
                waiters=desk.waiters,
                new_waiter=desk.new_waiter,
                spare=desk.spare,
            )
            core = Core(own, functions, notify=notify)
            core.disturb = desk.disturb
            return core

        self._tender = Tender(open_driver, new_core)

    @property
    def tending(self) -> bool:
        """Whether this client makes ticks in the background."""
        return self._tender.busy

    def _seen_by(self, sees: Sees) -> Self:
        """The same for somebody who may have to do with some schedules only, by where they put
        what they make. To look first and act then would leave time to put another in its place.
        """
        core, handle = copy.copy(self._core), copy.copy(self)
        core.sees = sees
        handle._core = core  # noqa: SLF001 - one of this class
        return handle

    def _installed(self, outcome: Outcome, *, tend: bool) -> Outcome:
        if tend:
            self._tender.start()
        else:
            self._tender.wake()
        return outcome

    def _close(self) -> None:
        """The client is being closed."""
        self._tender.close()


class Cron(_Handle):
    """The schedules of a database, for sync code: `mq.cron`."""

    def install(
        self,
        name: str,
        cron: str,
        *,
        payload: Any = None,
        queue: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tz: str | ZoneInfo = "UTC",
        catch_up: CatchUp = "latest",
        grace: Duration = GRACE_SECONDS,
        tend: bool = True,
        connection: Any = None,
    ) -> Outcome:
        """Have a schedule fire at the times of a cron expression, such as `0 2 * * *`.

        Each time makes one job in `queue`, or one message in `topic`, however many clients have
        installed it: CREATED if it is new, UPDATED if its configuration is another one than before
        (which this replaces, in one transaction), IGNORED if it is the same. A schedule lives in
        the database until it is removed; a paused one stays paused.

        `payload` is a value, or a function that makes one of the tick's time. `key` is the
        partition key of messages and the ordering key of jobs. Of ticks that were missed, because
        nobody was there to make them, `catch_up` makes only the "latest", "all", or "none" that is
        later than `grace`. This client makes ticks in the background from now on, until it is
        closed, unless `tend` is False. Raises `InvalidInput`.
        """
        steps = self._core.install(
            name,
            cron_of(cron, tz),
            connection,
            payload=payload,
            queue=queue,
            topic=topic,
            key=key,
            headers=headers,
            priority=priority,
            catch_up=catch_up,
            grace=grace,
        )
        return self._installed(take_steps(steps), tend=tend)

    def install_daily(
        self,
        name: str,
        hours: time | Iterable[time],
        *,
        payload: Any = None,
        queue: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tz: str | ZoneInfo = "UTC",
        catch_up: CatchUp = "latest",
        grace: Duration = GRACE_SECONDS,
        tend: bool = True,
        connection: Any = None,
    ) -> Outcome:
        """Have a schedule fire every day at times of the day, as clocks in the zone show them.

        A time that a day does not have fires at the first moment after the gap, and one that it has
        twice fires once. Everything else is as for `install`.
        """
        steps = self._core.install(
            name,
            daily_of(hours, tz),
            connection,
            payload=payload,
            queue=queue,
            topic=topic,
            key=key,
            headers=headers,
            priority=priority,
            catch_up=catch_up,
            grace=grace,
        )
        return self._installed(take_steps(steps), tend=tend)

    def install_periodic(
        self,
        name: str,
        period: Duration,
        *,
        payload: Any = None,
        queue: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        catch_up: CatchUp = "latest",
        grace: Duration = GRACE_SECONDS,
        tend: bool = True,
        connection: Any = None,
    ) -> Outcome:
        """Have a schedule fire once a period, in seconds or as a timedelta: at its multiples since
        1970, UTC, whenever it was installed. Everything else is as for `install`.
        """
        steps = self._core.install(
            name,
            periodic_of(period),
            connection,
            payload=payload,
            queue=queue,
            topic=topic,
            key=key,
            headers=headers,
            priority=priority,
            catch_up=catch_up,
            grace=grace,
        )
        return self._installed(take_steps(steps), tend=tend)

    # --- look after -------------------------------------------------------------------------------

    def list(self) -> builtins.list[ScheduleInfo]:
        """Every schedule, by name."""
        schedules: builtins.list[ScheduleInfo]
        schedules = self._core.desk.run(self._core.store.schedules.list_schedules)
        return schedules

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next times at which a schedule fires, in its zone, as if it were not paused.

        Raises `UnknownSchedule`.
        """
        return take_steps(self._core.next(name, count))

    def pause(self, name: str, *, connection: Any = None) -> None:
        """Have a schedule make no ticks until it is resumed. Raises `UnknownSchedule`."""
        take_steps(self._core.change("pause", name, connection))

    def resume(self, name: str, *, connection: Any = None) -> None:
        """Have a paused schedule make ticks again. Those of the meantime are not made up.

        Raises `UnknownSchedule`.
        """
        take_steps(self._core.change("resume", name, connection))
        self._tender.wake()

    def remove(self, name: str, *, connection: Any = None) -> bool:
        """Delete a schedule; False if there is none. What its ticks have made stays."""
        return take_steps(self._core.remove(name, connection))

    def run(self, name: str, *, connection: Any = None) -> datetime:
        """Make a tick of a schedule now, beside its plan, also if it is paused; the tick's time.

        Raises `UnknownSchedule`.
        """
        return take_steps(self._core.run(name, connection))

    # --- tend -------------------------------------------------------------------------------------

    def tend(self) -> int:
        """Make the ticks that are due now, at most a hundred of each schedule; how many it were.

        This is what a client does in the background once it is started. If a schedule cannot be
        fired, the others are, and then the error is raised.
        """
        return made_or_raise(take_steps(self._core.tend()))

    def start(self) -> None:
        """Make ticks in the background, in a thread, until the client is closed or `stop`."""
        self._tender.start()

    def stop(self) -> None:
        """Make no more ticks in the background. Others may still do so."""
        self._tender.stop()

    # --- ticks that are put ahead of time ---------------------------------------------------------

    def install_tick(
        self,
        config_hash: str,
        key_prefix: str,
        messages: Iterable[CronMessage[Any] | ScheduledMessage[Any]],
        *,
        queue: str,
        can_update: bool = True,
        connection: Any = None,
    ) -> builtins.list[tuple[Any, Outcome]]:
        """Put jobs into a queue ahead of the times at which they are due.

        In the same transaction, the jobs that are not due yet and that other configurations put
        under the same prefix are removed. For each time, and each key of a `ScheduledMessage`,
        there is one job, once and for all: also if it was worked on long ago (for 30 days; what is
        older is IGNORED). One of the same configuration that nobody has claimed is UPDATED if its
        payload is another one and `can_update` is True. Each message comes back with its outcome.
        """
        steps = self._core.install_tick(
            config_hash,
            key_prefix,
            messages,
            queue=queue,
            can_update=can_update,
            connection=connection,
        )
        return take_steps(steps)

    def uninstall_tick(
        self, config_hash: str, key_prefix: str, *, queue: str, connection: Any = None
    ) -> int:
        """Remove the jobs that one configuration put and nobody has claimed; how many."""
        steps = self._core.uninstall_tick(
            config_hash, key_prefix, queue=queue, connection=connection
        )
        return take_steps(steps)


class AsyncCron(_Handle):
    """The schedules of a database, for async code: `mq.cron`."""

    async def install(
        self,
        name: str,
        cron: str,
        *,
        payload: Any = None,
        queue: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tz: str | ZoneInfo = "UTC",
        catch_up: CatchUp = "latest",
        grace: Duration = GRACE_SECONDS,
        tend: bool = True,
        connection: Any = None,
    ) -> Outcome:
        """Have a schedule fire at the times of a cron expression: see `Cron.install`."""
        steps = self._core.install(
            name,
            cron_of(cron, tz),
            connection,
            payload=payload,
            queue=queue,
            topic=topic,
            key=key,
            headers=headers,
            priority=priority,
            catch_up=catch_up,
            grace=grace,
        )
        return self._installed(await take_steps_async(steps), tend=tend)

    async def install_daily(
        self,
        name: str,
        hours: time | Iterable[time],
        *,
        payload: Any = None,
        queue: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tz: str | ZoneInfo = "UTC",
        catch_up: CatchUp = "latest",
        grace: Duration = GRACE_SECONDS,
        tend: bool = True,
        connection: Any = None,
    ) -> Outcome:
        """Have a schedule fire every day at times of the day: see `Cron.install_daily`."""
        steps = self._core.install(
            name,
            daily_of(hours, tz),
            connection,
            payload=payload,
            queue=queue,
            topic=topic,
            key=key,
            headers=headers,
            priority=priority,
            catch_up=catch_up,
            grace=grace,
        )
        return self._installed(await take_steps_async(steps), tend=tend)

    async def install_periodic(
        self,
        name: str,
        period: Duration,
        *,
        payload: Any = None,
        queue: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        catch_up: CatchUp = "latest",
        grace: Duration = GRACE_SECONDS,
        tend: bool = True,
        connection: Any = None,
    ) -> Outcome:
        """Have a schedule fire once a period: see `Cron.install_periodic`."""
        steps = self._core.install(
            name,
            periodic_of(period),
            connection,
            payload=payload,
            queue=queue,
            topic=topic,
            key=key,
            headers=headers,
            priority=priority,
            catch_up=catch_up,
            grace=grace,
        )
        return self._installed(await take_steps_async(steps), tend=tend)

    # --- look after -------------------------------------------------------------------------------

    async def list(self) -> builtins.list[ScheduleInfo]:
        """Every schedule, by name."""
        schedules: builtins.list[ScheduleInfo]
        schedules = await self._core.desk.run(self._core.store.schedules.list_schedules)
        return schedules

    async def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next times at which a schedule fires, in its zone, as if it were not paused.

        Raises `UnknownSchedule`.
        """
        return await take_steps_async(self._core.next(name, count))

    async def pause(self, name: str, *, connection: Any = None) -> None:
        """Have a schedule make no ticks until it is resumed. Raises `UnknownSchedule`."""
        await take_steps_async(self._core.change("pause", name, connection))

    async def resume(self, name: str, *, connection: Any = None) -> None:
        """Have a paused schedule make ticks again. Those of the meantime are not made up.

        Raises `UnknownSchedule`.
        """
        await take_steps_async(self._core.change("resume", name, connection))
        self._tender.wake()

    async def remove(self, name: str, *, connection: Any = None) -> bool:
        """Delete a schedule; False if there is none. What its ticks have made stays."""
        return await take_steps_async(self._core.remove(name, connection))

    async def run(self, name: str, *, connection: Any = None) -> datetime:
        """Make a tick of a schedule now, beside its plan, also if it is paused; the tick's time.

        Raises `UnknownSchedule`.
        """
        return await take_steps_async(self._core.run(name, connection))

    # --- tend -------------------------------------------------------------------------------------

    async def tend(self) -> int:
        """Make the ticks that are due now, at most a hundred of each schedule; how many it were.

        This is what a client does in the background once it is started. If a schedule cannot be
        fired, the others are, and then the error is raised.
        """
        return made_or_raise(await take_steps_async(self._core.tend()))

    async def start(self) -> None:
        """Make ticks in the background, in a thread, until the client is closed or `stop`."""
        self._tender.start()

    async def stop(self) -> None:
        """Make no more ticks in the background. Others may still do so."""
        await asyncio.to_thread(self._tender.stop)

    # --- ticks that are put ahead of time ---------------------------------------------------------

    async def install_tick(
        self,
        config_hash: str,
        key_prefix: str,
        messages: Iterable[CronMessage[Any] | ScheduledMessage[Any]],
        *,
        queue: str,
        can_update: bool = True,
        connection: Any = None,
    ) -> builtins.list[tuple[Any, Outcome]]:
        """Put jobs into a queue ahead of their times: see `Cron.install_tick`."""
        steps = self._core.install_tick(
            config_hash,
            key_prefix,
            messages,
            queue=queue,
            can_update=can_update,
            connection=connection,
        )
        return await take_steps_async(steps)

    async def uninstall_tick(
        self, config_hash: str, key_prefix: str, *, queue: str, connection: Any = None
    ) -> int:
        """Remove the jobs that one configuration put and nobody has claimed; how many."""
        steps = self._core.uninstall_tick(
            config_hash, key_prefix, queue=queue, connection=connection
        )
        return await take_steps_async(steps)


def made_or_raise(done: Round) -> int:
    """How many ticks a round made, if nothing went wrong in it."""
    if done.errors:
        raise next(iter(done.errors.values()))
    return done.made
