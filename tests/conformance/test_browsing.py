"""What operators look at: pages of messages and of letters, and previews that tell the truth."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import rowmq
from rowmq import ANY, Beginning, Message, errors
from rowmq.store import browsing, sorting, sweeping, traffic
from tests.choices import async_only
from tests.conformance.test_dead_letters import bury, numbered
from tests.conformance.test_groups import QUICK, consume
from tests.consuming import take
from tests.databases import Database

pytestmark = async_only  # test_client sees that the sync methods are the same

Place = tuple[str | None, int, int]


async def fill(mq: Any, count: int = 30, start: int = 0) -> None:
    """Messages of three keys, and without one."""
    for n in range(start, start + count):
        key = (None, "a", "b", "ü 😀")[n % 4]
        await mq.publish("t", n, key=key, id=f"id{n}" if key else None)


def shown(page: rowmq.MessagePage) -> list[Any]:
    return [message.payload for message in page.messages]


def placed(page: rowmq.MessagePage) -> list[Place]:
    return [(m.key, m.shard, m.offset or 0) for m in page.messages]


async def downward(mq: Any, limit: int, **options: Any) -> list[rowmq.MessagePage]:
    """All pages, from the first one down."""
    pages = [await mq.browse("t", limit=limit, **options)]
    options = {name: value for name, value in options.items() if name == "key"}
    while pages[-1].older:
        pages.append(await mq.browse("t", before=pages[-1].older, limit=limit, **options))
    return pages


async def upward(mq: Any, page: rowmq.MessagePage, limit: int) -> list[rowmq.MessagePage]:
    """The pages above one, from it on."""
    pages = []
    newer = page.newer
    while newer:
        pages.append(await mq.browse("t", after=newer, limit=limit))
        newer = pages[-1].newer
    return pages


def age(database: Database, seconds: str) -> None:
    """Have messages be published at other times: so many seconds before noon, each."""
    noon = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1_000_000)
    database.execute(f"UPDATE rowmq_messages SET published_at = {noon} - 1000000 * ({seconds})")


# --- pages of messages --------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 30, 500])
async def test_pages_have_each_message_once_newest_first(
    mq: Any, database: Database, limit: int
) -> None:
    await fill(mq)
    age(database, "100 - 10 * (message_offset - message_offset % 2)")  # many at the same time
    pages = await downward(mq, limit)
    found = [message for page in pages for message in page.messages]
    assert sorted(message.payload for message in found) == list(range(30))
    times: list[Any] = [message.published_at for message in found]
    assert times == sorted(times, reverse=True)
    assert [len(page.messages) for page in pages[:-1]] == [limit] * (len(pages) - 1)
    assert not any(page.partial for page in pages)
    back = [place for page in await upward(mq, pages[-1], limit) for place in placed(page)[::-1]]
    above = [place for page in pages[:-1] for place in placed(page)]
    assert back == above[::-1]


async def test_a_page_stays_right_whatever_is_published_or_collected(mq: Any) -> None:
    await fill(mq, 20)
    first = await mq.browse("t", limit=5)
    assert first.newer is None
    await fill(mq, 10, start=20)
    second = await mq.browse("t", before=first.older, limit=5)
    rest = await mq.browse("t", before=second.older, limit=500)
    assert Counter([*shown(first), *shown(second), *shown(rest)]) == Counter(range(20))
    (above,) = await upward(mq, second, 500)
    assert set(shown(above)) == {*shown(first), *range(20, 30)}
    await consume(mq, "t", "g", 30)
    assert await mq.gc("t") == 30
    gone = await mq.browse("t", before=first.older)
    assert (gone.messages, gone.older) == ((), None)
    await fill(mq, 1, start=30)
    assert shown(await mq.browse("t", after=first.older)) == [30]


async def test_by_key_without_one_and_by_shard(mq: Any) -> None:
    await fill(mq, 12)
    for page in (await mq.browse("t", key="a"), (await downward(mq, 2, key="a"))[0]):
        assert {message.key for message in page.messages} == {"a"}
    assert [m for page in await downward(mq, 2, key="a") for m in shown(page)] == [9, 5, 1]
    keyless = await mq.browse("t", key=None)
    assert shown(keyless) == [8, 4, 0]
    shard = keyless.messages[0].shard
    same = [m.payload for m in keyless.messages if m.shard == shard]
    assert shown(await mq.browse("t", key=(None, shard))) == same
    assert shown(await mq.browse("t", key="missing")) == []
    assert len(shown(await mq.browse("t", key=ANY))) == 12
    assert (await mq.browse("nothing")).messages == ()


async def test_from_a_time_on_and_to_an_id(mq: Any, database: Database) -> None:
    await fill(mq, 12)
    age(database, "60 * (3 - message_offset)")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    page = await mq.browse("t", key="a", at=noon - timedelta(seconds=30))
    assert [m.offset for m in page.messages] == [2, 1]
    assert page.newer is not None
    page = await mq.browse("t", key="a", at=noon - timedelta(minutes=1))
    assert [m.offset for m in page.messages] == [2, 1]
    assert (await mq.browse("t", at=noon - timedelta(hours=1))).messages == ()
    assert len((await mq.browse("t", at=noon + timedelta(hours=1))).messages) == 12

    found = await mq.browse("t", id="id5")
    assert placed(found) == [("a", 0, 2)]
    assert shown(await mq.browse("t", id="id5", key="b")) == []
    below = await mq.browse("t", before=found.older, key="a")
    above = await mq.browse("t", after=found.newer, key="a")
    assert (shown(above), shown(below)) == ([9], [1])
    (keyless,) = [m for m in (await mq.browse("t", key=None)).messages if m.payload == 4]
    assert shown(await mq.browse("t", id=keyless.id)) == [4]
    for key in ("a", "b"):
        await mq.publish("t", key, key=key, id="both")
    assert set(shown(await mq.browse("t", id="both"))) == {"a", "b"}


async def test_a_clock_that_was_set_back_hides_nothing(mq: Any, database: Database) -> None:
    await mq.publish_many("t", numbered(40, key="a"))
    await mq.publish_many("t", numbered(5, key="b", start=41))
    age(database, "CASE WHEN message_offset BETWEEN 10 AND 20 THEN 0 ELSE 40 - message_offset END")
    found = [payload for page in await downward(mq, 4) for payload in shown(page)]
    assert Counter(found) == Counter(range(1, 46))
    of_key = [payload for payload in found if payload <= 40]
    assert of_key == sorted(of_key, reverse=True)


async def test_holes_in_the_log_are_passed(mq: Any, database: Database) -> None:
    await mq.publish_many("t", numbered(40))
    await bury(mq, "g", 40)
    gone = [f"id{n}" for n in range(1, 41) if n % 10 not in {3, 4}]
    assert await mq.purge_dead_letters("t", ids=gone) == 32
    found = [await mq.browse("t_dlq", limit=3)]
    while found[-1].older:
        found.append(await mq.browse("t_dlq", before=found[-1].older, limit=3))
    kept = [n for n in range(40, 0, -1) if n % 10 in {3, 4}]
    assert [payload for page in found for payload in shown(page)] == kept
    age(database, "60 * (40 - message_offset)")
    await mq.create_group("t_dlq", "g")
    await mq.publish("t_dlq", "of another", key="l")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for minutes in range(0, 44, 4):
        to = noon - timedelta(minutes=minutes)
        steps = {
            step.key: step.next_offset
            for step in (await mq.preview_seek("t_dlq", "g", to=to)).steps
        }
        await mq.seek("t_dlq", "g", to=to)
        acked = {row.key: row.offset_acked for row in await mq.lag("t_dlq", "g")}
        assert steps == {key: offset + 1 for key, offset in acked.items()}
        shown_at = await mq.browse("t_dlq", at=to, limit=1)
        assert shown(shown_at) == [n for n in kept if n <= 40 - minutes][:1]


async def test_a_page_has_no_more_than_fits(mq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "PAGE_BYTES_MAX", 1_000)
    monkeypatch.setattr(sorting, "PAGE_BYTES_MAX", 1_000)
    await mq.publish_many("t", [Message(payload=b"x" * 400, key="k") for _ in range(5)])
    await mq.publish("t", b"x" * 5_000, key="k")
    pages = await downward(mq, 50)
    assert [len(page.messages) for page in pages] == [1, 2, 2, 1]
    assert [len(page.messages) for page in await upward(mq, pages[-1], 50)] == [2, 2, 1]
    await bury(mq, "g", 6)
    counts: list[int] = []
    after = None
    while after or not counts:
        page = await mq.browse_letters("t", after=after)
        counts.append(len(page.letters))
        after = page.next
    assert sum(counts) == 6
    assert len(counts) >= 4


async def test_a_page_of_beginnings_has_room_for_all(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large payloads no more is read than is shown, so that a page can be renewed often."""
    monkeypatch.setattr(browsing, "PAGE_BYTES_MAX", 1_000)
    text = "ä" * 4_000
    payloads = [text, {"a": text}, b"\xff" * 5_000, "x" * 4_096, b"x" * 4_097, {"a": 1}, b""]
    await mq.publish_many("t", [Message(payload=one, key="k", id=f"{n}", headers={"n": "1"})
                                for n, one in enumerate(payloads)])  # fmt: skip
    page = await mq.browse("t", whole=False)
    assert [message.payload for message in reversed(page.messages)] == [
        Beginning("ä" * 2_048),
        Beginning('{"a":"' + "ä" * 2_045),
        Beginning(b"\xff" * 4_096),
        "x" * 4_096,
        Beginning(b"x" * 4_096),
        {"a": 1},
        b"",
    ]
    (last, *_) = (await mq.browse("t", id="0")).messages
    assert page.messages[-1] == msgspec.structs.replace(last, payload=Beginning("ä" * 2_048))
    (found,) = (await mq.browse("t", id="4", whole=False)).messages
    assert found.payload == Beginning(b"x" * 4_096)
    first = await mq.browse("t", limit=2, whole=False)
    below = await mq.browse("t", before=first.older, limit=2, whole=False)
    above = await mq.browse("t", after=below.newer, limit=2, whole=False)
    assert first.messages + below.messages == page.messages[:4]
    assert above.messages == first.messages


