"""What costs an attempt: what a handler does, and not what the database does to it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.worker.executor import is_blameless
from rowmq.worker.handler import Handler
from rowmq.worker.unit import Unit


def handler_of(*, transactional: bool) -> Handler:
    app = rowmq.App("sqlite://")

    @app.worker("q", transactional=transactional)
    async def work(_: int) -> None: ...

    return app.handlers[0]


async def a_unit() -> Unit:
    async with await rowmq.connect_async("sqlite://") as mq:
        await mq.queue("q").put(1)
        job = await mq.queue("q").try_poll()
        assert job is not None
        return Unit(job)


def begun(unit: Unit) -> None:
    unit.called = True


def ended(unit: Unit) -> None:
    unit.called = unit.returned = True


def settled(unit: Unit) -> None:
    unit.manual = True


def untouched(_: Unit) -> None: ...


LOST, LOCKED = errors.ConnectionLost("gone"), errors.Locked("busy")


@pytest.mark.parametrize(
    ("state", "error", "transactional", "free"),
    [
        (untouched, errors.PoolTimeout("full"), True, True),
        (untouched, LOST, False, True),
        (ended, LOST, True, True),
        (ended, LOCKED, True, True),
        (ended, errors.UniqueViolation("twice"), True, False),
        (begun, LOST, True, True),
        (begun, LOST, False, False),
        (begun, LOCKED, True, False),
        (begun, ValueError("bad"), True, False),
        (settled, LOST, True, False),
    ],
)
def test_who_is_to_blame(
    state: Callable[[Unit], Any], error: Exception, *, transactional: bool, free: bool
) -> None:
    unit = asyncio.run(a_unit())
    state(unit)
    assert is_blameless(handler_of(transactional=transactional), unit, error) is free
