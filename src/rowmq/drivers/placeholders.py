"""Placeholders of one style in another.

RowMQ's own statements are written in one style per database. Users' SQL, given to
`transaction.execute`, may be in any of four, whatever the database: `?`, `%s`, `$1`, or `:name`
with a mapping. Quoted text and comments are left alone.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from rowmq.errors import InvalidInput

__all__ = ["Style", "restyle", "restyle_own"]

Style = Literal["?", "%s", "$1"]

_TOKEN = re.compile(
    r"""
    (?P<skip> '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | --[^\n]* | /\*.*?\*/ | :: )
  | (?P<numbered> \$\d+ )
  | (?P<format> %s )
  | (?P<percent> %%? )
  | (?P<mark> \? )
  | :(?P<named> [A-Za-z_]\w* )
    """,
    re.VERBOSE | re.DOTALL,
)


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
            raise InvalidInput(f"the SQL names {missing[0]!r} and the parameters do not hold it")
        return text, [params[name] for name in names]
    if isinstance(params, str | bytes):
        raise InvalidInput("parameters must be a sequence or a mapping, not a single string")
    text, places = _translated(sql, _style_of(sql) if params else "", style)
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
def _style_of(sql: str) -> str:
    found = {match.lastgroup for match in _TOKEN.finditer(sql)}
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
        if kind == source and source:
            given = {"numbered": match[0][1:], "named": match["named"]}
            places.append(given.get(source) or str(len(places) + 1))
            return f"${len(places)}" if target == "$1" else target
        literal = match[0].replace("%%", "%") if source == "format" else match[0]
        return literal.replace("%", "%%") if target == "%s" else literal

    return _TOKEN.sub(replace, sql), tuple(places)