async def test_many_partitions_are_told_to_be_too_many(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "PARTITIONS_MAX", 3)
    await mq.publish("t", "keyless", id="first")
    for n in range(5):
        await mq.publish("t", n, key=f"k{n}", id="x")
    page = await mq.browse("t", limit=2)
    assert (shown(page), page.partial) == ([4, 3], True)
    assert shown(await mq.browse("t", key="k0")) == [0]
    found = await mq.browse("t", id="first")
    assert (shown(found), found.partial) == (["keyless"], True)


BAD: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": 501},
    {"limit": True},
    {"before": ""},
    {"before": "1.2"},
    {"before": "1.2.3.4"},
    {"before": "1.2.-3"},
    {"before": "1.2.3\n"},
    {"after": "9" * 19 + ".1.1"},
    {"after": "١.1.1"},  # noqa: RUF001
    {"after": 1},
    {"at": "now"},
    {"at": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"id": ""},
    {"key": ""},
    {"key": (None, 8)},
    {"before": "1.2.3", "after": "1.2.3"},
    {"id": "x", "at": datetime(2026, 1, 1, tzinfo=UTC)},
]


@pytest.mark.parametrize("options", BAD, ids=str)
async def test_what_is_no_page_is_refused(mq: Any, options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput):
        await mq.browse("t", **options)


