"""The icons, drawn in lines on a square of 16: none is fetched, and they take the text's colour."""

from rowmq.markup import Markup, el

__all__ = ["icon"]

PATHS = {
    "mark": "M3 4h10M3 8h10M3 12h5.5",
    "overview": "M2.5 13.5h11M4.5 11V7.5M8 11V3M11.5 11V5.5",
    "topics": "M2.5 4h11M2.5 8h11M2.5 12h7",
    "letters": "M2.5 4h11v8.5h-11zM2.5 4.5 8 9l5.5-4.5",
    "queues": "M2.5 3h11v3h-11zM2.5 8h11v2h-11zM2.5 12.5h11",
    "jobs": "M5.5 4.5v-2h5v2M2.5 4.5h11v8.5h-11zM2.5 8.5h11",
    "schedules": "M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2zM8 5v3.2l2.2 1.4",
    "workers": "M3 3h10v6.5H3zM5.5 13h5M8 9.5V13",
    "spark": "M9 1.8 3.6 9H8l-1 5.2L12.4 7H8z",
    "doctor": "M1.8 8.5h3L6.5 4l3 8.5 1.8-4h3",
    "tokens": "M10.3 2.2a3.5 3.5 0 1 1-2.2 6.2L3 13.5v-2.3M5.2 11.3l1.3 1.3M10.6 5.4h.01",
    "audit": "M4 2h6l2.5 2.5V14H4zM6 7h4.5M6 9.5h4.5M6 12h2.5",
    "menu": "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
    "theme": "M13.5 9.6A5.8 5.8 0 0 1 6.4 2.5a5.8 5.8 0 1 0 7.1 7.1z",
    "live": "M8 7.9h.01M5 11a4.2 4.2 0 0 1 0-6.2M11 4.8a4.2 4.2 0 0 1 0 6.2"
    "M2.8 13.2a7.3 7.3 0 0 1 0-10.5M13.2 2.7a7.3 7.3 0 0 1 0 10.5",
    "leave": "M6.5 2.5h-4v11h4M6 8h7.5M10.5 5l3 3-3 3",
    "left": "M10 3.5 5.5 8l4.5 4.5",
    "right": "M6 3.5 10.5 8 6 12.5",
    "copy": "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
    "plus": "M8 3v10M3 8h10",
    "search": "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM10.4 10.4l3.2 3.2",
    "again": "M13.2 6.5A5.5 5.5 0 1 0 13.5 9M13.5 3v3.5H10",
    "trash": "M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 9h6.8l.6-9",
    "edit": "M10.8 2.8l2.4 2.4-7.5 7.5-3 .6.6-3z",
    "pause": "M5.5 3.5v9M10.5 3.5v9",
    "play": "M5 3l7.5 5L5 13z",
    "empty": "M2 9.5 4.3 3.5h7.4L14 9.5v3H2zM2 9.5h3.5l1 1.6h3l1-1.6H14",
    "ok": "M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2zM5.4 8.2l1.8 1.8 3.4-3.8",
    "note": "M8 2.2a5.8 5.8 0 1 0 0 11.6A5.8 5.8 0 0 0 8 2.2zM8 7.4v3.3M8 5.1h.01",
    "warning": "M8 2.2 14.4 13.3H1.6zM8 6.5v3.2M8 11.4h.01",
    "problem": "M5.4 2.2h5.2l3.2 3.2v5.2l-3.2 3.2H5.4l-3.2-3.2V5.4zM8 5v3.4M8 10.8h.01",
}


def icon(name: str) -> Markup:
    """An icon. It is decoration: the words beside it, or a label, say what it means."""
    return el(
        "svg",
        el("path", d=PATHS[name]),
        class_="icon",
        viewBox="0 0 16 16",
        aria_hidden="true",
        focusable="false",
    )
