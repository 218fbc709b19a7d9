"""Placeholders of one style in another.

RowMQ's own statements are written in one style per database. Users' SQL, given to
`transaction.execute`, may be in any of four, whatever the database: `?`, `%s`, `$1` (or `?1`), or
`:name` with a mapping. Quoted text and comments are left alone; only, as everywhere, SQL with `%s`
has `%%` for a percent sign. A driver's style tells whose quotes they are: `$1` is PostgreSQL's,
`%s` MySQL's, `?` SQLite's. RowMQ's own statements, which reach other drivers by `restyle_own`, are
written so that the difference does not matter.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from rowmq.errors import InvalidInput
from rowmq.quoting import quoted

__all__ = ["Style", "restyle", "restyle_own"]

Style = Literal["?", "%s", "$1"]

DIGITS_MAX = 10

# What is skipped: quoted text and comments, as the database that takes a style writes them.
_SKIPPED = {
    # PostgreSQL: backslashes escape in E'...' only, comments nest, $$ quotes too.
    "$1": r"""
        (?<![\w$]) [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]*
      | /\*(?:/\*(?:[^*]|\*(?!/))*\*/|[^*/]|\*(?!/)|/(?!\*))*\*/
      | (?<![\w$]) \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$
    """,
    # MySQL: backslashes escape in all strings, # begins a comment, -- only before a space.
    "%s": r"""
        '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*` | --(?=\s|$)[^\n]* | \#[^\n]*
      | /\*.*?\*/
    """,
    # SQLite: backslashes are plain, and brackets quote names.
    "?": r"""
        '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/
    """,
}

_TOKENS = {
    style: re.compile(
        rf"""
        (?P<skip> {skipped} | :: )
      | (?<![\w$]) (?P<numbered> [$?][0-9]+ )
      | (?P<format> %s\b )
      | (?P<percent> %%? )
      | (?P<mark> \? )
      | :(?P<named> [A-Za-z_]\w* )
        """,
        re.VERBOSE | re.DOTALL,
    )
    for style, skipped in _SKIPPED.items()
}


def restyle(
    sql: str, params: Sequence[Any] | Mapping[str, Any] | None, style: Style
) -> tuple[str, list[Any]]:
    """A user's SQL and parameters in a driver's style."""
    if params is None:
        params = ()
    if isinstance(params, Mapping):
        text, names = _translated(sql, "named", style)
        missing = [name for name in names if name not in params]
        if missing:
            raise InvalidInput(
                f"the SQL names {quoted(missing[0])} and the parameters do not hold it"
            )
        return text, [params[name] for name in names]
    if isinstance(params, str | bytes) or not isinstance(params, Sequence):
        raise InvalidInput(
            f"parameters must be a list, a tuple or a mapping, not a {type(params).__name__}"
        )
    source = _style_of(sql, style) if params else ""
    text, places = _translated(sql, source, style)
    wanted = max((int(place) for place in places), default=0)
    if wanted != len(params):
        raise InvalidInput(f"the SQL has {wanted} placeholders and got {len(params)} parameters")
    return text, [params[int(place) - 1] for place in places]


def restyle_own(sql: str, params: Sequence[Any], style: Style) -> tuple[str, Sequence[Any]]:
    """A statement of RowMQ's own, written for this database, in a caller's driver's style."""
    if style == "%s" and "$" not in sql and "?" not in sql:
        return sql, params  # it was written in this style
    return restyle(sql, params, style)


@lru_cache(maxsize=1024)
def _style_of(sql: str, target: Style) -> str:
    found = {match.lastgroup for match in _TOKENS[target].finditer(sql)}
    for style in ("numbered", "format", "mark"):
        if style in found:
            return style
    return ""


@lru_cache(maxsize=1024)
def _translated(sql: str, source: str, target: Style) -> tuple[str, tuple[str, ...]]:
    """The SQL in the target's style, and which parameter stands at each of its places."""
    places: list[str] = []

    def replace(match: re.Match[str]) -> str:
        kind = match.lastgroup
        if kind == source:
            return _placeholder(_place_of(match, len(places)), places, target)
        if kind == "numbered" and source == "named":
            raise InvalidInput(f"the SQL has {match[0]} and the parameters have names; use :name")
        literal = match[0].replace("%%", "%") if source == "format" else match[0]
        return literal.replace("%", "%%") if target == "%s" else literal

    return _TOKENS[target].sub(replace, sql), tuple(places)


def _place_of(match: re.Match[str], before: int) -> str:
    """Which parameter a placeholder stands for: its name, or its number from 1."""
    if match["named"]:
        return match["named"]
    if not match["numbered"]:
        return str(before + 1)
    digits = match["numbered"][1:]
    number = int(digits) if len(digits) < DIGITS_MAX else 0
    if number == 0:
        raise InvalidInput(f"{match[0][:DIGITS_MAX]} stands for no parameter: the first one is 1")
    return str(number)


def _placeholder(place: str, places: list[str], target: Style) -> str:
    # PostgreSQL takes two expressions for the same only if their parameters have one number.
    if target != "$1" or place not in places:
        places.append(place)
    return f"${places.index(place) + 1}" if target == "$1" else target