async def test_any_cursor_of_the_right_form_gives_a_page(mq: Any) -> None:
    await fill(mq, 3)
    for cursor in ("0.0.0", "999999999999999999.999999999999999999.999999999999999999"):
        for way in ("before", "after"):
            page = await mq.browse("t", **{way: cursor})
            assert len(page.messages) in {0, 3}
            assert (await mq.browse_letters("t", after=cursor)).letters == ()


# --- letters ------------------------------------------------------------------------------------


async def give_up(mq: Any, group: str, errors_of: list[str | None]) -> None:
    async with mq.subscribe("t", group=group, **QUICK) as sub:
        for error in errors_of:
            (delivery,) = await take(sub, 1)
            await delivery.reject(error=error)


ERRORS = [
    "ValueError: no customer 17",
    "ValueError: no customer 4711\nat line 3",
    "TimeoutError: 'http://ä.example/%' took 30.5 s",
    "ValueError: no customer 5",
]


async def test_letters_page_by_page(mq: Any) -> None:
    await mq.publish_many("t", numbered(4))
    for group in ("g", "other"):
        await give_up(mq, group, [*ERRORS])
    everything = await mq.dead_letters("t")
    pages = [await mq.browse_letters("t", limit=3)]
    while pages[-1].next:
        pages.append(await mq.browse_letters("t", limit=3, after=pages[-1].next))
    found = [letter for page in pages for letter in page.letters]
    assert [len(page.letters) for page in pages] == [3, 3, 2]
    times = [letter.failed_at for letter in found]
    assert times == sorted(times, reverse=True)
    assert sorted(found, key=repr) == sorted(everything, key=repr)
    own = (await mq.browse_letters("t", group="g")).letters
    assert own == tuple(letter for letter in found if letter.group == "g")
    of_one = (await mq.browse_letters("t", id="id2")).letters
    assert of_one == tuple(letter for letter in found if letter.message.id == "id2")
    (one,) = (await mq.browse_letters("t", id="id2", group="other")).letters
    assert (one.group, one.message.payload) == ("other", 2)
    for options in ({"group": "nobody"}, {"id": "id9"}, {"group": "nobody", "id": "id2"}):
        assert await mq.browse_letters("t", **options) == rowmq.LetterPage(letters=())
    await mq.purge_dead_letters("t", ids=["id3"])
    assert len((await mq.browse_letters("t", after=pages[0].next)).letters) in {4, 5}


