"""Fences: what somebody has decided is not written once somebody else has come between.

Each test here stands for a lock or a predicate that could be taken out of a statement with every
other test still passing.
"""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.drivers.base import Steps
from rowmq.store.leases import Leases, Member
from rowmq.store.statement import Statement
from rowmq.subscriber.receipts import claim_of, settle_claims, wanted_of
from rowmq.subscriber.subscription import Subscription
from tests.choices import not_on_postgres, on_servers
from tests.commits import lost_answers
from tests.conftest import Connect
from tests.consuming import (
    acked,
    eventually,
    nothing_comes,
    payloads,
    publish,
    statements,
    stored,
    subscribe,
    take,
)
from tests.crash import core_of, expire, stop
from tests.databases import Database
from tests.flavours import plain


def leases_of(mq: Any) -> Leases:
    leases: Leases = plain(mq)._store.leases
    return leases


def payloads_of(jobs: list[Any]) -> list[Any]:
    return [job.payload for job in jobs]


def member_of(sub: Any) -> Member:
    member = core_of(sub).member
    assert member is not None
    return member


@pytest.fixture
def before_a_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[Any]]:
    """Have something happen once: when a subscriber has decided what to write, and not begun to.
    Gives what came of it.
    """

    def arrange(meanwhile: Callable[[], Any]) -> list[Any]:
        done: list[Any] = []
        write = Subscription.write

        def written_later(self: Any, drafts: Any, *args: Any, **options: Any) -> Steps[Any]:
            if drafts and not done:
                done.append(meanwhile())
            return (yield from write(self, drafts, *args, **options))

        monkeypatch.setattr(Subscription, "write", written_later)
        return done

    return arrange


# --- publishing ----------------------------------------------------------------------------------


@on_servers
async def test_rivals_in_transactions_take_offsets_one_after_the_other(
    connect: Connect, database: Database
) -> None:
    """The second one's statement begins before the first one commits, and counts on from there."""
    first, second = await connect(database.url), await connect(database.url)
    await first.publish("t", 1, key="k")

    async def rival() -> Any:
        async with second.transaction() as tx:
            return await tx.publish("t", 3, key="k")

    async with first.transaction() as tx:
        assert (await tx.publish("t", 2, key="k")).offset == 2
        with statements(second) as seen:
            waiting = asyncio.create_task(rival())
            await eventually(lambda: seen)
            await asyncio.wait({waiting}, timeout=0.1)  # for as long as it takes to get there
            assert not waiting.done()
    assert (await waiting).offset == 3


# --- a group's place -----------------------------------------------------------------------------


async def test_a_redrive_before_a_write_of_the_owner_is_not_overwritten(
    mq: Any, database: Database, before_a_write: Any
) -> None:
    """Neither owner nor epoch change when a message is given back: only the version does."""

    def redrive() -> int:
        with rowmq.connect(database.url) as other:
            return other.redrive("t", group="g")

    await publish(mq, 3)
    async with subscribe(mq) as sub:
        first, second, third = await take(sub, 3)
        await first.reject(error="no")
        redriven = before_a_write(redrive)
        await second.ack()
        assert redriven == [1]
        (again,) = await take(sub, 1)
        assert again.message.payload == 1
        await sub.ack([again, third])
    assert await acked(mq) == 3


@on_servers
async def test_a_write_of_the_owner_waits_for_a_seek_that_is_not_committed(
    mq: Any, connect: Connect, database: Database
) -> None:
    other = await connect(database.url)
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        held = await take(sub, 3)
        async with other.transaction() as tx:
            await other.seek("t", "g", to={"k": 2}, connection=tx)
            with statements(mq) as seen:
                settling = asyncio.ensure_future(sub.ack(held))
                await eventually(lambda: "leases.advance" in {s.name for s in seen})
                await asyncio.wait({settling}, timeout=0.1)  # for as long as it takes to get there
                assert not settling.done()
        with pytest.raises(errors.StaleLease):
            await settling
        assert payloads(await take(sub, 2)) == [2, 3]
    assert await acked(mq) == 1


