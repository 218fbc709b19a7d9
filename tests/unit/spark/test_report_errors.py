"""Errors that are alike are one reason, and those that are not stay apart."""

import pytest

from rowmq.spark.pipelines.reporting.errors import NO_ERROR, merged, normalised
from rowmq.spark.pipelines.reporting.figures import Failure
from rowmq.spark.pipelines.reporting.reasons import Place, failure_figures, reasons_of
from tests.unit.spark.reports import at

ALIKE = {
    "order <n> is <n> s late": ["order 7 is 1.5 s late", "order 12345 is 60 s late"],
    "no user <uuid>": [
        "no user 0199a1b2-0000-7000-8000-00000000abcd",
        "no user FFFFFFFF-1111-2222-3333-444444444444",
    ],
    "at <hex> in <hex>": ["at 0x7f3a in deadbeef01", "at 0xFFFF in 00c0ffee99"],
    "KeyError: '…'": ["KeyError: 'sku-1'", "KeyError: 'a b'", "KeyError: ''"],
    'column "…" of `…`': ['column "a" of `t1`', 'column "it\'s" of `t 2`'],
    "cannot read <path>": ["cannot read /var/log/a-1.txt", "cannot read /etc/x/"],
    "cannot open <path>": [r"cannot open C:\temp\a.txt", r"cannot open D:\b"],
    "GET <url> failed": ["GET https://a.example/x?y=1 failed", "GET http://[::1]:80/ failed"],
    "since <time>": ["since 2026-01-31T12:00:00Z", "since 2026-01-31 12:00:00.123+01:00"],
    "mail to <email> bounced": ["mail to ann@example.com bounced", "mail to b.c+d@x.org bounced"],
    "two lines": ["two\n   lines\n", "two\tlines"],
    "ValueError: no <n>": [
        "ValueError: no 1",
        'Traceback (most recent call last):\n  File "a.py", line 3\n    f()\nValueError: no 2',
    ],
}


@pytest.mark.parametrize("reason", ALIKE)
def test_what_differs_from_one_failure_to_the_next_is_taken_out(reason: str) -> None:
    assert {normalised(error) for error in ALIKE[reason]} == {reason}


@pytest.mark.parametrize(
    "error",
    [
        "HTTP 503 from the bank",
        "status code 404",
        "[Errno 2] No such file",
        "SQLSTATE 23505",
        "you can't and won't",
        "either/or",
        "<script>alert</script>",
    ],
)
def test_what_tells_errors_apart_stays(error: str) -> None:
    assert normalised(error) == error


@pytest.mark.parametrize("error", [None, "", "  \n"])
def test_no_error_is_a_reason_too(error: str | None) -> None:
    assert normalised(error) == NO_ERROR


def test_a_reason_is_not_longer_than_a_line_or_two() -> None:
    assert len(normalised("no way! " * 1_000)) == 200


def test_errors_that_differ_in_one_word_are_one_reason() -> None:
    names = ("ann", "bob", "eve", "mel")
    reasons = [f"LookupError: no such user {name}" for name in names]
    assert set(merged(reasons).values()) == {"LookupError: no such user <word>"}


@pytest.mark.parametrize(
    "reasons",
    [
        pytest.param([f"Error: no such user {name}" for name in "abc"], id="too few"),
        pytest.param([f"{kind}Error: it is not there" for kind in "ABCD"], id="kinds of errors"),
        pytest.param([f"no {name}" for name in "abcd"], id="short ones"),
        pytest.param([f"a {n} b {n} c" for n in "abcd"], id="two words"),
    ],
)
def test_errors_that_differ_in_more_than_one_word_stay_apart(reasons: list[str]) -> None:
    assert merged(reasons) == {reason: reason for reason in reasons}


def test_a_reason_tells_how_often_when_where_and_the_newest_error() -> None:
    failures = [
        Failure("no <n>", "orders", "billing", None, 3, at(1), at(5), "no 5"),
        Failure("no <n>", None, None, "emails", 4, at(0), at(4), "no 4"),
        Failure("else", None, None, "emails", 9, at(2), at(2), "else"),
    ]
    rare, frequent = reversed(reasons_of(failures))
    assert (frequent.text, rare.text) == ("else", "no <n>")
    assert (rare.times, rare.first, rare.last, rare.example) == (7, at(0), at(5), "no 5")
    queue, group = Place(None, None, "emails"), Place("orders", "billing", None)
    assert list(rare.places.items()) == [(queue, 4), (group, 3)]
    assert sum(figure.value for figure in failure_figures([rare])) == 7