async def test_a_page_of_letters_of_which_the_beginnings_are_read_has_room_for_all(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "PAGE_BYTES_MAX", 1_000)
    payloads = ["ä" * 4_000, b"x" * 4_097, "x" * 4_096, {"a": 1}]
    await mq.publish_many("t", [Message(payload=one, key="k", id=f"{n}", headers={"n": "1"})
                                for n, one in enumerate(payloads)])  # fmt: skip
    await give_up(mq, "g", ["x: 1"] * 4)
    page = await mq.browse_letters("t", whole=False)
    assert [letter.message.payload for letter in reversed(page.letters)] == [
        Beginning("ä" * 2_048), Beginning(b"x" * 4_096), "x" * 4_096, {"a": 1}
    ]  # fmt: skip
    (last,) = (await mq.browse_letters("t", id="0")).letters
    cut = msgspec.structs.replace(last.message, payload=Beginning("ä" * 2_048))
    assert page.letters[-1] == msgspec.structs.replace(last, message=cut)
    (kind,) = await mq.letter_kinds("t")
    assert (await mq.browse_letters("t", matching=kind.pattern, whole=False)) == page


async def test_letters_are_sorted_by_what_their_errors_have_in_common(mq: Any) -> None:
    await mq.publish_many("t", numbered(4))
    for group in ("g", "other"):
        await give_up(mq, group, [*ERRORS])
    first, second = await mq.letter_kinds("t")
    assert (first.pattern, first.count) == ("ValueError: no customer <n>", 6)
    assert first.sample == ERRORS[3]
    assert first.groups == second.groups == ("g", "other")
    assert (second.pattern, second.count) == ("TimeoutError: '…' took <n> s", 2)
    assert first.first_at <= second.first_at <= second.last_at <= first.last_at
    assert not first.capped
    assert [kind.count for kind in await mq.letter_kinds("t", group="g")] == [3, 1]
    page = await mq.browse_letters("t", matching=second.pattern, limit=1)
    (letter,) = page.letters
    assert (letter.group, letter.error, page.looked_at) == ("other", ERRORS[2], 8)
    page = await mq.browse_letters("t", matching=second.pattern, after=page.next)
    (letter,) = page.letters
    assert (letter.group, letter.error, page.next) == ("g", ERRORS[2], None)
    assert await mq.letter_kinds("t", group="nobody") == []
    with pytest.raises(errors.InvalidOption):
        await mq.browse_letters("t", matching=3)


async def test_looking_for_a_kind_goes_on_where_it_ended(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "LOOKS", (2, 3))
    monkeypatch.setattr(sorting, "KINDS_MAX", 9)
    await mq.publish_many("t", numbered(12))
    await give_up(mq, "g", ["rare", *["frequent"] * 10, "rare"])
    pages: list[rowmq.LetterPage] = []
    after = None
    while not pages or after:
        pages.append(await mq.browse_letters("t", matching="rare", after=after))
        after = pages[-1].next
    found = [letter.message.payload for page in pages for letter in page.letters]
    assert found == [12, 1]
    assert [page.looked_at for page in pages] == [5, 5, 2]
    kinds = await mq.letter_kinds("t")
    assert [(kind.pattern, kind.count) for kind in kinds] == [("frequent", 8), ("rare", 1)]
    assert all(kind.capped for kind in kinds)


# --- previews -----------------------------------------------------------------------------------


