"""The sync and the async client are twins: what one has, the other has, with equal signatures."""

import inspect
from typing import Any

import pytest

import rowmq

TWINS = [
    (rowmq.RowMQ, rowmq.AsyncRowMQ),
    (rowmq.Transaction, rowmq.AsyncTransaction),
    (rowmq.Subscriber, rowmq.AsyncSubscriber),
    (rowmq.Delivery, rowmq.AsyncDelivery),
    (rowmq.Queue, rowmq.AsyncQueue),
    (rowmq.Poller, rowmq.AsyncPoller),
    (rowmq.Job, rowmq.AsyncJob),
    (rowmq.Cron, rowmq.AsyncCron),
    (rowmq.Access, rowmq.AsyncAccess),
]

# What is started by being entered or awaited, and not by being called.
NOT_AWAITED = {"subscribe", "reset", "queue", "poller", "receipt"}


def public(cls: type[Any]) -> dict[str, Any]:
    """The methods of a class, and those that it inherits from its own side."""
    return {
        name: member
        for base in reversed(cls.__mro__[:-1])
        for name, member in vars(base).items()
        if not name.startswith("_") and inspect.isroutine(member)
    }


def plain(annotation: Any) -> str:
    """An annotation, with the async classes called like their twins."""
    name = str(annotation)
    for twin in ("Delivery", "Sub", "Job", "Queue", "Poller"):
        name = name.replace(f"Async{twin}", twin)
    return name


PAIRS = [
    pytest.param(sync, getattr(async_cls, name, None), id=f"{sync_cls.__name__}.{name}")
    for sync_cls, async_cls in TWINS
    for name, sync in public(sync_cls).items()
]


@pytest.mark.parametrize(("sync", "twin"), TWINS)
def test_twins_have_the_same_public_names(sync: type[Any], twin: type[Any]) -> None:
    assert sorted(public(sync)) == sorted(public(twin))


@pytest.mark.parametrize(("sync", "twin"), [*PAIRS, (rowmq.connect, rowmq.connect_async)])
def test_twins_have_equal_parameters(sync: Any, twin: Any) -> None:
    ours, theirs = inspect.signature(sync).parameters, inspect.signature(twin).parameters
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert parameter.kind == theirs[name].kind
        assert parameter.default == theirs[name].default
        assert plain(parameter.annotation) == plain(theirs[name].annotation)


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_twins_return_the_same(sync: Any, twin: Any) -> None:
    returned = inspect.signature(sync).return_annotation
    if "Iterator" not in str(returned):
        assert plain(returned) == plain(inspect.signature(twin).return_annotation)


@pytest.mark.parametrize(("sync", "twin"), [*PAIRS, (rowmq.connect, rowmq.connect_async)])
def test_the_async_twin_is_awaited(sync: Any, twin: Any) -> None:
    assert not inspect.iscoroutinefunction(sync)
    inner = inspect.unwrap(twin)
    is_awaited = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
    assert is_awaited == (sync.__name__ not in NOT_AWAITED)


@pytest.mark.parametrize("pair", TWINS)
def test_every_public_method_says_what_it_does(pair: tuple[type[Any], type[Any]]) -> None:
    for cls in pair:
        assert cls.__doc__
        for name, member in public(cls).items():
            assert inspect.getdoc(member), f"{cls.__name__}.{name}"


def test_every_exported_name_is_there_and_explained() -> None:
    assert len(set(rowmq.__all__)) == len(rowmq.__all__)
    for name in rowmq.__all__:
        exported = getattr(rowmq, name)
        assert isinstance(exported, str) or inspect.getdoc(exported), name


@pytest.mark.parametrize(
    "cls",
    [
        value
        for name in rowmq.__all__
        if inspect.isclass(value := getattr(rowmq, name)) and name != "errors"
    ],
)
def test_exported_classes_can_be_typed_by_name(cls: type[Any]) -> None:
    assert getattr(rowmq, cls.__name__) is cls


def test_a_closed_client_says_so() -> None:
    mq = rowmq.connect("sqlite://")
    mq.close()
    mq.close()
    with pytest.raises(rowmq.errors.Closed):
        mq.publish("t", 1)


async def test_a_closed_async_client_says_so() -> None:
    mq = await rowmq.connect_async("sqlite://")
    await mq.close()
    await mq.close()
    with pytest.raises(rowmq.errors.Closed):
        await mq.publish("t", 1)
