"""What errors have in common: which of them are of one kind.

Ten thousand letters with ten thousand errors are one problem more often than not: a customer's
number, an address or a time differs, and the rest is the same. So whatever is likely to differ is
left out, and what remains is the kind's pattern. It is made of the first line, since what follows
mostly tells where, and not what.
"""

import re

__all__ = ["LOOKED_AT_CHARS", "pattern_of"]

LOOKED_AT_CHARS = 300
"""How much of an error is looked at."""

# In the order in which they are tried: what is longer, and says more, first. None of them can try
# a text in more ways than its length: an error may be anything.
_DIFFERENT = re.compile(
    r"""
    (?P<text> "[^"\n]{0,200}" | (?<![^\W_])'[^'\n]{0,200}'(?![^\W_]) | `[^`\n]{0,200}`
              | \u201c[^\u201d\n]{0,200}\u201d | \u00ab[^\u00bb\n]{0,200}\u00bb )
  | (?P<id>   (?<![^\W_])[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}
              (?![^\W_]) )
  | (?P<hex>  (?<![^\W_])0[xX][0-9a-fA-F]+
              | (?<![^\W_])(?=[a-fA-F]{0,40}[0-9])(?=[0-9]{0,40}[a-fA-F])[0-9a-fA-F]{8,}(?![^\W_]) )
  | (?P<time> (?<!\d)\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)? )
  | (?P<n>    \d+(?:[.,:_]\d+)* )
    """,
    re.VERBOSE,
)

_STANDS_FOR = {"text": "'…'", "id": "<id>", "hex": "<hex>", "time": "<time>", "n": "<n>"}


def pattern_of(error: str | None) -> str:
    """What an error has in common with others of its kind; nothing, if there is none."""
    if not error:
        return ""
    line = error[:LOOKED_AT_CHARS].lstrip().partition("\n")[0]
    return " ".join(_DIFFERENT.sub(_stand_in, line).split())


def _stand_in(found: re.Match[str]) -> str:
    return _STANDS_FOR[found.lastgroup or ""]
