"""Placeholders of every style in every other, and everything else left alone."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.drivers.placeholders import Style, restyle, restyle_own
from rowmq.errors import InvalidInput

TARGETS: list[Style] = ["?", "%s", "$1"]
EXPECTED = {
    "?": "SELECT a FROM t WHERE b = ? AND c = ?",
    "%s": "SELECT a FROM t WHERE b = %s AND c = %s",
    "$1": "SELECT a FROM t WHERE b = $1 AND c = $2",
}

every_target = pytest.mark.parametrize("target", TARGETS)


@every_target
@pytest.mark.parametrize(
    ("sql", "params"),
    [
        *((sql, ["x", "y"]) for sql in EXPECTED.values()),
        ("SELECT a FROM t WHERE b = ?1 AND c = ?2", ("x", "y")),
        ("SELECT a FROM t WHERE b = $2 AND c = $1", ["y", "x"]),
        ("SELECT a FROM t WHERE b = :one AND c = :two", {"two": "y", "one": "x", "more": 0}),
    ],
)
def test_every_style_becomes_every_other(sql: str, params: Any, target: Style) -> None:
    assert restyle(sql, params, target) == (EXPECTED[target], ["x", "y"])


def test_a_repeated_number_is_repeated() -> None:
    assert restyle("$1 $2 $1", [1, 2], "?") == ("? ? ?", [1, 2, 1])
    assert restyle("$1 $2 $1", [1, 2], "%s") == ("%s %s %s", [1, 2, 1])


def test_postgres_keeps_one_number_for_one_parameter() -> None:
    grouped = "SELECT date_trunc($1, at) FROM t GROUP BY date_trunc($1, at)"
    assert restyle(grouped, ["day"], "$1") == (grouped, ["day"])
    named = grouped.replace("$1", ":unit")
    assert restyle(named, {"unit": "day"}, "$1") == (grouped, ["day"])


def test_numbers_beyond_nine_are_whole() -> None:
    sql = " ".join(f"${n}" for n in range(12, 0, -1))
    values = list(range(1, 13))
    assert restyle(sql, values, "?") == (" ".join("?" * 12), values[::-1])


SKIPPED = {
    "?": ["'\\' ", "[a?b]", "`a?b`", "/* ' */"],
    "%s": [r"'it\'s ?'", r'"\"?"', "`a?b`", "# ?\n", "# it's\n"],
    "$1": [
        r"'\' ",
        r"E'it\'s ?'",
        r"e'\\'",
        "/* /* ? */ ? */",
        "$$ it's ? $$",
        "$tag$ ? $$ ? $tag$",
        "$ä$ ' $ä$",
    ],
}
SKIPPED_EVERYWHERE = ["'?'", "'it''s ?'", '"a?b"', '"a""?"', "-- ?\n", "-- it's\n", "/* ? */"]


@pytest.mark.parametrize(
    ("target", "literal"), [(t, s) for t in TARGETS for s in [*SKIPPED_EVERYWHERE, *SKIPPED[t]]]
)
def test_quoted_text_and_comments_are_left_alone(target: Style, literal: str) -> None:
    text, values = restyle(f"SELECT {literal} , ? , {literal} , ?", [1, 2], target)
    first, second = {"?": ("?", "?"), "%s": ("%s", "%s"), "$1": ("$1", "$2")}[target]
    assert text == f"SELECT {literal} , {first} , {literal} , {second}"
    assert values == [1, 2]


@every_target
def test_casts_are_no_names(target: Style) -> None:
    text, values = restyle("SELECT :a::int, x::text", {"a": 1, "int": 2}, target)
    assert "::int" in text
    assert "x::text" in text
    assert values == [1]


def test_identifiers_with_a_dollar_are_no_placeholders() -> None:
    assert restyle("SELECT a$1, $1", [1], "?") == ("SELECT a$1, ?", [1])


def test_a_question_mark_beside_another_style_is_an_operator() -> None:
    assert restyle("data ? 'key' AND id = $1", [1], "$1") == ("data ? 'key' AND id = $1", [1])
    assert restyle("data ?| x AND id = %s", [1], "$1") == ("data ?| x AND id = $1", [1])
    assert restyle("data ? 'key' AND id = :id", {"id": 1}, "$1")[0] == "data ? 'key' AND id = $1"


def test_a_percent_sign_is_doubled_only_for_drivers_that_format() -> None:
    assert restyle("a LIKE '5%' AND b % 2 = ?", [1], "%s")[0] == "a LIKE '5%%' AND b %% 2 = %s"
    assert restyle("a LIKE '5%' AND b % 2 = ?", [1], "$1")[0] == "a LIKE '5%' AND b % 2 = $1"
    assert restyle("SELECT '5%'", None, "%s")[0] % () == "SELECT '5%'"


@every_target
def test_two_percent_signs_are_one_where_the_sql_is_in_format_style(target: Style) -> None:
    text, _ = restyle("a LIKE '5%%' AND b %% 2 = %s", [1], target)
    formatted = text % ("x",) if target == "%s" else text
    assert formatted.startswith("a LIKE '5%' AND b % 2 = ")


def test_two_percent_signs_stay_two_in_other_styles() -> None:
    assert restyle("a LIKE '%%' AND b = ?", [1], "$1")[0] == "a LIKE '%%' AND b = $1"
    assert restyle("SELECT '%%'", (), "$1")[0] == "SELECT '%%'"


def test_a_percent_sign_before_a_word_is_no_placeholder() -> None:
    assert restyle("a %size = ?", [1], "$1")[0] == "a %size = $1"


@every_target
@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT %s", [1, 2]),
        ("SELECT $2", [1]),
        ("SELECT $1", [1, 2]),
        ("SELECT 1", [1]),
        ("SELECT '?'", [1]),
        ("SELECT $0", [1]),
        ("SELECT $0, $1", [1]),
        ("SELECT :a", {}),
        ("SELECT :a", {"b": 1}),
        ("SELECT :a, $1", {"a": 1}),
        ("SELECT ?", "a"),
        ("SELECT ?", b"a"),
        ("SELECT ?", {1}),
        ("SELECT ?", iter([1])),
        ("SELECT ?", 1),
    ],
)
def test_parameters_that_do_not_fit_are_refused(sql: str, params: Any, target: Style) -> None:
    with pytest.raises(InvalidInput):
        restyle(sql, params, target)


def test_without_parameters_the_sql_is_the_drivers_to_read() -> None:
    assert restyle("SELECT ?", [], "?") == ("SELECT ?", [])


def test_an_empty_mapping_needs_no_names() -> None:
    assert restyle("SELECT 1", {}, "?") == ("SELECT 1", [])


plain = st.text(st.characters(exclude_characters="'\\", exclude_categories=["Cs"]))
pieces = st.lists(plain.map(lambda text: f"'{text}'"), min_size=1, max_size=5)


@given(pieces, st.sampled_from(TARGETS), st.sampled_from(["?", "$1", ":name"]))
def test_literals_are_never_changed(literals: list[str], target: Style, source: str) -> None:
    sql = f" {source} ".join(["SELECT 1", *literals])
    count = len(literals)
    params: Any = {"name": 7} if source == ":name" else [7] * (1 if source == "$1" else count)
    text, values = restyle(sql, params, target)
    formatted = text % tuple(["<>"] * len(values)) if target == "%s" else text
    for literal in literals:
        assert literal in formatted


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(TARGETS))
def test_sql_without_parameters_is_never_changed(sql: str, target: Style) -> None:
    text, values = restyle(sql, None, target)
    assert (text % () if target == "%s" else text) == sql
    assert values == []


@given(st.lists(st.sampled_from(["?", "'", '"', "--", "\n", "/*", "*/", "a", "[", "]", "`", "''"])))
def test_sqlite_finds_the_same_placeholders(tokens: list[str]) -> None:
    """SQLite itself tells how many there are, for whatever it can parse."""
    sql = "SELECT " + " , ".join(["1", *tokens])
    with closing(sqlite3.connect(":memory:")) as connection:
        for count in range(len(tokens) + 1):
            try:
                connection.execute(sql, [0] * count)
            except sqlite3.Error as error:
                if "bindings" in str(error):
                    continue
                return
            assert restyle(sql, [0] * count, "?") == (sql, [0] * count)
            return


@pytest.mark.parametrize("sql", ["'" * 5001, "/*" * 5000, "$a$" * 5001, "E'\\" * 5000, "?" * 5000])
def test_hostile_sql_takes_no_time(sql: str) -> None:
    for target in TARGETS:
        restyle(sql, None, target)


def test_own_statements_are_restyled_for_a_callers_driver() -> None:
    assert restyle_own("SELECT $1, $2", (1, 2), "%s") == ("SELECT %s, %s", [1, 2])
    assert restyle_own("SELECT ?", (1,), "%s") == ("SELECT %s", [1])
    assert restyle_own("SELECT %s", (1,), "%s") == ("SELECT %s", (1,))
    assert restyle_own("SELECT $1", (1,), "$1") == ("SELECT $1", [1])
