"""The page: one HTML file that needs nothing else, for a screen, a phone, or paper."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rowmq.spark.pipelines.reporting.findings import (
    Finding,
    Literal,
    Named,
    Story,
    Urgency,
    are_settled,
)
from rowmq.spark.pipelines.reporting.html import Markup, el, join, name, raw, visible
from rowmq.spark.pipelines.reporting.sections import Section, sections_of
from rowmq.spark.pipelines.reporting.totals import Totals
from rowmq.spark.pipelines.reporting.wording import between, count, moment, period, share, short

__all__ = ["Heading", "page"]

STYLE = Path(__file__).with_name("style.css")

FINDINGS_MAX = 10

URGENCIES = {Urgency.NOW: "now", Urgency.SOON: "soon", Urgency.NOTE: "note"}


class Heading(NamedTuple):
    """What the page says of itself."""

    title: str
    sources: tuple[str, ...]
    made_at: datetime
    figures: str
    """The name of the file with the figures."""


def page(heading: Heading, story: Story | None, totals: Totals, findings: list[Finding]) -> str:
    """The whole page; without a story, one that says there is nothing to tell."""
    parts = [] if story is None else sections_of(story)
    body = join(
        header(heading, story, parts),
        el("main", *main_parts(story, totals, findings, parts)),
        footer(heading),
    )
    return "<!doctype html>\n" + el("html", head(heading), el("body", body), lang="en") + "\n"


def main_parts(
    story: Story | None, totals: Totals, findings: list[Finding], parts: list[Section]
) -> Iterator[Markup]:
    if story is None:
        yield el(
            "p",
            "There is nothing in this time: no message, no job, no sample. If there should be, see "
            "whether the archive has run, and whether the time was meant in UTC.",
            class_="lead",
            style="margin-top:2rem",
        )
        return
    yield totals_strip(totals, open_failures=totals.failed > 0 or has_letters(story))
    yield attention(findings)
    for part in parts:
        yield el("section", el("h2", part.title), *part.body, id=part.id)


def head(heading: Heading) -> Markup:
    # A page that was told to load nothing cannot be made to, whatever stands in it.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return el(
        "head",
        raw('<meta charset="utf-8"/>'),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", heading.title),
        el("style", raw(STYLE.read_text(encoding="utf-8"))),
    )


def header(heading: Heading, story: Story | None, parts: list[Section]) -> Markup:
    about = None
    if story is not None:
        since, until, bucket = story.window
        about = f"{between(since, until)}, in steps of {period(bucket)}."
    links = [el("a", part.title, href=f"#{part.id}") for part in parts]
    return el(
        "header",
        el("h1", heading.title),
        el("p", about, " From ", " and ".join(heading.sources), ".", class_="about"),
        el("nav", *links, aria_label="Sections") if links else None,
    )


def has_letters(story: Story) -> bool:
    """Whether messages were given up on that nobody is known to have dealt with."""
    groups = story.book.by("dead_letters", "count", "topic", "group")
    return any(not are_settled(story, str(topic)) for topic, _ in groups)


def totals_strip(totals: Totals, *, open_failures: bool) -> Markup:
    finished = totals.completed + totals.failed
    given_up = totals.failed + totals.dead_letters
    handled = finished + totals.published
    tiles = [
        tile(totals.published, "messages published", f"to {count(totals.topics, 'topic')}"),
        tile(finished, "jobs finished", f"in {count(totals.queues, 'queue')}"),
        tile(
            given_up,
            "given up on",
            f"{count(totals.failed, 'job')}, {count(totals.dead_letters, 'message')}; "
            f"{share(given_up, handled)} of all messages and jobs",
            bad=open_failures,
        ),
        tile(
            totals.lag,
            "messages behind at the end",
            f"{count(totals.groups_behind, 'group')} of {totals.groups} behind",
        ),
    ]
    if finished:
        part = f"{share(totals.retried, finished)} of those finished"
        tiles.insert(2, tile(totals.retried, "jobs tried again", part))
    if totals.waiting is not None:
        tiles.append(tile(totals.waiting, "jobs in queues now", "waiting, claimed or retried"))
    return el("dl", *tiles, class_="totals")


def tile(value: int, label: str, small: str, *, bad: bool = False) -> Markup:
    shown = f"{value:,}" if value < 100_000 else short(value)
    return el(
        "div",
        el("dt", label, el("small", small)),
        el("dd", shown, title=f"{value:,}"),
        class_="bad" if bad else None,
    )


def attention(findings: list[Finding]) -> Markup:
    if not findings:
        return el(
            "section",
            el("h2", "What needs attention first"),
            el("p", "Nothing stands out.", class_="lead"),
        )
    rest = len(findings) - FINDINGS_MAX
    return el(
        "section",
        el("h2", "What needs attention first"),
        el(
            "ol", *(finding_item(finding) for finding in findings[:FINDINGS_MAX]), class_="findings"
        ),
        el("p", f"And {count(rest, 'lesser matter')}: see the sections below.", class_="note")
        if rest > 0
        else None,
    )


def finding_item(finding: Finding) -> Markup:
    word = URGENCIES[finding.urgency]
    return el(
        "li",
        el("span", word, class_="urgency"),
        el("p", *(said(part) for part in finding.what)),
        el("p", *(said(part) for part in finding.advice), class_="advice")
        if finding.advice
        else None,
        class_=word,
    )


def said(part: str) -> object:
    if isinstance(part, Literal):
        return el("code", visible(part), dir="auto")
    return name(part) if isinstance(part, Named) else part


def footer(heading: Heading) -> Markup:
    return el(
        "footer",
        el(
            "p",
            f"Made {moment(heading.made_at)} UTC by RowMQ. All times are UTC. Percentiles are "
            "exact to a ten-thousandth of their rank. All figures, also those that are not shown, "
            "are in ",
            name(heading.figures),
            ".",
        ),
    )
