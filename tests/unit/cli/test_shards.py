"""Commands about messages without a key, on SQLite: what they say of shards, and do to one."""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq.store.keys import SHARD_KEYS
from tests.unit.cli.running import answer, invoke, json_of, url_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path)


@pytest.fixture
def mq(url: str) -> Any:
    with rowmq.connect(url) as client:
        yield client


@pytest.fixture
def shards(mq: Any) -> datetime:
    """Messages without a key, in two shards, before and after a moment, which is given."""
    for shard in (5, 2):
        mq._shard.key = SHARD_KEYS[shard]
        mq.publish_many("t", [rowmq.Message(payload=[shard, n]) for n in (1, 2)])
        time.sleep(0.002)
    latest: datetime = max(message.published_at for message in mq.read("t"))
    time.sleep(0.01)
    mq.publish("t", [2, 3])
    return latest + timedelta(milliseconds=5)


def lines(text: str) -> list[list[str]]:
    """The words of each line of a table."""
    return [line.split() for line in text.splitlines()]


def tailed(url: str, *arguments: str) -> list[Any]:
    shown = answer(url, "tail", "t", "--no-follow", "--json", *arguments)
    return [json.loads(line) for line in shown.splitlines()]


@pytest.mark.usefixtures("shards")
def test_tail_shows_shards_in_the_order_of_their_times(url: str) -> None:
    everything = [[5, 1], [5, 2], [2, 1], [2, 2], [2, 3]]
    assert [message["payload"] for message in tailed(url)] == everything
    assert [message["shard"] for message in tailed(url)] == [5, 5, 2, 2, 2]
    assert [message["payload"] for message in tailed(url, "-n", "3")] == everything[2:]
    assert [message["payload"] for message in tailed(url, "--from", "2")] == [
        [5, 2],
        [2, 2],
        [2, 3],
    ]


def test_each_shard_is_sought_by_itself(url: str, mq: Any, shards: datetime) -> None:
    mq.create_group("t", "g")
    rows = lines(answer(url, "lag", "t", "g", "--partitions"))
    assert [row[:4] for row in rows] == [
        ["group", "shard", "acked", "last"], ["g", "2", "0", "3"], ["g", "5", "0", "2"]
    ]  # fmt: skip
    answer(url, "seek", "t", "g", "--to", shards.isoformat(), "--yes")
    assert {row.shard: row.offset_acked for row in mq.lag("t", "g")} == {2: 2, 5: 2}
    preview = json_of(url, "seek", "t", "g", "--to", shards.isoformat(), "--dry-run")
    assert {p["shard"]: p["next_offset"] for p in preview["partitions"]} == {2: 3, 5: 3}
    answer(url, "seek", "t", "g", "--to", "2", "--yes")
    assert {row.shard: row.offset_acked for row in mq.lag("t", "g")} == {2: 1, 5: 1}
    refused = invoke(url, "seek", "t", "g", "--to", "4", "--yes")
    assert refused.exit_code == 2
    assert "shard 5 of the messages without a key" in refused.stderr
    assert "--shard or --key names one partition" in refused.stderr


@pytest.mark.parametrize(
    ("to", "acked"), [("3", 2), ("earliest", 0), ("latest", 3), ("TIME", 2), ("4", 3)]
)
def test_one_shard_is_sought(url: str, mq: Any, shards: datetime, to: str, acked: int) -> None:
    mq.create_group("t", "g")
    mq.publish("t", "k", key="k")
    mq.seek("t", "g", to={(None, 2): 2})
    arguments = ["seek", "t", "g", "--to", to.replace("TIME", shards.isoformat()), "--shard", "2"]
    preview = json_of(url, *arguments, "--dry-run")
    assert [(p["shard"], p["next_offset"]) for p in preview["partitions"]] == [(2, acked + 1)]
    assert json_of(url, *arguments, "--yes")["moved"] == 1
    places = {(row.key, row.shard): row.offset_acked for row in mq.lag("t", "g")}
    assert places == {(None, 2): acked, (None, 5): 0, ("k", 0): 0}


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--shard", "8"], "8 is not in the range 0<=x<=7"),
        (["--shard", "2", "--key", "k"], "give --key or --shard, but not both"),
    ],
)
def test_what_is_no_shard_is_refused(url: str, mq: Any, arguments: list[str], story: str) -> None:
    mq.create_group("t", "g")
    for words in (["seek", "t", "g", "--to", "latest", "--yes"], ["tail", "t", "--no-follow"]):
        refused = invoke(url, *words, *arguments)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert story in refused.stderr
    assert {row.offset_acked for row in mq.lag("t", "g")} == {0}


@pytest.mark.usefixtures("shards")
def test_a_shard_without_messages_is_not_found(url: str, mq: Any) -> None:
    mq.create_group("t", "g")
    absent = invoke(url, "seek", "t", "g", "--to", "latest", "--yes", "--shard", "3")
    assert absent.exit_code == 3
    assert "no messages in shard 3, without a key" in absent.stderr
    assert {row.offset_acked for row in mq.lag("t", "g")} == {0}


def test_tail_tells_people_the_shard_and_shows_one_of_them(
    url: str, mq: Any, shards: datetime
) -> None:
    mq.publish("t", "k", key="k", id="i")
    shown = [
        line.split("Z ", 1)[1] for line in answer(url, "tail", "t", "--no-follow").splitlines()
    ]
    places = ["- (shard 5) 1 ", "- (shard 5) 2 ", "- (shard 2) 1 ", "- (shard 2) 2 "]
    assert [line[: len(places[0])] for line in shown[:4]] == places
    assert shown[-1] == "k 1 i k"
    in_two = [[2, 1], [2, 2], [2, 3]]
    for arguments, payloads in (
        ([], in_two),
        (["-n", "1"], in_two[2:]),
        (["--from", "2"], in_two[1:]),
        (["--from", shards.isoformat()], in_two[2:]),
    ):
        assert [m["payload"] for m in tailed(url, "--shard", "2", *arguments)] == payloads
    assert tailed(url, "--shard", "3") == []
