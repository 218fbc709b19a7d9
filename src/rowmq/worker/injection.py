"""What a handler wants to be given, read from its annotations, once, when it is declared."""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from rowmq.client import AsyncRowMQ, RowMQ
from rowmq.errors import InvalidOption
from rowmq.message import Message
from rowmq.options import check_type
from rowmq.queue.job import AsyncJob, Job
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.transaction import AsyncTransaction, Transaction
from rowmq.worker.context import Context, Progress

__all__ = ["Plan", "Role", "Work", "is_async", "name_of", "plan_of"]


class Work(Enum):
    """What a handler is for."""

    TOPIC = "subscriber"
    QUEUE = "worker"
    CRON = "cron"


class Role(Enum):
    """What a parameter is given."""

    PAYLOAD = "the payload"
    DELIVERY = "the delivery"
    JOB = "the job"
    MESSAGE = "the message"
    TRANSACTION = "the transaction"
    CLIENT = "a client"
    PROGRESS = "the progress"
    CONTEXT = "the context"
    FIRE_TIME = "the fire time"


ROLES: dict[Any, Role] = {
    Delivery: Role.DELIVERY,
    AsyncDelivery: Role.DELIVERY,
    Job: Role.JOB,
    AsyncJob: Role.JOB,
    Message: Role.MESSAGE,
    Transaction: Role.TRANSACTION,
    AsyncTransaction: Role.TRANSACTION,
    RowMQ: Role.CLIENT,
    AsyncRowMQ: Role.CLIENT,
    Progress: Role.PROGRESS,
    Context: Role.CONTEXT,
}

ONLY_FOR: dict[Role, tuple[Work, ...]] = {
    Role.DELIVERY: (Work.TOPIC,),
    Role.MESSAGE: (Work.TOPIC,),
    Role.JOB: (Work.QUEUE, Work.CRON),
    Role.FIRE_TIME: (Work.CRON,),
}

# A call that is not awaited does nothing, and one that blocks stops every other handler. Deliveries
# and jobs are not here: a worker's take effect whether they are awaited or not.
FLAVOURED: dict[Any, tuple[bool, str]] = {
    Transaction: (False, "AsyncTransaction"),
    RowMQ: (False, "AsyncRowMQ"),
    AsyncTransaction: (True, "Transaction"),
    AsyncRowMQ: (True, "RowMQ"),
    AsyncDelivery: (True, "Delivery"),
    AsyncJob: (True, "Job"),
}


class Plan(msgspec.Struct, frozen=True):
    """What each parameter of a handler is given, and the type of the payload."""

    roles: dict[str, Role]
    type: Any = None

    def wants(self, role: Role) -> bool:
        return role in self.roles.values()


