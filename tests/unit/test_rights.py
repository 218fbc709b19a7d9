"""Roles, scopes and secrets."""

from typing import Any

import pytest

from rowmq import errors
from rowmq.rights import (
    Role,
    check_roles,
    check_scopes,
    check_token_name,
    hash_of,
    new_secret,
    same,
    within,
)


@pytest.mark.parametrize(
    ("name", "scopes", "expected"),
    [
        ("orders", ["orders"], True),
        ("orders", ["order"], False),
        ("orders-eu", ["orders"], False),
        ("orders-eu", ["orders*"], True),
        ("orders", ["orders*"], True),
        ("order", ["orders*"], False),
        ("anything", ["*"], True),
        ("anything", [], False),
        ("a*c", ["a*b"], False),
        ("abc", ["a*c"], False),  # only at the end is it a prefix
        ("Orders", ["orders"], False),
        ("b", ["a", "b*"], True),
    ],
)
def test_scopes_are_names_and_prefixes(name: str, scopes: list[str], expected: bool) -> None:
    assert within(name, scopes) is expected


def test_secrets_are_long_known_by_scanners_and_never_the_same() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(secret.startswith("rowmq_") and len(secret) == 49 for secret in secrets)
    assert len({hash_of(secret) for secret in secrets}) == 100
    assert len(hash_of("\ud800é")) == 64
    assert same("\ud800", "\ud800")
    assert not same("a", "b")


@pytest.mark.parametrize("roles", ["read", [], ["write"], [1], None, 7])
def test_roles_that_are_none_are_refused(roles: Any) -> None:
    with pytest.raises(errors.InvalidOption):
        check_roles(roles)


def test_roles_are_given_by_name_or_value() -> None:
    assert check_roles(["read", Role.READ, "admin"]) == {Role.READ, Role.ADMIN}


@pytest.mark.parametrize("scopes", ["orders", None, 7, [""], [1], ["a\0"], ["x" * 300],
                                    [str(n) for n in range(101)]])  # fmt: skip
def test_scopes_that_are_none_are_refused(scopes: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        check_scopes("topics", scopes)


@pytest.mark.parametrize("name", ["", "  ", "(loopback)", "x" * 201, "a\0", 7])
def test_names_that_would_mislead_are_refused(name: Any) -> None:
    with pytest.raises(errors.InvalidName):
        check_token_name(name)
