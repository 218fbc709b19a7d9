"""A handle's options are checked once, and say which kinds it sees."""

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import pytest

import rowmq
from rowmq.errors import InvalidOption, InvalidQueue
from rowmq.queue.view import DEFAULT_RETRY, View, view_of


@dataclasses.dataclass
class Email:
    to: str


class Point(NamedTuple):
    x: int


def view(queue: str = "q", **given: Any) -> View:
    defaults: dict[str, Any] = {
        "type": None,
        "kind": None,
        "lock_timeout": 300,
        "retry": None,
        "max_deliveries": None,
        "poll_interval": 0.1,
    }
    return view_of(queue, **(defaults | given))


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        (None, ""),
        (Email, "Email"),
        (Point, "Point"),
        (str, "str"),
        (bytes, "bytes"),
        (list, "list"),
        (list[int], "list[int]"),
        (dict[str, int], "dict[str, int]"),
        (int | None, "int | None"),
        (Literal["a"], "typing.Literal['a']"),
    ],
    ids=str,
)
def test_a_kind_is_what_the_type_is_called(type: Any, kind: str) -> None:
    assert view(type=type).kind == kind


def test_a_kind_can_be_given() -> None:
    assert (view(kind="mail.v2").kind, view(kind="mail.v2").type) == ("mail.v2", None)
    assert (view(type=Email, kind="mail").kind, view(type=Email, kind="mail").type) == (
        "mail",
        Email,
    )


def test_a_handle_without_a_type_sees_all_kinds() -> None:
    assert view().kinds is None
    assert all(view().sees(kind) for kind in ("", "Email", "anything"))


def test_a_handle_with_a_type_sees_its_own_and_what_has_none() -> None:
    mine = view(type=Email)
    assert set(mine.kinds or ()) == {"Email", ""}
    assert mine.sees("Email")
    assert mine.sees("")
    assert not mine.sees("email")
    assert not mine.sees("Point")


def test_times_are_whole_microseconds() -> None:
    assert view(lock_timeout=0.0015).lock_us == 1_500
    assert view(lock_timeout=timedelta(minutes=5)).lock_us == 300_000_000
    assert view(poll_interval=timedelta(milliseconds=50)).poll_interval == 0.05


def test_retries_go_on_for_hours_unless_said_otherwise() -> None:
    assert view().retry is DEFAULT_RETRY
    delays = [DEFAULT_RETRY.delay(attempt) for attempt in range(1, 21)]
    assert delays[-1] is None
    total = sum(delay for delay in delays if delay is not None)
    assert 6 * 3600 < total < 24 * 3600
    constant = rowmq.Constant(5)
    assert view(retry=constant).retry is constant


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lock_timeout": 0}, InvalidOption),
        ({"lock_timeout": None}, InvalidOption),
        ({"lock_timeout": 1e-4}, InvalidOption),
        ({"poll_interval": -1}, InvalidOption),
        ({"retry": rowmq.Constant}, InvalidOption),
        ({"retry": 5}, InvalidOption),
        ({"max_deliveries": 0}, InvalidOption),
        ({"max_deliveries": True}, InvalidOption),
        ({"type": 5}, InvalidOption),
        ({"type": "Email"}, InvalidOption),
        ({"kind": ""}, InvalidQueue),
        ({"kind": 7}, InvalidQueue),
        ({"kind": "x" * 201}, InvalidQueue),
        ({"queue": ""}, InvalidQueue),
        ({"queue": "x" * 201}, InvalidQueue),
    ],
    ids=str,
)
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        view(**options)


def test_a_type_with_too_long_a_name_needs_a_kind() -> None:
    long = dataclasses.make_dataclass("X" * 201, ["x"])
    with pytest.raises(InvalidOption, match="kind="):
        view(type=long)
    assert view(type=long, kind="short").kind == "short"


def test_a_view_is_a_value() -> None:
    same: Callable[[], View] = lambda: view(type=Email, max_deliveries=3)  # noqa: E731
    assert same() == same()
    assert same() != view(type=Email)
    with pytest.raises(AttributeError):
        same().kind = "x"  # type: ignore[misc]
