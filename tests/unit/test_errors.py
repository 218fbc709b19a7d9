"""Errors form one tree, and each is explained where it is defined and in the documentation."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from rowmq import errors
from rowmq.errors import RowMQError

NAMES = errors.__all__
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_every_public_error_is_exported() -> None:
    defined = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, BaseException)
    ]
    assert sorted(defined) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_error_belongs_to_the_tree_and_says_what_it_means(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, RowMQError)
    assert vars(kind)["__doc__"].strip().endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_an_error_can_be_sent_to_another_process(name: str) -> None:
    error = getattr(errors, name)("what happened")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert str(copy) == "what happened"


@pytest.mark.parametrize("name", NAMES)
def test_an_error_can_be_made_again_from_its_arguments(name: str) -> None:
    """As combined calls do, to give each caller an error of its own."""
    error = getattr(errors, name)("what happened")
    assert str(type(error)(*error.args)) == str(error)


def test_every_error_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert [name for name in NAMES if name not in documented] == []