async def test_a_seek_does_what_its_preview_says(mq: Any, database: Database) -> None:
    await mq.publish_many("t", [*numbered(10, key="a"), *numbered(6, key="b", start=11)])
    age(database, "60 * (10 - message_offset)")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        deliveries = {d.message.payload: d for d in await take(sub, 14)}
        await sub.ack([deliveries[n] for n in (1, 2, 5, 7, 11) if n in deliveries])
        preview = await mq.preview_seek("t", "g", to="earliest")
        before = {step.key: step for step in preview.steps}
        assert preview.in_flight == sum(step.in_flight for step in before.values()) == 9
        assert (before["a"].offset_acked, before["a"].again, before["a"].skipped) == (2, 4, 0)
    targets: list[Any] = [
        noon - timedelta(minutes=6), {"a": 7}, "latest", {"a": 3, "b": 2},
        noon - timedelta(days=1), noon, "earliest",
    ]  # fmt: skip
    for to in targets:
        lag = {row.key: row.lag for row in await mq.lag("t", "g")}
        preview = await mq.preview_seek("t", "g", to=to)
        steps = preview.steps
        assert await mq.seek("t", "g", to=to) == preview.partitions == len(steps)
        assert preview.again == sum(step.again for step in steps)
        assert preview.skipped == sum(step.skipped for step in steps)
        now = {row.key: row for row in await mq.lag("t", "g")}
        for step in steps:
            assert now[step.key].offset_acked == step.next_offset - 1
            assert now[step.key].lag == lag[step.key] + step.again - step.skipped
    (only,) = (await mq.preview_seek("t", "g", to="latest", key="b")).steps
    assert (only.key, only.next_offset, only.skipped) == ("b", 7, 6)
    nothing = await mq.preview_seek("t", "g", to="latest", key="missing")
    assert (nothing.partitions, nothing.steps) == (0, ())
    for bad in ({"a": 12}, {"missing": 1}):
        with pytest.raises(errors.InvalidOption):
            await mq.preview_seek("t", "g", to=bad)
    with pytest.raises(errors.UnknownGroup):
        await mq.preview_seek("t", "nobody", to="latest")


async def test_what_was_given_back_below_the_log_is_in_the_preview(mq: Any) -> None:
    await mq.publish_many("t", numbered(3))
    await bury(mq, "g", 3)
    assert await mq.gc("t") == 3
    assert await mq.redrive("t", group="g", ids=["id1"]) == 1
    assert await mq.redrive_edited("t", group="g", id="id2", payload="edited") is True
    (step,) = (await mq.preview_seek("t", "g", to="earliest")).steps
    assert (step.again, step.skipped) == (0, 0)
    (step,) = (await mq.preview_seek("t", "g", to="latest")).steps
    assert (step.again, step.skipped, step.next_offset) == (0, 2, 4)


async def test_a_redrive_does_what_its_preview_says(mq: Any) -> None:
    await mq.publish_many("t", numbered(5))
    for group in ("a", "b", "dropped"):
        await bury(mq, group, 5)
    await mq.drop_group("t", "dropped")
    assert await mq.gc("t") == 5
    await mq.redrive("t", group="b", ids=["id2"])
    steps = {step.group: step for step in await mq.preview_redrive("t")}
    assert set(steps) == {"a", "b"}
    assert (steps["a"].letters, steps["a"].gone) == (5, 4)  # b has the second in its log again
    assert (steps["b"].letters, steps["b"].gone) == (4, 4)
    assert not steps["a"].capped
    (step,) = await mq.preview_redrive("t", group="a", ids=["id1", "id2", "id9"])
    assert (step.group, step.letters, step.gone) == ("a", 2, 1)
    assert await mq.preview_redrive("t", ids=[]) == []
    with pytest.raises(errors.UnknownGroup):
        await mq.preview_redrive("t", group="dropped")
    assert await mq.redrive("t") == 9


# --- partitions, lag, traffic -------------------------------------------------------------------


async def test_partitions_page_by_page_and_by_prefix(mq: Any) -> None:
    keys = ["a", "ab", "a%", "a_", "b", "ä", "a\U0010ffff"]
    await mq.publish_many("t", [Message(payload=0, key=key) for key in keys])
    for n in range(40):
        await mq.publish("t", n, id=f"{n}")
    everything = await mq.partitions("t")
    assert sum(info.key is None for info in everything) == 8
    found: list[rowmq.PartitionInfo] = []
    after: Any = None
    while page := await mq.partitions("t", after=after, limit=3):
        found += page
        after = (page[-1].key, page[-1].shard)
    assert found == everything
    assert {info.key for info in await mq.partitions("t", prefix="a")} == {*keys} - {"b", "ä"}
    assert [info.key for info in await mq.partitions("t", prefix="a%")] == ["a%"]
    assert [info.key for info in await mq.partitions("t", prefix="a", after="a_")] == [
        "ab", "a\U0010ffff",
    ]  # fmt: skip
    with pytest.raises(errors.InvalidInput):
        await mq.partitions("t", limit=0)


