"""What a handler is given is read from its annotations, whatever their order and the names."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from unittest.mock import AsyncMock, Mock

import msgspec
import pydantic
import pytest

import rowmq
from rowmq.errors import InvalidOption
from rowmq.worker.injection import Work, is_async, name_of, plan_of
from tests.unit.worker import later

T = TypeVar("T")


@dataclass
class Order:
    id: int


class Email(msgspec.Struct):
    to: str


class Model(pydantic.BaseModel):
    id: int


def roles(function: Callable[..., Any], work: Work = Work.QUEUE, **how: Any) -> dict[str, str]:
    """What each parameter is given, in short."""
    plan = plan_of(function, work, **({"transactional": False} | how))
    return {name: role.name.lower() for name, role in plan.roles.items()}


def type_of(function: Callable[..., Any], work: Work = Work.QUEUE) -> Any:
    return plan_of(function, work, transactional=False).type


def refused(function: Callable[..., Any], work: Work = Work.QUEUE, **how: Any) -> str:
    with pytest.raises(InvalidOption) as error:
        plan_of(function, work, **({"transactional": False} | how))
    return str(error.value)


# --- what is given ------------------------------------------------------------------------------


def test_nothing_is_given_to_who_wants_nothing() -> None:
    def handler() -> None: ...

    assert roles(handler) == {}
    assert type_of(handler) is None


def test_a_parameter_without_an_annotation_is_the_payload() -> None:
    def handler(anything) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001

    assert roles(handler) == {"anything": "payload"}
    assert type_of(handler) is None


def test_everything_at_once_in_an_order_of_its_own() -> None:
    async def of_topic(
        *,
        tx: rowmq.AsyncTransaction,
        ctx: rowmq.Context,
        order: Order,
        progress: rowmq.Progress,
        d: rowmq.Delivery[Order],
        mq: rowmq.AsyncRowMQ,
        m: rowmq.Message[Order],
    ) -> None: ...

    assert roles(of_topic, Work.TOPIC, transactional=True) == {
        "tx": "transaction",
        "ctx": "context",
        "order": "payload",
        "progress": "progress",
        "d": "delivery",
        "mq": "client",
        "m": "message",
    }


def test_keyword_only_parameters_are_given_too() -> None:
    def handler(*, job: rowmq.Job[Email], email: Email) -> None: ...

    assert roles(handler) == {"job": "job", "email": "payload"}


def test_stars_are_given_nothing() -> None:
    def handler(email: Email, *args: Any, **kwargs: Any) -> None: ...

    assert roles(handler) == {"email": "payload"}


def test_positional_only_parameters_are_refused() -> None:
    def handler(email: Email, /, job: rowmq.Job[Email]) -> None: ...

    assert "'email'" in refused(handler)


@pytest.mark.parametrize(
    "wanted", [Order, Email, Model, int, str, dict, list[int], dict[str, Order], Order | int]
)
def test_the_payload_is_of_the_type_it_is_annotated_with(wanted: Any) -> None:
    def handler(payload: Any, job: rowmq.Job) -> None: ...  # type: ignore[type-arg]

    handler.__annotations__["payload"] = wanted
    assert type_of(handler) == wanted


@pytest.mark.parametrize("anything", [Any, object, T])
def test_some_annotations_ask_for_no_type(anything: Any) -> None:
    def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = anything
    assert type_of(handler) is None


def test_without_a_payload_the_type_is_that_of_the_job_or_delivery() -> None:
    def of_job(job: rowmq.Job[Email]) -> None: ...
    def of_delivery(d: rowmq.Delivery[Order]) -> None: ...
    def of_message(m: rowmq.Message[list[int]]) -> None: ...
    def of_either(m: rowmq.Message[Any], d: rowmq.Delivery[Order]) -> None: ...

    assert type_of(of_job) is Email
    assert type_of(of_delivery, Work.TOPIC) is Order
    assert type_of(of_message, Work.TOPIC) == list[int]
    assert type_of(of_either, Work.TOPIC) is Order


def test_the_payloads_own_annotation_counts_first() -> None:
    def handler(payload: Email, job: rowmq.Job[Any]) -> None: ...

    assert type_of(handler) is Email


def test_the_fire_time_is_a_cron_handlers_only() -> None:
    def handler(at: datetime) -> None: ...

    assert roles(handler, Work.CRON) == {"at": "fire_time"}
    assert roles(handler, Work.QUEUE) == {"at": "payload"}
    assert type_of(handler, Work.QUEUE) is datetime


def test_annotations_may_be_text() -> None:
    assert roles(later.handler) == {"job": "job", "email": "payload"}
    assert type_of(later.handler) is later.Letter
    assert is_async(later.handler)


def test_what_has_a_default_may_stay_out() -> None:
    def handler(email: Email, retries: int = 3) -> None: ...

    assert roles(handler) == {"email": "payload"}


def test_the_only_candidate_may_have_a_default() -> None:
    def handler(email: Email | None = None) -> None: ...

    assert roles(handler) == {"email": "payload"}


# --- what can be a handler ----------------------------------------------------------------------


class Mailer:
    """A handler with a state."""

    def __call__(self, job: rowmq.Job[Email], email: Email) -> None: ...

    async def later(self, email: Email) -> None: ...

    @staticmethod
    def still(email: Email) -> None: ...

    @classmethod
    def of_class(cls, email: Email) -> None: ...


class AsyncMailer:
    async def __call__(self, email: Email) -> None: ...


def test_objects_and_methods_can_be_handlers() -> None:
    assert roles(Mailer()) == {"job": "job", "email": "payload"}
    assert type_of(Mailer()) is Email
    assert roles(Mailer().later) == {"email": "payload"}
    assert roles(Mailer.still) == roles(Mailer.of_class) == {"email": "payload"}
    assert (name_of(Mailer()), name_of(Mailer().later)) == ("Mailer", "later")
    assert [is_async(f) for f in (Mailer(), Mailer().later, AsyncMailer())] == [False, True, True]


def test_partials_can_be_handlers() -> None:
    async def handler(server: str, email: Email, job: rowmq.Job[Email]) -> None: ...

    bound = functools.partial(functools.partial(handler), "smtp")
    assert roles(bound) == {"email": "payload", "job": "job"}
    assert type_of(bound) is Email
    assert name_of(bound) == "handler"
    assert is_async(bound)


def test_a_partial_may_give_any_parameter_by_name() -> None:
    def handler(server: str, email: Email) -> None: ...

    assert roles(functools.partial(handler, server="smtp")) == {"email": "payload"}


def test_decorated_functions_are_looked_through() -> None:
    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @timed
    def handler(email: Email, job: rowmq.Job[Email]) -> None: ...

    assert roles(handler) == {"email": "payload", "job": "job"}
    assert name_of(handler) == "handler"


class Wrapped:
    """An object that has a `func` and is no partial."""

    def __init__(self, func: object) -> None:
        self.func = func

    async def __call__(self, email: Email, job: rowmq.Job[Email]) -> None: ...


def test_what_merely_has_a_func_is_no_partial() -> None:
    wrapped = Wrapped("something else")
    assert roles(wrapped) == {"email": "payload", "job": "job"}
    assert name_of(wrapped) == "Wrapped"
    assert is_async(wrapped)


@pytest.mark.timeout(10)
def test_a_mock_can_be_a_handler() -> None:
    assert not is_async(Mock())
    assert is_async(AsyncMock())
    assert roles(AsyncMock()) == {}


# --- what is refused ----------------------------------------------------------------------------


def test_two_payloads_are_refused() -> None:
    def handler(email: Email, subject: str) -> None: ...

    message = refused(handler)
    assert "'email'" in message
    assert "'subject'" in message
    assert "job: rowmq.Job" in message


@pytest.mark.parametrize(
    ("hint", "work", "owner"),
    [
        (rowmq.Job, Work.TOPIC, "@app.worker"),
        (rowmq.Delivery, Work.QUEUE, "@app.subscriber"),
        (rowmq.Message, Work.QUEUE, "@app.subscriber"),
        (rowmq.Delivery, Work.CRON, "@app.subscriber"),
    ],
)
def test_what_there_is_not_is_refused(hint: Any, work: Work, owner: str) -> None:
    def handler(thing: Any) -> None: ...

    handler.__annotations__["thing"] = hint
    assert owner in refused(handler, work)


@pytest.mark.parametrize(
    ("hint", "instead"),
    [
        (rowmq.RowMQ, "AsyncRowMQ"),
        (rowmq.Transaction, "AsyncTransaction"),
    ],
)
def test_an_async_handler_gets_nothing_that_blocks(hint: Any, instead: str) -> None:
    async def handler(thing: Any) -> None: ...

    handler.__annotations__["thing"] = hint
    assert f"rowmq.{instead}" in refused(handler, transactional=True)


@pytest.mark.parametrize(
    ("hint", "instead"),
    [
        (rowmq.AsyncRowMQ, "RowMQ"),
        (rowmq.AsyncTransaction, "Transaction"),
        (rowmq.AsyncJob, "Job"),
    ],
)
def test_a_sync_handler_gets_nothing_to_await(hint: Any, instead: str) -> None:
    def handler(thing: Any) -> None: ...

    handler.__annotations__["thing"] = hint
    assert f"rowmq.{instead}" in refused(handler, transactional=True)


def test_a_transaction_needs_a_transactional_handler() -> None:
    def handler(tx: rowmq.Transaction) -> None: ...

    assert "transactional=True" in refused(handler)
    assert roles(handler, transactional=True) == {"tx": "transaction"}


def test_annotations_that_cannot_be_resolved_are_told_of() -> None:
    def handler(email: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

    message = refused(handler)
    assert "Nowhere" in message
    assert "TYPE_CHECKING" in message


def test_a_type_that_nothing_parses_as_is_refused() -> None:
    def handler(payload: Order | Email) -> None: ...

    assert "Order" in refused(handler)


def test_generators_are_refused() -> None:
    def generator(email: Email) -> Any:
        yield email

    async def async_generator(email: Email) -> Any:
        yield email

    assert "generator" in refused(generator)
    assert "generator" in refused(async_generator)


def test_a_class_is_refused_where_an_object_is_meant() -> None:
    assert "Mailer" in refused(Mailer)


def test_what_may_be_none_is_given_or_refused_but_never_left_out_silently() -> None:
    def handler(email: Email, job: rowmq.Job[Email] | None = None) -> None: ...

    try:
        assert roles(handler) == {"email": "payload", "job": "job"}
    except InvalidOption as error:
        assert "job" in str(error)  # noqa: PT017 - either will do
