"""What the page says, and that names on it are only ever text."""

import re
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from rowmq.errors import InvalidOption, NaiveDatetime
from rowmq.spark.pipelines import report
from rowmq.spark.pipelines.reporting import html
from rowmq.spark.pipelines.reporting.figures import STATISTICS, Figure, figures_table
from rowmq.spark.pipelines.reporting.findings import Story, Urgency, findings_of, plain
from rowmq.spark.pipelines.reporting.live import Live, LiveGroup, LiveQueue
from rowmq.spark.pipelines.reporting.page import Heading, page
from rowmq.spark.pipelines.reporting.reasons import Place, Reason
from rowmq.spark.pipelines.reporting.totals import Totals, totals_of
from rowmq.spark.pipelines.reporting.wording import UNIT
from tests.unit.spark.reports import at, story, window

EVIL = "<script>alert(\"x\")</script> & 'q' \u202e🚀\n"
EMPTY = {"meta", "br", "hr"}


class Reader(HTMLParser):
    """Reads a page as a browser would: its tags, its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def read(told: Story | None, *, title: str = "Report") -> Reader:
    totals = Totals() if told is None else totals_of(told.book, told.live)
    findings = [] if told is None else findings_of(told)
    heading = Heading(title, ("the lake /lake",), at(13), "report.parquet")
    reader = Reader(page(heading, told, totals, findings))
    assert not reader.open
    return reader


def figure(metric: str, value: float, statistic: str = "count", **names: Any) -> Figure:
    return Figure(metric, statistic, value, "things", **names)


def everything(name: str) -> Story:
    """A story in which all that can have a name has this one."""
    figures = [
        figure("published", 10),
        figure("published", 10, topic=name),
        figure("published", 10, topic=name, bucket=at(1)),
        figure("messages_of_key", 9, topic=name, key=name),
        figure("share_of_key", 0.9, "share", topic=name, key=name),
        figure("keys", 2, topic=name, key=name),
        figure("skew", 1.8, "ratio", topic=name, key=name),
        figure("messages_of_key", 1, topic=name, key=None),
        figure("share_of_key", 0.1, "share", topic=name, key=None),
        figure("dead_letters", 3),
        figure("dead_letters", 3, topic=name, group=name),
        figure("put", 4, queue=name, bucket=at(1)),
        figure("finished", 4, queue=name, state="failed"),
        figure("finished", 4, queue=name, state="failed", bucket=at(2)),
        figure("finished_of_kind", 3, queue=name, kind=name),
        figure("finished_of_kind", 1, queue=name, kind="other"),
        figure("attempts", 4, queue=name, state="failed", attempts=7),
        *(figure("end_to_end", 900, s, queue=name) for s in STATISTICS),
        *(figure("handling", 2, s, queue=name, kind=name) for s in STATISTICS),
        *(figure("oldest", 900, s, topic=name, group=name) for s in (*STATISTICS, "last")),
        *(figure("lag", 5, s, topic=name, group=name) for s in ("max", "last")),
        *(
            figure("lag", h, s, topic=name, group=name, bucket=at(h))
            for s in ("max", "last")
            for h in (1, 2)
        ),
    ]
    places = {Place(name, name, None): 3, Place(None, None, name): 4}
    reason = Reason(name, 7, at(1), at(2), name * 2, places)
    group = LiveGroup(name, name, 5, 1, 900.0, 0, 2, 3)
    queue = LiveQueue(name, True, False, {"pending": 2}, 900.0)
    live = Live(at(12), "sqlite", (name,), (), (group,), (queue,), (name,))
    return story(*figures, reasons=(reason,), live=live)


# --- names are data -------------------------------------------------------------------------------


def test_names_and_errors_are_text_and_never_markup() -> None:
    tame, wild = read(everything("tame"), title="tame"), read(everything(EVIL), title=EVIL)
    assert "script" not in wild.tags
    assert wild.tags == tame.tags
    assert [key for key, _ in wild.attributes] == [key for key, _ in tame.attributes]
    assert wild.text.count('<script>alert("x")</script>') > 20


def test_what_cannot_be_seen_or_turns_text_around_is_shown_by_a_sign() -> None:
    text = read(everything(EVIL)).text
    assert "\u202e" not in text
    assert "<U+202E>🚀␊" in text


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    reader = read(everything("a"))
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(reader.tags)
    for key, value in reader.attributes:
        assert not key.startswith("on")
        assert key not in {"src", "srcset", "action"}
        assert key != "href" or str(value).startswith("#")
    assert any(value and value.startswith("default-src 'none'") for _, value in reader.attributes)


def test_an_element_escapes_what_it_is_given() -> None:
    assert html.el("b", "<i>", html.raw("<u>"), None, title='"&', hidden=None, open=True) == (
        '<b title="&quot;&amp;" open>&lt;i&gt;<u></b>'
    )


# --- what is told ---------------------------------------------------------------------------------


def test_links_lead_to_sections_that_are_there() -> None:
    reader = read(everything("a"))
    ids = [value for key, value in reader.attributes if key == "id"]
    links = [str(value)[1:] for key, value in reader.attributes if key == "href"]
    assert links == ids == ["throughput", "latency", "retries", "failures", "lag", "keys", "now"]


def test_every_plot_says_in_words_what_it_shows() -> None:
    reader = read(everything("a"))
    assert reader.attributes.count(("role", "img")) >= 6
    plots = re.findall(r'<svg[^>]*role="img"[^>]*>', page_text(everything("a")))
    titled = re.findall(r'<svg[^>]*role="img"[^>]*><title>[^<]+', page_text(everything("a")))
    assert len(plots) == len(titled)


def page_text(told: Story) -> str:
    heading = Heading("Report", ("the lake /lake",), at(13), "report.parquet")
    return page(heading, told, totals_of(told.book, told.live), findings_of(told))


def test_nothing_at_all_is_told_in_words() -> None:
    reader = read(None)
    assert "There is nothing in this time" in reader.text
    assert "section" not in reader.tags


def test_one_message_is_a_page() -> None:
    reader = read(
        story(
            figure("published", 1),
            figure("published", 1, topic="a"),
            figure("published", 1, topic="a", bucket=at(0)),
        )
    )
    assert "Nothing stands out." in reader.text
    assert "1 message" in reader.text
    assert [value for key, value in reader.attributes if key == "id"] == ["throughput"]


@pytest.mark.parametrize(
    ("bucket", "told"),
    [(timedelta(seconds=1), "15 Jan 00:00:07"), (timedelta(minutes=1), "15 Jan 00:00")],
)
def test_the_busiest_time_is_told_as_exactly_as_it_was_counted(
    bucket: timedelta, told: str
) -> None:
    busiest = at(0) + (timedelta(seconds=7) if bucket < timedelta(minutes=1) else timedelta())
    figures = (
        figure("published", 5, topic="a"),
        figure("published", 5, topic="a", bucket=busiest),
    )
    reader = read(story(*figures)._replace(window=window(0.01, bucket=bucket)))
    assert "busiest from" in reader.text
    assert re.search(rf"{told}(?!\d|:)", reader.text)


def test_an_age_of_nothing_stands_at_zero_and_not_at_the_shortest_time() -> None:
    def ages(group: str, *seconds: float) -> list[Figure]:
        of = zip(STATISTICS, seconds, strict=True)
        return [figure("oldest", age, s, topic="a", group=group) for s, age in of]

    text = page_text(story(*ages("idle", 0, 0, 0, 0, 0), *ages("busy", 0, 0.2, 1, 2, 5)))
    assert re.findall(r'class="tick \w+">([^<]+)', text) == ["0", "100 ms", "1 s", "10 s"]
    assert text.count('class="ladder single"') == 1
    assert re.search(r'<circle cx="0.00%"[^>]*class="disc one"', text)
    assert "ladder single" not in page_text(story(*ages("idle", 0, 0, 0, 0, 0)))


def test_totals_count_everything_once() -> None:
    told = everything("a")
    totals = totals_of(told.book, told.live)
    assert totals == Totals(
        topics=1,
        published=10,
        dead_letters=3,
        queues=1,
        failed=4,
        retried=4,
        groups=1,
        groups_behind=1,
        lag=5,
        waiting=2,
    )


# --- what needs attention -------------------------------------------------------------------------


def lagging(*lags: float, age: float = 1_000) -> Story:
    of = {"topic": "orders", "group": "billing"}
    return story(
        figure("lag", lags[-1], "last", **of),
        figure("oldest", age, "last", **of),
        *(figure("lag", lag, "last", bucket=at(hour), **of) for hour, lag in enumerate(lags)),
    )


@pytest.mark.parametrize(
    ("told", "urgency"),
    [
        pytest.param(lagging(1, 1, 2, 1, 5, 9, 30, 90), Urgency.NOW, id="falls behind"),
        pytest.param(lagging(90, 80, 70, 60, 50, 40, 30, 20), Urgency.SOON, id="catches up"),
    ],
)
def test_a_group_that_falls_behind_is_more_urgent_than_one_that_catches_up(
    told: Story, urgency: Urgency
) -> None:
    (finding,) = findings_of(told)
    assert finding.urgency is urgency
    assert plain(finding.what).startswith("Group 'billing' of topic 'orders' is ")
    assert plain(finding.what).endswith("the oldest has waited 17 min.")


def test_a_group_whose_messages_do_not_wait_for_long_needs_nothing() -> None:
    assert findings_of(lagging(1, 1, 2, 1, 5, 9, 30, 90, age=10)) == []


def test_a_queue_that_gives_up_on_much_says_why() -> None:
    reason = Reason("no <n>", 5, at(1), at(2), "no 5", {Place(None, None, "emails"): 5})
    (finding,) = findings_of(
        story(
            figure("finished", 95, queue="emails", state="completed"),
            figure("finished", 5, queue="emails", state="failed"),
            reasons=(reason,),
        )
    )
    assert finding.urgency is Urgency.SOON
    assert (
        plain(finding.what) == "Queue 'emails' gave up on 5 jobs, 5.0 % of 100. Most often: no <n>"
    )


def given_up(live: Live | None, letters: int = 7) -> Story:
    return story(
        figure("published", 175, topic="orders"),
        figure("published", 175),
        figure("dead_letters", letters, topic="orders", group="billing"),
        figure("dead_letters", letters),
        figure("finished", 225, queue="emails", state="completed"),
        live=live,
    )


HAS_LETTERS = Live(at(12), "sqlite", topics=("orders",), letter_origins=("orders",))
HAS_NONE = Live(at(12), "sqlite", topics=("orders",))
OTHER = Live(at(12), "sqlite", topics=("clicks",))


@pytest.mark.parametrize("live", [None, HAS_LETTERS, OTHER], ids=["lake", "letters", "other"])
def test_dead_letters_are_to_be_redriven_unless_they_are_known_to_be_gone(
    live: Live | None,
) -> None:
    (finding,) = findings_of(given_up(live))
    assert finding.urgency is Urgency.SOON
    assert plain(finding.what) == (
        "7 messages of topic 'orders' were given up on, 4.0 % of what was published to it, by "
        "group 'billing'."
    )
    assert plain(finding.advice).endswith("rowmq dlq redrive")
    assert ("class", "bad") in read(given_up(live)).attributes


@pytest.mark.parametrize(
    ("letters", "told"),
    [
        (7, "None is among the dead letters any more: they were redriven or purged."),
        (1, "It is not among the dead letters any more: it was redriven or purged."),
    ],
)
def test_dead_letters_that_are_gone_are_told_without_urgency(letters: int, told: str) -> None:
    (finding,) = findings_of(given_up(HAS_NONE, letters))
    assert (finding.urgency, finding.advice) == (Urgency.NOTE, ())
    assert plain(finding.what).endswith(f"by group 'billing'. {told}")
    assert ("class", "bad") not in read(given_up(HAS_NONE, letters)).attributes


def test_a_share_says_what_it_is_a_share_of() -> None:
    text = read(given_up(None)).text.replace(UNIT, " ")
    assert "0 jobs, 7 messages; 1.8 % of all messages and jobs" in text
    assert "4.0 % of what was published to it" in text


def test_failed_jobs_are_shown_as_bad_though_no_dead_letter_is_left() -> None:
    failed = figure("finished", 1, queue="emails", state="failed")
    assert ("class", "bad") in read(story(failed, live=HAS_NONE)).attributes


def test_a_reason_that_was_not_there_before_is_urgent() -> None:
    new = Reason("new", 50, at(11.5), at(12), "new", {})
    old = Reason("old", 500, at(1), at(12), "old", {})
    (finding,) = findings_of(story(reasons=(old, new)))
    assert (finding.urgency, plain(finding.what)) == (
        Urgency.NOW,
        "New, 50 times in the last 72 min: new",
    )


def test_a_key_with_most_of_a_topic_is_told_of() -> None:
    (finding,) = findings_of(
        story(
            figure("published", 5_000, topic="clicks"),
            figure("share_of_key", 0.5, "share", topic="clicks", key="bot"),
            figure("skew", 40.0, "ratio", topic="clicks", key="bot"),
        )
    )
    assert plain(finding.what).startswith(
        "Key 'bot' of topic 'clicks' has 50 % of its messages, 40"
    )


def test_the_most_urgent_comes_first() -> None:
    urgencies = [finding.urgency for finding in findings_of(everything("a"))]
    assert len(urgencies) >= 5
    assert urgencies == sorted(urgencies)


# --- what is written ------------------------------------------------------------------------------


def test_figures_are_written_in_an_order_that_does_not_change() -> None:
    figures = [figure("b", 1, topic="x"), figure("a", 2, queue="y"), figure("a", 3, bucket=at(1))]
    table = figures_table(figures)
    assert table.equals(figures_table(reversed(figures)))
    assert table.column("metric").to_pylist() == ["a", "a", "b"]
    assert table.column("bucket").to_pylist() == [at(1), None, None]


def test_what_was_asked_for_is_checked_before_spark_is(tmp_path: Any) -> None:
    nobody: Any = None
    note = tmp_path / "notes.txt"
    note.write_text("mine")
    naive = at(0).replace(tzinfo=None)
    options: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"out": ""}, InvalidOption),
        ({"out": note}, InvalidOption),
        ({"out": note / "report.html"}, InvalidOption),
        ({"since": naive}, NaiveDatetime),
        ({"since": at(1), "until": at(1)}, InvalidOption),
        ({"bucket": 0.5}, InvalidOption),
        ({"lake": ""}, InvalidOption),
    ]
    for wrong, error in options:
        with pytest.raises(error):
            report(nobody, **{"lake": tmp_path, "out": tmp_path / "report.html"} | wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
