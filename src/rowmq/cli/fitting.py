"""Tables that fit their screen: the name of a row is the last that goes."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "FittedTable"]

GAP = 2
TEXT_CHARS, HEADER_CHARS = 8, 4
"""What stays, at least, of a text, and of a number's header."""

LEFT_OUT = "…"


class Column:
    """A column: its cells are cut if there is no room, unless they are `fixed`, as numbers and
    times are.
    """

    def __init__(self, name: str, cells: Sequence[Text], *, fixed: bool, number: bool) -> None:
        self.name = name
        self.cells = cells
        self.fixed = fixed
        self.number = number
        content = max((cell.cell_len for cell in cells), default=0)
        self.natural = max(len(name), content)
        """The width that shows all of it."""
        self.least = max(content, min(len(name), HEADER_CHARS))
        """The width below which it says nothing any more."""
        if not fixed:
            self.least = min(self.natural, TEXT_CHARS)


class FittedTable:
    """Texts are cut first, then the headers of numbers; then the widest of what cannot be cut is
    left out, mostly a time. The first column, which names the row, is never left out.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fitted(options.max_width)

    def fitted(self, room: int) -> Table:
        columns = columns_in(room, self.columns)
        made = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for column, width in zip(columns, widths_in(room, columns), strict=True):
            made.add_column(
                Text(column.name, no_wrap=True, overflow="ellipsis"),
                justify="right" if column.number else "left",
                width=width,
                no_wrap=True,
            )
        for row in zip(*(column.cells for column in columns), strict=True):
            made.add_row(*row)
        return made


def columns_in(room: int, columns: Sequence[Column]) -> list[Column]:
    """Those that there is room for, and a mark if some are left out."""
    kept, mark = list(columns), list[Column]()
    while len(kept) > 1 and taken([column.least for column in kept + mark]) > room:
        fixed = [column for column in kept[1:] if column.fixed]
        goes = max(fixed, key=lambda column: column.least) if fixed else kept[-1]
        kept.remove(goes)
        mark = [Column(LEFT_OUT, [Text()] * len(goes.cells), fixed=True, number=False)]
    return kept if len(kept) == 1 else kept + mark


def widths_in(room: int, columns: Sequence[Column]) -> list[int]:
    """How wide each is to be: the widest give first."""
    widths = [column.natural for column in columns]
    texts = [place for place, column in enumerate(columns) if not column.fixed]
    for places in (texts, range(len(columns))):
        while taken(widths) > room:
            able = [place for place in places if widths[place] > columns[place].least]
            if not able:
                break
            widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def taken(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