async def test_what_is_written_of_many_places_is_all_of_it_or_nothing(
    mq: Any, database: Database, before_a_write: Any
) -> None:
    """One of two is refused: nothing of the other has changed, so it can be decided anew."""
    for key in "ab":
        await publish(mq, 2, key)
    async with subscribe(mq) as sub:
        held = {(d.message.key, d.message.offset): d for d in await take(sub, 4)}

        def seek() -> None:
            with rowmq.connect(database.url) as other:
                other.seek("t", "g", to="earliest", key="a")

        before_a_write(seek)
        with pytest.raises(errors.StaleLease):
            await sub.ack([held["a", 1], held["b", 2]])
        assert {row.key: row.in_flight for row in await mq.lag("t", "g")}["b"] == 1
        await held["b", 1].ack()
    assert {row.key: row.lag for row in await mq.lag("t", "g")} == {"a": 2, "b": 0}


@not_on_postgres  # where it is one statement
async def test_a_settle_that_fails_half_way_has_written_nothing(
    mq: Any, database: Database
) -> None:
    def fail(statement: Statement) -> None:
        if statement.name == "leases.put_ranges":
            raise ZeroDivisionError

    await publish(mq, 4)
    async with subscribe(mq) as sub:
        _, second, third, _ = await take(sub, 4)
        await second.ack()
        before = stored(database)
        plain(mq)._driver.observers.append(fail)
        with pytest.raises(ZeroDivisionError):
            await third.nack(delay=60)
        plain(mq)._driver.observers.remove(fail)
        assert stored(database) == before
        await third.nack(delay=60)
        assert stored(database) != before


async def test_a_settle_whose_answer_is_lost_counts_once(mq: Any) -> None:
    """Its repeat is refused by the fence, and finds that it was itself who has written."""
    await publish(mq, 3)
    async with subscribe(mq) as sub:
        first, second, third = await take(sub, 3)
        with lost_answers(mq, "leases.advance") as repeated:
            await sub.ack([first, second])
            await third.nack(delay=60)
        assert len(repeated) == 2
        assert await nothing_comes(sub)
    assert await acked(mq) == 2


# --- leases --------------------------------------------------------------------------------------


async def test_a_lease_that_is_not_free_any_more_is_not_taken(mq: Any, database: Database) -> None:
    """Two have seen that it is free; the second one comes too late."""
    await publish(mq, 1)
    async with subscribe(mq) as owner, subscribe(mq) as other:
        await eventually(lambda: len(owner.owned) + len(other.owned) == 1)
        late, early = sorted((owner, other), key=lambda sub: len(sub.owned))
        (partition,) = await mq._run(partial(leases_of(mq).owned, member_of(early)))
        before = stored(database)
        take_it = partial(leases_of(mq).acquire, member_of(late), [partition])
        assert await mq._run(take_it) == []
        assert stored(database) == before


async def test_a_lease_that_is_somebody_elses_is_not_freed(mq: Any, database: Database) -> None:
    """One wants to hand over what was taken from it meanwhile, and given to another."""
    await publish(mq, 1)
    async with subscribe(mq) as owner, subscribe(mq) as other:
        await eventually(lambda: len(owner.owned) + len(other.owned) == 1)
        late, early = sorted((owner, other), key=lambda sub: len(sub.owned))
        (partition,) = await mq._run(partial(leases_of(mq).owned, member_of(early)))
        before = stored(database)
        await mq._run(partial(leases_of(mq).release, member_of(late), [partition]))
        assert stored(database) == before


async def test_who_is_dead_takes_no_lease(mq: Any, database: Database) -> None:
    """Somebody may have looked for free ones, and slept until its own time was over."""
    leases = leases_of(mq)
    sub = await subscribe(mq)
    await stop(sub)
    await publish(mq, 1)
    member = member_of(sub)
    await mq._run(partial(leases.adopt, "t", member.group_id))
    ((partition,),) = database.execute("SELECT partition_id FROM rowmq_offsets")
    expire(database, sub)
    assert await mq._run(partial(leases.acquire, member, [partition])) == []
    async with subscribe(mq) as living:
        assert payloads(await take(living, 1)) == [1]


