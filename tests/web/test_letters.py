"""Dead letters on pages and over HTTP: what is done to one is done to no other, and to many in so
many requests as it takes.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rowmq
from rowmq import errors
from rowmq.web import clearing
from rowmq.web.pages import letters as letter_pages
from tests.databases import NAMES, Database
from tests.web.calling import Api, calling
from tests.web.operating import Operator, form_of, operating

everywhere = pytest.mark.parametrize("database", NAMES, indirect=True)

KEYS = ("a", "b", "c")

LETTERS = ("topics", "t", "letters")


@pytest.fixture
async def operator(database: Database) -> AsyncIterator[Operator]:
    """Somebody at this machine, who may do everything as long as there is no token."""
    async with operating(database.url) as found:
        yield found


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    async with calling(database.url) as found:
        yield found


@pytest.fixture
def alike(broker: rowmq.RowMQ) -> dict[str, str]:
    """Handles of letters by the keys of their messages, which have the same id. Their errors are of
    three kinds.
    """
    broker.publish_many("t", [rowmq.Message(payload=key, key=key, id="x") for key in KEYS])
    with broker.subscribe("t", group="g") as sub:
        taken: list[Any] = []
        while len(taken) < len(KEYS):
            taken += sub.poll(timeout=5)
        for delivery in taken:
            delivery.reject(error=f"{delivery.message.payload} is bad")
    return {str(one.message.key): one.handle for one in broker.dead_letters("t")}


def left(broker: rowmq.RowMQ) -> list[str]:
    """The keys of the letters that are there."""
    return sorted(one.message.key or "" for one in broker.dead_letters("t"))


def delivered(broker: rowmq.RowMQ) -> Any:
    """The next message of the group."""
    with broker.subscribe("t", group="g") as sub:
        (delivery,) = sub.poll(timeout=5)
        delivery.ack()
        return delivery.message.payload


def reject(broker: rowmq.RowMQ, count: int, group: str = "g") -> None:
    """Have a group give up on so many messages, with errors of one kind."""
    broker.publish_many("t", [rowmq.Message(payload=n, key="k") for n in range(count)])
    with broker.subscribe("t", group=group, batch_size=count) as sub:
        for n, delivery in enumerate(sub.poll(timeout=5)):
            delivery.reject(error=f"order {n} is bad")


# --- one of several with the same id --------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("action", ["redrive", "purge"])
async def test_those_of_one_kind_are_those_of_no_other(
    broker: rowmq.RowMQ, operator: Operator, alike: dict[str, str], action: str
) -> None:
    assert len(alike) == 3
    page = await operator.read(*LETTERS, action, matching="b is bad")
    answer = await operator.press(page, *LETTERS, action)
    assert re.search("(Gave back|Purged) 1 letter", answer.text)
    assert left(broker) == ["a", "c"]


@everywhere
@pytest.mark.parametrize("action", ["redrive", "purge"])
async def test_what_is_ticked_is_what_it_is_done_to(
    broker: rowmq.RowMQ, operator: Operator, alike: dict[str, str], action: str
) -> None:
    page = await operator.read(*LETTERS)
    assert set(re.findall(r'name="chosen" value="([^"]+)"', page)) == set(alike.values())
    preview = await operator.read(*LETTERS, action, chosen=alike["b"])
    answer = await operator.press(preview, *LETTERS, action)
    assert re.search("(Gave back|Purged) 1 letter", answer.text)
    assert left(broker) == ["a", "c"]
    both = {"chosen": [alike["b"], alike["c"]]}
    answer = await operator.press(preview, *LETTERS, action, fields=both)
    assert re.search("1 letter. 1 was not there any more", answer.text)
    assert left(broker) == ["a"]


@everywhere
async def test_each_letter_has_a_page_and_its_buttons_mean_it(
    broker: rowmq.RowMQ, operator: Operator, alike: dict[str, str]
) -> None:
    for key, handle in alike.items():
        assert f"{key} is bad" in await operator.see(*LETTERS, "of", handle)
    page = await operator.read(*LETTERS, "of", alike["b"])
    await operator.press(page, *LETTERS, "redrive")
    assert left(broker) == ["a", "c"]
    assert delivered(broker) == "b"
    page = await operator.read(*LETTERS, "of", alike["c"], "edit")
    fields = {"payload": '"mended"', "form": "json"}
    await operator.press(page, *LETTERS, "of", alike["c"], "edit", fields=fields)
    assert left(broker) == ["a"]
    assert delivered(broker) == "mended"
    for handle in (alike["b"], alike["c"]):
        assert (await operator.get(*LETTERS, "of", handle)).status_code == 404
    assert (await operator.get("topics", "other", "letters", "of", alike["a"])).status_code == 404
    assert (await operator.get(*LETTERS, "of", "g", "x")).status_code == 404
    assert (await operator.get(*LETTERS, "of", "x")).status_code == 400


@everywhere
async def test_the_api_takes_what_it_tells(
    broker: rowmq.RowMQ, api: Api, alike: dict[str, str]
) -> None:
    told = (await api.get("/topics/t/letters"))["letters"]
    assert {one["message"]["key"]: one["handle"] for one in told} == alike
    one = await api.get(f"/topics/t/letters/{alike['b']}")
    assert one["message"]["payload"] == "b"
    done = {"count": 1, "left": 0, "capped": False}
    assert await api.post("/topics/t/letters/purge", letters=[alike["b"]]) == done
    assert left(broker) == ["a", "c"]
    assert await api.post("/topics/t/redrive", letters=list(alike.values()), group="g") == (
        done | {"count": 2}
    )
    await api.refused(404, f"/topics/t/letters/{alike['b']}", "GET")
    await api.refused(400, "/topics/t/letters/x", "GET")


async def test_the_api_edits_exactly_one(
    broker: rowmq.RowMQ, api: Api, alike: dict[str, str]
) -> None:
    path = "/topics/t/redrive/edited"
    await api.refused(400, path, group="g", id="x", payload=1)
    await api.refused(400, path, payload=1)
    await api.refused(400, path, letter=alike["b"], group="g", id="x", payload=1)
    assert await api.post(path, letter=alike["b"], payload="mended") == {"changed": True}
    assert await api.post(path, letter=alike["b"], payload="mended") == {"changed": False}
    assert left(broker) == ["a", "c"]
    assert delivered(broker) == "mended"


async def test_letters_are_chosen_in_one_way(
    broker: rowmq.RowMQ, api: Api, alike: dict[str, str]
) -> None:
    handles = list(alike.values())
    for path in ("/topics/t/redrive", "/topics/t/letters/purge"):
        await api.refused(422, path, letters=handles, all=True)
        await api.refused(422, path, letters=handles, ids=["x"])
        await api.refused(422, path, letters=[])
        await api.refused(422, path, letters=["x"])
        await api.refused(422, path)
    assert left(broker) == ["a", "b", "c"]


# --- very many ------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("action", ["redrive", "purge"])
async def test_all_of_very_many_take_more_than_one_press(
    broker: rowmq.RowMQ, operator: Operator, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(clearing, "AT_ONCE_MAX", 4)
    reject(broker, 10)
    said = []
    for _ in range(3):
        page = await operator.read(*LETTERS, action, all="yes")
        answer = await operator.press(page, *LETTERS, action)
        said.append(answer.text)
    assert "4 letters. 6 are left: press again" in said[0]
    assert "4 letters. 2 are left: press again" in said[1]
    assert re.search(r"2 letters\.\s*<", said[2])
    assert broker.dead_letters("t") == []


@pytest.mark.parametrize("path", ["/topics/t/redrive", "/topics/t/letters/purge"])
async def test_a_call_says_how_many_are_left_for_the_next_one(
    broker: rowmq.RowMQ, api: Api, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(clearing, "AT_ONCE_MAX", 4)
    reject(broker, 10)
    answers = [await api.post(path, all=True) for _ in range(4)]
    assert [(one["count"], one["left"]) for one in answers] == [(4, 6), (4, 2), (2, 0), (0, 0)]
    assert broker.dead_letters("t") == []


async def test_of_a_kind_too_it_is_said_how_many_are_left(
    broker: rowmq.RowMQ, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_pages, "KIND_AT_ONCE_MAX", 4)
    reject(broker, 6)
    for said in ("4 letters. 2 of this kind are left: press again", "Purged 2 letters."):
        page = await operator.read(*LETTERS, "purge", matching="order <n> is bad")
        answer = await operator.press(page, *LETTERS, "purge")
        assert said in answer.text
    assert broker.dead_letters("t") == []


@pytest.mark.parametrize("chosen", [{"all": "yes"}, {"matching": "order <n> is bad"}])
@pytest.mark.parametrize("action", ["redrive", "purge"])
async def test_what_was_done_is_told_also_if_nobody_can_see_what_is_left(
    broker: rowmq.RowMQ,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    chosen: dict[str, str],
    action: str,
) -> None:
    monkeypatch.setattr(clearing, "AT_ONCE_MAX", 4)
    monkeypatch.setattr(letter_pages, "KIND_AT_ONCE_MAX", 4)
    reject(broker, 6)
    page = await operator.read(*LETTERS, action, **chosen)

    async def fails(*_: Any, **__: Any) -> None:
        raise errors.RowMQError("the database went away")

    mq = await operator.site.connect()
    with monkeypatch.context() as gone:
        for name in ("preview_redrive", "preview_purge", "letter_kinds"):
            gone.setattr(mq, name, fails)
        form = form_of(page, operator.path(*LETTERS, action))
        answer = await operator.client.post(operator.path(*LETTERS, action), data=form)
    assert answer.status_code == 303
    shown = await operator.client.get(answer.headers["location"])
    assert "4 letters. There may be more" in shown.text
    (entry,) = broker.access.audit()
    assert (entry.ending, entry.details["count"]) == (rowmq.Ending.DONE, 4)


async def test_letters_of_a_group_that_was_dropped_can_be_purged(
    broker: rowmq.RowMQ, operator: Operator
) -> None:
    reject(broker, 3, group="gone")
    broker.drop_group("t", "gone")
    (letter, *_) = broker.dead_letters("t")
    page = await operator.read(*LETTERS, "of", letter.handle)
    answer = await operator.press(page, *LETTERS, "redrive")
    assert "Gave back 0 letters. 1 was not there any more, or of a group that is not." in (
        answer.text
    )
    page = await operator.read(*LETTERS, "purge", all="yes", group="gone")
    assert "Purged 3 letters" in (await operator.press(page, *LETTERS, "purge")).text
    assert broker.dead_letters("t") == []


# --- the trail ------------------------------------------------------------------------------------


async def test_the_trail_names_letters_and_what_was_done_to_them(
    broker: rowmq.RowMQ, operator: Operator, api: Api, alike: dict[str, str]
) -> None:
    page = await operator.read(*LETTERS, "redrive", chosen=alike["a"])
    await operator.press(page, *LETTERS, "redrive")
    await api.post("/topics/t/letters/purge", letters=[alike["b"]])
    page = await operator.read(*LETTERS, "of", alike["c"], "edit")
    fields = {"payload": "1", "form": "json"}
    await operator.press(page, *LETTERS, "of", alike["c"], "edit", fields=fields)
    edited, purged, redriven = broker.access.audit(limit=3)
    assert (redriven.action, redriven.details["letters"]) == ("letters.redrive", [alike["a"]])
    assert (purged.action, purged.details["letters"]) == ("letters.purge", [alike["b"]])
    assert redriven.details["count"] == purged.details["count"] == 1
    assert (edited.action, edited.details["letter"]) == ("letters.redrive_edited", alike["c"])
