"""What all sections are made of: tables, plots with captions, keys."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from rowmq.spark.pipelines.reporting.html import Markup, el
from rowmq.spark.pipelines.reporting.wording import NONE

__all__ = [
    "CHARTS_MAX",
    "ROWS_MAX",
    "Column",
    "Row",
    "charts",
    "figure",
    "headed",
    "key",
    "left_out",
    "table",
]

ROWS_MAX = 50
"""How many rows a table shows; the file with the figures has all."""

CHARTS_MAX = 12

NOTHING = el("span", NONE, class_="no")


class Column(NamedTuple):
    """A column of a table: numbers stand right, words left, plots take what room there is."""

    title: str
    style: str | None = "n"


class Row(NamedTuple):
    """A row: its first cell is what it is about. A part belongs to the row above."""

    cells: Sequence[object]
    part: bool = False


def headed(*titles: str, words: Collection[str] = (), plots: Collection[str] = ()) -> list[Column]:
    """Columns of numbers, except for some of words and of plots."""
    styles = {**dict.fromkeys(words, None), **dict.fromkeys(plots, "plot")}
    return [Column(title, styles.get(title, "n")) for title in titles]


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    groups: Sequence[tuple[str, int]] = (),
) -> Markup:
    """A table that can be scrolled by itself where it is wider than the screen.

    `groups` are titles over several columns each, of which there are as many as columns in all.
    """
    over = [
        el("th", title, colspan=str(span), scope="colgroup", class_="over" if title else None)
        for title, span in groups
    ]
    titles = [el("th", column.title, scope="col", class_=column.style) for column in columns]
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", el("tr", *over) if over else None, el("tr", *titles)),
            el("tbody", *(table_row(columns, row) for row in rows)),
        ),
        class_="scroll",
        role="region",
        tabindex="0",
        aria_label=caption,
    )


def table_row(columns: Sequence[Column], row: Row) -> Markup:
    first, *others = row.cells
    cells = [
        el("td", NOTHING if cell is None else cell, class_=column.style)
        for column, cell in zip(columns[1:], others, strict=True)
    ]
    return el("tr", el("th", first, scope="row"), *cells, class_="part" if row.part else None)


def left_out(shown: int, total: int, what: str) -> Markup | None:
    """How many there are beside those that are shown."""
    if total <= shown:
        return None
    told = f"The first {shown} of {total:,} {what} are shown; the file with the figures has more."
    return el("p", told, class_="note")


def charts(figures: Iterable[Markup]) -> Markup:
    """Plots beside each other, as many as there is room for."""
    return el("div", *figures, class_="charts")


def figure(plot: Markup, title: object, value: object = None) -> Markup:
    """A plot under its name, with the figure that sums it up."""
    told = None if value is None else el("span", value, class_="value")
    return el("figure", el("figcaption", el("span", title), told), plot)


def key(*entries: tuple[str, str]) -> Markup:
    """What the colours of a plot mean: classes, and words. Those of bars are called a1, a2, ..."""
    spans = []
    for style, words in entries:
        if style.startswith("a"):
            mark = el("rect", x=0, y=0, width="100%", height="100%", class_=style)
        else:
            mark = el("line", x1=0, x2="100%", y1="50%", y2="50%", class_=f"line {style}")
        spans.append(el("span", el("svg", mark, aria_hidden="true"), words))
    return el("p", *spans, class_="key")