async def test_who_is_alive_again_is_not_swept(mq: Any) -> None:
    """Somebody has seen it dead, and sweeps it when its heartbeat has come after all."""
    leases = leases_of(mq)
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (delivery,) = await take(sub, 1)
        member = member_of(sub)
        (partition,) = await mq._run(partial(leases.owned, member))
        await mq._run(partial(leases.sweep, member.group_id, [member.subscriber_id]))
        assert await mq._run(partial(leases.owned, member)) == [partition]
        await delivery.ack()
    assert await acked(mq) == 1


async def test_a_heartbeat_that_comes_too_late_revives_nobody(mq: Any, database: Database) -> None:
    sub = await subscribe(mq)
    await stop(sub)
    expire(database, sub)
    beat = partial(leases_of(mq).beat, member_of(sub), lease_us=60_000_000)
    assert await mq._run(beat) is False
    assert database.execute("SELECT expires_at FROM rowmq_subscribers") == [(1,)]


# --- queues --------------------------------------------------------------------------------------


@on_servers
async def test_an_expired_job_whose_key_is_locked_is_not_lost(
    mq: Any, connect: Connect, database: Database
) -> None:
    """Whoever has the key may be about to replace the job: it stays where it is till then."""
    other = await connect(database.url)
    queue = mq.queue("q")
    await queue.put("kept", key="k")
    assert (await queue.try_poll()).payload == "kept"
    database.execute("UPDATE rowmq_locks SET locked_until = 1")
    async with other.transaction() as tx:
        assert (await tx.execute("SELECT * FROM rowmq_job_keys FOR UPDATE")).rows
        assert await queue.try_poll() is None
    database.execute("UPDATE rowmq_locks SET locked_until = 1")
    again = await eventually(queue.try_poll)
    assert (again.payload, again.deliveries) == ("kept", 2)
    await again.ack()


async def test_a_permit_that_others_use_by_now_is_not_freed(mq: Any) -> None:
    """A limit that is taken away and set again has new permits, under the numbers of the old."""
    queue = mq.queue("q")
    await queue.configure(max_in_flight=1)
    await queue.put_many([1, 2, 3])
    first = await queue.try_poll()
    await queue.configure(max_in_flight=math.inf)
    await queue.configure(max_in_flight=1)
    second = await queue.try_poll()
    assert (first.payload, second.payload) == (1, 2)
    await first.ack()
    assert await queue.try_poll() is None
    await second.ack()
    assert (await queue.try_poll()).payload == 3


async def test_only_the_lock_that_has_expired_gives_its_job_back(
    mq: Any, database: Database
) -> None:
    queue = mq.queue("q")
    await queue.put_many([1, 2])
    over, kept = await queue.try_poll(), await queue.try_poll()
    token = plain(over)._ticket.claimed.token
    database.execute(f"UPDATE rowmq_locks SET locked_until = 1 WHERE token = {token}")
    again = await queue.try_poll_many(2)
    assert payloads_of(again) == [over.payload]
    await kept.ack()
    await queue.ack(again)


@pytest.mark.parametrize("second", ["ack", "nack", "reject"])
async def test_a_job_that_was_settled_in_a_transaction_is_not_settled_again(
    mq: Any, second: str
) -> None:
    """Its lock is still there, for another job: what has left it is marked there."""
    queue = mq.queue("q")
    await queue.put_many([1, 2])
    one, other = await queue.try_poll_many(2)
    async with mq.transaction() as tx:
        await one.ack(connection=tx)
    with pytest.raises(errors.AlreadySettled):
        await getattr(one, second)()
    await other.ack()
    counts = await queue.counts()
    assert {state: count for state, count in counts.items() if count} == {"completed": 2}


@on_servers
@pytest.mark.parametrize("how", ["ack", "reject"])
async def test_two_who_settle_jobs_of_one_lock_at_once_forget_neither(
    mq: Any, connect: Connect, database: Database, how: str
) -> None:
    """Each marks its own job: the second one reads the marks when the first has committed."""
    queue = mq.queue("q")
    await queue.put_many([1, 2, 3])
    one, two, three = await queue.try_poll_many(3)
    async with mq.transaction() as tx:
        await getattr(one, how)(connection=tx)
        settling = asyncio.ensure_future(getattr(two, how)())
        await asyncio.wait({settling}, timeout=0.2)  # for as long as it takes to get there
        assert not settling.done()
    await settling
    database.execute("UPDATE rowmq_locks SET locked_until = 1")
    other = await connect(database.url)
    left = await other.queue("q").try_poll_many(3)
    assert payloads_of(left) == [three.payload]


