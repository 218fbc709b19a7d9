"""Pages of the documentation that have figures of a run, each between two comments that say what
stands there:

    <!-- figures: targets -->
    <!-- end -->

Nothing there is typed by hand.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["PLACE", "filled", "markdown"]

PLACE = re.compile(r"<!-- figures: ([a-z0-9 -]+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str, texts: Mapping[str, str]) -> str:
    """The page with these texts at their places; the others stay as they are."""

    def fill(place: re.Match[str]) -> str:
        if place[1] not in texts:
            return place[0]
        return f"<!-- figures: {place[1]} -->\n{texts[place[1]]}\n<!-- end -->"

    return PLACE.sub(fill, page)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
