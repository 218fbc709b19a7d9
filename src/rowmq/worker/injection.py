"""What a handler wants to be given, read from its annotations, once, when it is declared."""

import inspect
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
    hints = hints_of(function)
    roles: dict[str, Role] = {}
    implied: Any = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        kind = typing.get_origin(hint) or hint
        role = role_of(kind, work)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if role is Role.PAYLOAD:
            if parameter.default is not parameter.empty and Role.PAYLOAD in roles.values():
                continue
            check_alone(function, parameter, roles)
        else:
            check_role(function, parameter.name, role, kind, work)
            implied = next(iter(typing.get_args(hint)), implied)
        roles[parameter.name] = role
    payload = next((name for name, role in roles.items() if role is Role.PAYLOAD), None)
    plan = Plan(roles, check_type(none_if_any(implied if payload is None else hints.get(payload))))
    check_transaction(function, plan, transactional=transactional)
    return plan


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a handler, resolved."""
    target = inspect.unwrap(function)
    while hasattr(target, "func"):  # a functools.partial
        target = target.func
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


def check_alone(
    function: Callable[..., Any], parameter: inspect.Parameter, roles: dict[str, Role]
) -> None:
    taken = [name for name, role in roles.items() if role is Role.PAYLOAD]
    if taken:
        raise InvalidOption(
            f"handler {name_of(function)} has two parameters for the payload, {taken[0]!r} and "
            f"{parameter.name!r}: annotate what is not the payload, as in `job: rowmq.Job`, or "
            f"give it a default"
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
    target = function
    while hasattr(target, "func"):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(target, "__call__", None)  # noqa: B004 - an object with an async call
    )


def name_of(function: Callable[..., Any]) -> str:
    """What people know a handler by."""
    target = function
    while hasattr(target, "func"):
        target = target.func
    return str(getattr(target, "__name__", type(target).__name__))