async def test_one_topic_as_in_the_list_of_all(mq: Any) -> None:
    assert await mq.topic("t") is None
    await mq.publish_many("t", [*numbered(3), *numbered(2, key="l")])
    await mq.publish("t2", 1)
    await mq.configure_topic("t", retention=3600)
    await mq.configure_topic("unpublished", max_payload_bytes=7)
    everything = {topic.name: topic for topic in await mq.topics()}
    assert set(everything) == {"t", "t2", "unpublished"}
    assert everything == {name: await mq.topic(name) for name in everything}
    assert (everything["t"].partitions, everything["t"].messages) == (2, 5)


async def test_lag_where_a_group_is_most_behind(mq: Any) -> None:
    for n in range(1, 6):
        await mq.publish_many("t", numbered(n, key=f"k{n}"))
    await mq.create_group("t", "g")
    await mq.seek("t", "g", to="latest", key="k5")
    everything = {row.key: row for row in await mq.lag("t", "g")}
    most = await mq.lag("t", "g", limit=2)
    assert most == [everything["k4"], everything["k3"]]
    with pytest.raises(errors.InvalidInput):
        await mq.lag("t", "g", limit=0)


async def test_traffic_tells_of_all_topics_and_groups(
    mq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await mq.traffic()).topics == (await mq.traffic()).groups == ()
    await mq.publish_many("t", numbered(10))
    await mq.publish_many("other", [Message(payload=n, key=f"k{n}") for n in range(3)])
    await mq.create_group("other", "a")
    await mq.create_group("unpublished", "a")
    await bury(mq, "g", 2)
    first = (await mq.read("t", from_offset=4, limit=1))[0].published_at
    async with mq.subscribe("t", group="g", **QUICK) as sub:
        three, four, five = await take(sub, 3)
        await three.ack()
        await five.ack()
        seen = await mq.traffic()
        told = {(group.topic, group.group): group for group in seen.groups}
        assert list(told) == [("other", "a"), ("t", "g"), ("unpublished", "a")]
        g = told["t", "g"]
        assert (g.acked, g.lag, g.in_flight, g.subscribers) == (4, 6, 1, 1)
        assert [row.retrying for row in await mq.lag("t", "g")] == [0]
        assert (g.dead_letters, g.letters_capped, g.expired, g.oldest_at) == (2, False, 0, first)
        await four.nack(delay=60)
        assert [row.retrying for row in await mq.lag("t", "g")] == [1]
    topics = {topic.topic: topic for topic in seen.topics}
    assert (topics["t"].partitions, topics["t"].published, topics["t"].messages) == (1, 10, 10)
    assert (topics["other"].partitions, topics["other"].published) == (3, 3)
    assert topics["t_dlq"].published == 2
    assert "unpublished" not in topics
    a = told["other", "a"]
    assert (a.acked, a.lag, a.dead_letters, a.oldest_at is None) == (0, 3, 0, False)
    assert (told["unpublished", "a"].lag, told["unpublished", "a"].oldest_at) == (0, None)
    assert not seen.capped
    assert not any(one.capped or one.oldest_capped for one in seen.groups)
    assert (await mq.traffic()).groups[1].in_flight == 0
    assert await mq.gc("t") == 3
    after = {topic.topic: topic for topic in (await mq.traffic()).topics}
    assert (after["t"].published, after["t"].messages) == (10, 7)

    for name, most in (("NAMES_MAX", 2), ("PARTITIONS_MAX", 2), ("LETTERS_MAX", 1)):
        monkeypatch.setattr(traffic, name, most)
    monkeypatch.setattr(sweeping, "NEWEST_MAX", 2)
    few = await mq.traffic()
    assert few.capped
    assert [topic.capped for topic in few.topics] == [True, False]
    assert len(few.groups) == 2


async def test_traffic_takes_few_statements(mq: Any) -> None:
    await mq.publish_many("t0", numbered(1))
    for n in range(45):
        await mq.publish_many(f"t{n}", numbered(1))
        await mq.create_group(f"t{n}", "g")
    seen: list[str] = []
    mq._driver.observers.append(lambda statement: seen.append(statement.name))
    found = await mq.traffic()
    assert len(found.topics) == len(found.groups) == 45
    assert {group.lag for group in found.groups} == {1}
    assert Counter(seen) == {
        "traffic.names": 1,
        "sweeping.newest": 3,
        "traffic.groups": 1,
        "sweeping.behind": 3,
        "traffic.oldest": 3,
        "traffic.letters": 3,
    }
