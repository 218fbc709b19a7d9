"""HTML and SVG as nested calls, in which everything is escaped that is not markup already.

What somebody put into a queue, or called a topic, is data: it never becomes a tag.
"""

import html
import math
from typing import Any

__all__ = ["Markup", "el", "join", "nice_ticks", "raw"]

EMPTY = frozenset({"br", "hr", "meta", "path", "line", "rect", "circle", "polyline"})
"""Elements without an end tag, in HTML, or that are never given anything to hold."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    def __html__(self) -> str:
        """What template engines ask for: this is not to be escaped again."""
        return self


def raw(text: str) -> Markup:
    """Text of our own that is HTML; never anything that was read."""
    return Markup(text)


def escaped(value: object) -> str:
    return value if isinstance(value, Markup) else html.escape(str(value), quote=True)


def join(*children: object, between: str = "") -> Markup:
    """Several things after each other; None is nothing."""
    return Markup(between.join(escaped(child) for child in children if child is not None))


def el(tag: str, *children: object, **attributes: Any) -> Markup:
    """An element. `class_` is spelled so for Python; `aria_label` and such get their hyphens.

    An attribute that is None is left out, one that is True stands without a value.
    """
    words = [tag]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        words.append(spelled if value is True else f'{spelled}="{escaped_attribute(value)}"')
    inside = join(*children)
    if tag in EMPTY and not inside:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{inside}</{tag}>")


def escaped_attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value), quote=True)


def nice_ticks(top: float, *, whole: bool = False) -> list[float]:
    """Round numbers from zero, of which the last is the top of the axis: four steps at most.

    Of what is counted in whole numbers, there are no others.
    """
    if top <= 0 or not math.isfinite(top):
        return [0.0, 1.0]
    rough = top / 3
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    return [step * n for n in range(math.ceil(top / step - 1e-9) + 1)]