def plan_of(function: Callable[..., Any], work: Work, *, transactional: bool) -> Plan:
    """What to give a handler. Raises `InvalidOption` if it cannot be called so."""
    check_function(function)
    hints = hints_of(function)
    roles: dict[str, Role] = {}
    implied: Any = None
    candidates: list[inspect.Parameter] = []
    for parameter in parameters_of(function):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        check_named(function, parameter)
        hint = without_none(hints.get(parameter.name), work)
        kind = typing.get_origin(hint) or hint
        role = role_of(kind, work)
        if role is Role.PAYLOAD:
            candidates.append(parameter)
            continue
        check_role(function, parameter.name, role, kind, work)
        implied = next(iter(typing.get_args(hint)), implied)
        roles[parameter.name] = role
    payload = payload_among(function, candidates, work)
    wanted = implied
    if payload is not None:
        roles[payload.name] = Role.PAYLOAD
        wanted = hints.get(payload.name)
    plan = Plan(roles, check_type(none_if_any(wanted)))
    check_transaction(function, plan, transactional=transactional)
    return plan


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a handler; none, if it does not tell, as a mock need not."""
    try:
        return list(inspect.signature(function).parameters.values())
    except TypeError:
        return []
    except ValueError as error:
        raise InvalidOption(
            f"handler {name_of(function)} does not tell its parameters: wrap it in a function"
        ) from error


def payload_among(
    function: Callable[..., Any], candidates: list[inspect.Parameter], work: Work
) -> inspect.Parameter | None:
    """The parameter for the payload: the one that must be given, or else the first. Most schedules
    have no payload, so a cron handler's defaults are left alone.
    """
    needed = [parameter for parameter in candidates if parameter.default is parameter.empty]
    if len(needed) > 1:
        raise InvalidOption(
            f"handler {name_of(function)} has two parameters for the payload, {needed[0].name!r} "
            f"and {needed[1].name!r}: annotate what is not the payload, as in `job: rowmq.Job`, or "
            f"give it a default"
        )
    return next(iter(needed or ([] if work is Work.CRON else candidates)), None)


def without_none(hint: Any, work: Work) -> Any:
    """What is optional, if one of ours is: a worker always has it to give."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    kinds = typing.get_args(hint)
    ours = [k for k in kinds if role_of(typing.get_origin(k) or k, work) is not Role.PAYLOAD]
    return ours[0] if len(ours) == 1 else hint


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a handler, resolved."""
    target = plain(inspect.unwrap(plain(function)))
    if not inspect.isroutine(target):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:
        raise InvalidOption(
            f"the annotations of handler {name_of(function)} cannot be resolved ({error}): import "
            f"what they name at run time, not under `if TYPE_CHECKING`"
        ) from error


def role_of(kind: Any, work: Work) -> Role:
    if work is Work.CRON and kind is datetime:
        return Role.FIRE_TIME
    try:
        return ROLES.get(kind, Role.PAYLOAD)
    except TypeError:  # it has no hash, so it is none of ours
        return Role.PAYLOAD


def none_if_any(hint: Any) -> Any:
    """No type is asked for by Any, by object, and by a type variable."""
    return None if hint in (Any, object) or isinstance(hint, typing.TypeVar) else hint


def check_function(function: Callable[..., Any]) -> None:
    """Refuse what would be called and do nothing."""
    target = plain(function)
    if isinstance(target, type):
        raise InvalidOption(
            f"a handler is a function, and {name_of(function)} is a class: give an instance of it"
        )
    called = target if inspect.isroutine(target) else type(target).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidOption(
            f"handler {name_of(function)} has a `yield`, so calling it would run nothing of it: "
            f"use return, or none"
        )


def check_named(function: Callable[..., Any], parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidOption(
            f"handler {name_of(function)} has the positional-only parameter {parameter.name!r}: "
            f"arguments are given by name, so leave out the `/`"
        )


def check_role(
    function: Callable[..., Any], parameter: str, role: Role, kind: Any, work: Work
) -> None:
    allowed = ONLY_FOR.get(role)
    if allowed is not None and work not in allowed:
        owners = " or ".join(f"@app.{owner.value}" for owner in allowed)
        raise InvalidOption(
            f"handler {name_of(function)} wants {role.value} ({parameter}), which only {owners} has"
        )
    for_async, other = FLAVOURED.get(kind, (None, ""))
    if for_async is not None and for_async is not is_async(function):
        flavour = "async" if is_async(function) else "sync"
        raise InvalidOption(
            f"handler {name_of(function)} is {flavour}: annotate {parameter!r} as rowmq.{other}"
        )


def check_transaction(function: Callable[..., Any], plan: Plan, *, transactional: bool) -> None:
    if plan.wants(Role.TRANSACTION) and not transactional:
        raise InvalidOption(
            f"handler {name_of(function)} wants the transaction: declare it with transactional=True"
        )


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    target = plain(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - an object with an async call
    )


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def name_of(function: Callable[..., Any]) -> str:
    """What people know a handler by."""
    target = plain(function)
    return str(getattr(target, "__name__", type(target).__name__))