async def test_nobody_gets_in_front_of_a_head_whose_lock_has_expired(
    mq: Any, database: Database
) -> None:
    """It was begun, perhaps: it is the head until it is done."""
    queue = mq.queue("q")
    await queue.put("head", ordering_key="line")
    await queue.try_poll()
    database.execute("UPDATE rowmq_locks SET locked_until = 1")
    assert await mq._run(plain(mq)._store.claims.give_back) == 1
    await queue.put("urgent", ordering_key="line", priority=1)
    head = await queue.try_poll()
    assert (head.payload, head.deliveries) == ("head", 2)
    await head.ack()
    assert (await queue.try_poll()).payload == "urgent"


# --- ticks that are put ahead of time ------------------------------------------------------------


@on_servers
async def test_who_puts_ticks_waits_for_another_configuration_of_them(
    mq: Any, connect: Connect, database: Database
) -> None:
    """Else each would put its own, seeing nothing of the other's."""
    other = await connect(database.url)
    later = datetime.now(UTC) + timedelta(days=1)
    old, new = ([rowmq.CronMessage(payload, later)] for payload in ("old", "new"))
    await mq.queue("q").put("made")  # so that nobody waits for queue and lane
    await (await mq.queue("q").try_poll()).ack()
    async with mq.transaction() as tx:
        await mq.cron.install_tick("old", "prefix", old, queue="q", connection=tx)
        installing = asyncio.ensure_future(other.cron.install_tick("new", "prefix", new, queue="q"))
        await asyncio.wait({installing}, timeout=0.2)  # for as long as it takes to get there
        assert not installing.done()
    await installing
    assert payloads_of(await mq.queue("q").live()) == ["new"]


@pytest.mark.parametrize(("far", "own"), [("ack", "reject"), ("reject", "ack")])
async def test_of_two_who_settle_one_delivery_differently_one_is_told_that_it_has(
    mq: Any, connect: Connect, database: Database, far: str, own: str
) -> None:
    """What the other one has written comes to the same ranges, and was not the owner's write."""
    other = await connect(database.url)
    await publish(mq, 1)
    async with subscribe(mq) as sub:
        (delivery,) = await take(sub, 1)
        claim = claim_of(plain(delivery))
        assert claim is not None
        store, wanted = plain(other)._store, wanted_of([claim], far)
        assert await other._run(partial(settle_claims, store, "t", "g", wanted)) == [None]
        with pytest.raises((errors.StaleLease, errors.AlreadySettled)):
            await getattr(delivery, own)()
    assert len(await mq.dead_letters("t")) == (far == "reject")
    assert await acked(mq) == 1


@pytest.mark.parametrize("late", ["ack", "nack", "reject", "extend"])
async def test_what_was_given_back_is_not_settled_by_whoever_had_it_before(
    mq: Any, connect: Connect, database: Database, late: str
) -> None:
    """The attempts at a message that was redriven are counted anew, under the same lease."""
    other = await connect(database.url)
    store = plain(other)._store
    await publish(mq, 1)

    async def settle(claim: Any, how: str) -> Any:
        seconds = 60.0 if how == "extend" else None
        wanted = wanted_of([claim], how, seconds=seconds)
        (outcome,) = await other._run(partial(settle_claims, store, "t", "g", wanted))
        return outcome

    async with subscribe(mq) as sub:
        (first,) = await take(sub, 1)
        before = claim_of(plain(first))
        assert await settle(before, "reject") is None
        assert await mq.redrive("t", group="g") == 1
        (second,) = await take(sub, 1)
        assert second.attempt == first.attempt == 1
        assert isinstance(await settle(before, late), errors.StaleLease)
        now = claim_of(plain(second))
        assert await settle(now, "nack") is None
        assert isinstance(await settle(now, "nack"), errors.AlreadySettled)
        assert isinstance(await settle(before, late), errors.StaleLease)
        (third,) = await take(sub, 1)
        assert third.attempt == 2
        await third.ack()
    assert await mq.dead_letters("t") == []
    assert await acked(mq) == 1
