"""Commands about topics, on SQLite: what they print, change and refuse."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import rowmq
from rowmq.cli.sources import CHUNK_BYTES
from tests.unit.cli.running import answer, invoke, json_of, url_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path)


@pytest.fixture
def mq(url: str) -> Any:
    with rowmq.connect(url) as client:
        yield client


def lines(text: str) -> list[list[str]]:
    """The words of each line of a table."""
    return [line.split() for line in text.splitlines()]


# --- publish --------------------------------------------------------------------------------------


def test_publish_takes_json_or_text_with_key_id_and_headers(url: str, mq: Any) -> None:
    options = ["--key", "k", "--id", "one", "--header", "a=b", "--header", "c=d=e"]
    shown = answer(url, "publish", "orders", '{"id": 7}', *options)
    assert shown == "published: orders (new), key k, offset 1, id one\n"
    answer(url, "publish", "orders", "plain text", "12", "null", '"quoted"', "--key", "z")
    answer(url, "publish", "orders", "12", "--raw", "--key", "z")
    first, *rest = mq.read("orders")
    assert (first.payload, first.key, first.id) == ({"id": 7}, "k", "one")
    assert first.headers == {"a": "b", "c": "d=e"}
    assert [message.payload for message in rest] == ["plain text", 12, None, "quoted", "12"]


def test_publish_says_of_a_topic_once_that_it_is_new(url: str, mq: Any) -> None:
    first, second = answer(url, "publish", "ordes", "1", "2").splitlines()
    assert first.startswith("published: ordes (new), shard")
    assert second.startswith("published: ordes, shard")
    assert "(new)" not in answer(url, "publish", "ordes", "3")
    mq.create_group("orders", "billing")
    assert "(new)" not in answer(url, "publish", "orders", "1")
    assert "(new)" not in answer(url, "publish", "others", input="")


@pytest.mark.parametrize("words", [["publish", "t"], ["jobs", "put", "t"]], ids=" ".join)
@pytest.mark.parametrize("payload", ['{"id": 1', "{id: 1}", " [1, 2", "[", "{"])
def test_what_begins_as_json_and_is_none_is_refused_unless_it_is_meant_as_text(
    url: str, mq: Any, words: list[str], payload: str
) -> None:
    result = invoke(url, *words, "1", payload)
    assert result.exit_code == 1
    assert "payload 2: this begins as JSON, and is none" in result.stderr
    assert "single quotes" in result.stderr
    assert "--raw" in result.stderr
    assert mq.read("t") == mq.queue("t").live() == []
    answer(url, *words, payload, "--raw")
    found = mq.read("t") if words[0] == "publish" else mq.queue("t").live()
    assert [one.payload for one in found] == [payload]


def test_publish_says_what_was_there_already(url: str) -> None:
    assert json_of(url, "publish", "t", "1", "--id", "a", "--key", "k") == {
        "topic": "t",
        "published": 1,
        "duplicates": 0,
        "messages": [{"key": "k", "shard": 0, "id": "a", "offset": 1, "duplicate": False}],
    }
    known = answer(url, "publish", "t", "2", "--id", "a", "--key", "k")
    assert known == "was there already: t, key k, offset 1, id a\n"
    envelopes = '{"payload": 1, "id": "a"}\n{"payload": 2, "id": "b"}\n'
    shown = answer(url, "publish", "t", "--envelope", "--key", "k", input=envelopes)
    assert shown == "published 1 message to t, 1 duplicate\n"


def test_publish_reads_json_lines_from_stdin_in_batches(url: str, mq: Any) -> None:
    given = "\n".join(map(str, range(2_345))) + "\n\n"
    assert json_of(url, "publish", "t", input=given) == {
        "topic": "t",
        "published": 2_345,
        "duplicates": 0,
        "messages": None,
    }
    assert [m.payload for m in mq.read("t", limit=5_000)] == list(range(2_345))


def test_publish_reads_files_one_after_the_other_and_stdin_among_them(
    url: str, mq: Any, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text('{"n": 1}\n{"n": 2}')
    (tmp_path / "b").write_bytes(b"text\r\n\xc3\x9f\n")
    files = ["--key", "k", "--file", str(tmp_path / "a"), "-f", "-"]
    assert answer(url, "publish", "t", *files, input="3\n") == "published 3 messages to t (new)\n"
    answer(url, "publish", "t", "--key", "k", "--raw", "--file", str(tmp_path / "b"))
    assert [m.payload for m in mq.read("t")] == [{"n": 1}, {"n": 2}, 3, "text", "ß"]


def test_a_bad_line_is_named_and_nothing_of_its_batch_is_published(
    url: str, mq: Any, tmp_path: Path
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text("\n".join(map(str, range(1_100))) + "\n{bad\n1\n")
    result = invoke(url, "publish", "t", "--file", str(path))
    assert result.exit_code == 1
    assert f"{path}:1101: this is no JSON" in result.stderr
    assert len(mq.read("t", limit=5_000)) == 1_000


@pytest.mark.parametrize(
    ("line", "story"),
    [
        ('{"key": "k"}', "missing required field `payload`"),
        ('{"payload": 1, "keys": "k"}', "unknown field `keys`"),
        ('{"payload": 1, "key": 7}', "Expected `str | null`, got `int`"),
        ('{"payload": "?", "encoding": "base64"}', "no base64"),
        ("7", "Expected `object`, got `int`"),
        ('{"payload": 1, "key": ""}', "key"),
        ('{"payload": 1, "id": "' + "x" * 300 + '"}', "id"),
    ],
)
def test_a_bad_envelope_is_named_by_its_line(url: str, mq: Any, line: str, story: str) -> None:
    given = '{"payload": 0}\n\n' + line + "\n"
    result = invoke(url, "publish", "t", "--envelope", input=given)
    assert result.exit_code == 1
    assert "stdin:3: " in result.stderr
    assert story in result.stderr
    assert mq.read("t") == []


def test_a_payload_that_is_too_large_is_found_by_its_lines(url: str, mq: Any) -> None:
    mq.configure_topic("t", max_payload_bytes=10)
    result = invoke(url, "publish", "t", input='1\n"' + "x" * 20 + '"\n')
    assert result.exit_code == 1
    assert "PayloadTooLarge: stdin:1 to stdin:2: " in result.stderr
    assert mq.read("t") == []


def test_bytes_that_are_no_text_are_named_by_their_line(url: str, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"fine\n\xff\n")
    result = invoke(url, "publish", "t", "--raw", "--file", str(tmp_path / "bytes"))
    assert result.exit_code == 1
    assert "bytes:2: this is no UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "story"),
    [
        (["--file", "/nowhere/at-all"], "cannot be read"),
        (["--file", "/"], "directory"),
        (["1", "2", "--id", "a"], "--id names one message"),
        (["--envelope", "--raw"], "not both"),
        (["1", "--header", "a"], "name=value"),
    ],
)
def test_publish_is_told_what_was_wrong(url: str, arguments: list[str], story: str) -> None:
    result = invoke(url, "publish", "t", *arguments)
    assert result.exit_code == 2
    assert story in result.stderr


def test_what_tail_printed_can_be_published_again(url: str, mq: Any) -> None:
    mq.publish("t", b"\x00\xff", key="k", id="1", headers={"a": "b"})
    mq.publish("t", "text", key="k", id="2")
    mq.publish("t", {"n": [None, 1.5]}, id="3")
    printed = answer(url, "tail", "t", "--no-follow", "--json")
    answer(url, "publish", "copy", "--envelope", input=printed)

    def told(topic: str) -> list[Any]:
        return [(m.payload, m.key, m.id, m.headers) for m in mq.read(topic)]

    assert told("copy") == told("t")


# --- tail -----------------------------------------------------------------------------------------


@pytest.fixture
def log(mq: Any) -> datetime:
    """Three keys with messages before and after a moment, which is given."""
    for n in range(3):
        mq.publish("t", n, key="a")
    mq.publish("t", 3, key="b")
    time.sleep(0.01)
    ((last,),) = [mq.read("t", key="b")]
    moment: datetime = last.published_at + timedelta(milliseconds=5)
    mq.publish("t", 4)
    mq.publish("t", 5, key="a")
    return moment


def tailed(url: str, *arguments: str) -> list[Any]:
    shown = answer(url, "tail", "t", "--no-follow", "--json", *arguments)
    return [json.loads(line) for line in shown.splitlines()]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("arguments", "payloads"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        (["--from", "earliest"], [0, 1, 2, 3, 4, 5]),
        (["--from", "2"], [1, 2, 5]),
        (["--from", "3", "--key", "a"], [2, 5]),
        (["--key", "a"], [0, 1, 2, 5]),
        (["-n", "2"], [4, 5]),
        (["-n", "1"], [5]),
        (["-n", "3"], [3, 4, 5]),
        (["-n", "100"], [0, 1, 2, 3, 4, 5]),
        (["-n", "0"], []),
        (["-n", "2", "--key", "a"], [2, 5]),
        (["--limit", "2"], [0, 1]),
        (["--key", "nobody"], []),
    ],
)
def test_tail_begins_where_it_is_told(url: str, arguments: list[str], payloads: list[int]) -> None:
    assert [message["payload"] for message in tailed(url, *arguments)] == payloads


def test_tail_begins_at_a_time(url: str, log: datetime) -> None:
    assert [message["payload"] for message in tailed(url, "--from", log.isoformat())] == [4, 5]


def test_tail_reads_more_than_a_batch(url: str, mq: Any) -> None:
    for key in ("a", "b"):
        mq.publish_many("t", [rowmq.Message(payload=n, key=key) for n in range(1_500)])
    found = tailed(url)
    assert [m["payload"] for m in found if m["key"] == "a"] == list(range(1_500))
    assert len(found) == 3_000


def test_tail_prints_all_that_is_known_of_a_message(url: str, mq: Any) -> None:
    sent = mq.publish("t", {"a": "ß"}, key="k", id="i", headers={"h": "v"})
    (message,) = tailed(url)
    published = datetime.fromisoformat(message.pop("published_at"))
    assert abs(published - datetime.now(UTC)) < timedelta(minutes=1)
    assert message == {
        "topic": "t",
        "key": "k",
        "shard": 0,
        "offset": sent.offset,
        "id": "i",
        "headers": {"h": "v"},
        "payload": {"a": "ß"},
        "encoding": "json",
    }
    shown = answer(url, "tail", "t", "--no-follow")
    assert shown.endswith('Z k 1 i {"a":"ß"} h=v\n')


def test_tail_of_a_topic_that_is_not_there(url: str, mq: Any) -> None:
    mq.publish("other", 1)
    assert invoke(url, "tail", "t", "--no-follow").exit_code == 3
    assert invoke(url, "tail", "t", "--from", "earliest", "-n", "3").exit_code == 2
    assert invoke(url, "tail", "t", "--from", "2026-01-01T00:00:00").exit_code == 2


def test_a_payload_that_is_not_what_it_says_it_is_does_not_end_tail(url: str, mq: Any) -> None:
    for n in range(3):
        mq.publish("t", {"n": n})
    with mq.transaction() as tx:
        tx.execute("UPDATE rowmq_messages SET payload = x'ff' WHERE message_offset = 2")
    assert [(m["payload"], m["encoding"]) for m in tailed(url)] == [
        ({"n": 0}, "json"),
        ("/w==", "base64"),
        ({"n": 2}, "json"),
    ]
    assert r"b'\xff'" in answer(url, "tail", "t", "-n", "2", "--no-follow")


def test_tail_makes_no_group_and_leaves_no_trace(url: str, mq: Any) -> None:
    mq.publish("t", 1)
    before = mq.topics()
    answer(url, "tail", "t", "--no-follow")
    assert mq.groups("t") == []
    assert mq.topics() == before


# --- topics and groups ----------------------------------------------------------------------------


def test_topics_are_listed_and_looked_at(url: str, mq: Any) -> None:
    mq.publish("orders", 1, key="a")
    shard = mq.publish("orders", 2).shard
    assert lines(answer(url, "topics"))[1] == ["orders", "2", "2", "until", "acked", "1", "MiB"]
    assert json_of(url, "topics", "orders") == {
        "topic": "orders",
        "partitions": 2,
        "messages": 2,
        "retention_seconds": None,
        "max_payload_bytes": 2**20,
        "holds_letters": False,
        "keys": [
            {"key": None, "shard": shard, "first_offset": 1, "last_offset": 1, "messages": 1},
            {"key": "a", "shard": 0, "first_offset": 1, "last_offset": 1, "messages": 1},
        ],
    }
    rows = lines(answer(url, "topics", "orders"))
    assert rows[-2:] == [["-", str(shard), "1", "1", "1"], ["a", "-", "1", "1", "1"]]
    assert invoke(url, "topics", "nothing").exit_code == 3


def test_an_empty_database_is_no_error(url: str) -> None:
    answer(url, "migrate")
    result = invoke(url, "topics")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no topics" in result.stderr
    assert json_of(url, "topics") == []


def test_a_topic_is_configured(url: str, mq: Any) -> None:
    told = json_of(url, "topics", "configure", "t", "--retention", "7d", "--max-payload", "64KiB")
    assert (told["retention_seconds"], told["max_payload_bytes"]) == (604_800, 65_536)
    (info,) = mq.topics()
    assert (info.retention, info.max_payload_bytes) == (timedelta(days=7), 65_536)
    assert "until acked, 7d at most" in answer(url, "topics", "t")
    answer(url, "topics", "configure", "t", "--retention", "forever")
    assert mq.topics()[0].retention is None
    assert invoke(url, "topics", "configure", "t").exit_code == 2


def test_a_topic_that_is_called_like_a_command_can_be_looked_at(url: str, mq: Any) -> None:
    mq.publish("configure", 1)
    assert json_of(url, "topics", "ls", "configure")["messages"] == 1


def test_groups_are_created_listed_and_dropped(url: str, mq: Any) -> None:
    mq.publish("t", 1)
    assert "no groups" in invoke(url, "groups", "t").stderr
    assert json_of(url, "groups", "create", "t", "g")["created"]
    assert not json_of(url, "groups", "create", "t", "g")["created"]
    answer(url, "groups", "create", "t", "late", "--start", "latest")
    (g, late) = json_of(url, "groups", "t")
    assert (g["group"], g["lag"], late["lag"]) == ("g", 1, 0)
    assert lines(answer(url, "groups", "t"))[1][:4] == ["g", "0", "1", "0"]
    refused = invoke(url, "groups", "drop", "t", "g")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    answer(url, "groups", "drop", "t", "g", "--dry-run")
    assert len(mq.groups("t")) == 2
    assert json_of(url, "groups", "drop", "t", "g", "--yes")["dropped"]
    assert [group.name for group in mq.groups("t")] == ["late"]
    assert invoke(url, "groups", "drop", "t", "g", "--yes").exit_code == 3
    assert invoke(url, "groups", "nothing").exit_code == 3


def test_without_a_topic_groups_lag_and_dead_letters_are_those_of_all(url: str, mq: Any) -> None:
    answer(url, "migrate")
    for words in (["groups"], ["lag"]):
        assert "there are no groups yet" in invoke(url, *words).stderr
        assert json_of(url, *words) == []
    assert "there are no dead letters" in invoke(url, "dlq").stderr
    for topic in ("b", "a"):
        mq.publish(topic, 1, key="k", id=f"of {topic}")
        mq.publish(topic, 2, key="k")
        with mq.subscribe(topic, group="g", discovery_interval=0.05) as sub:
            (delivery, *_) = sub.poll(max=1, timeout=10)
            delivery.reject(error="bad")
    mq.publish("alone", 1)
    assert [(g["topic"], g["group"]) for g in json_of(url, "groups")] == [("a", "g"), ("b", "g")]
    assert [row[:4] for row in lines(answer(url, "groups"))] == [
        ["group", "topic", "subscribers", "lag"], ["g", "a", "0", "1"], ["g", "b", "0", "1"]
    ]  # fmt: skip
    assert json_of(url, "lag") == [json_of(url, "lag", "a"), json_of(url, "lag", "b")]
    assert lines(answer(url, "lag"))[1:] == [["g", t, "1", "1", "0", "0"] for t in ("a", "b")]
    assert [row[:2] for row in lines(answer(url, "lag", "--partitions"))[1:]] == [
        ["g", "a"], ["g", "b"]
    ]  # fmt: skip
    assert [letter["topic"] for letter in json_of(url, "dlq")] == ["b", "a"]
    assert [letter["topic"] for letter in json_of(url, "dlq", "--limit", "1")] == ["b"]
    assert json_of(url, "dlq", "--group", "other") == []
    assert [row[:4] for row in lines(answer(url, "dlq"))[1:]] == [
        ["of", "b", "b", "g"], ["of", "a", "a", "g"]
    ]  # fmt: skip


# --- lag and seek ---------------------------------------------------------------------------------


@pytest.fixture
def behind(mq: Any) -> None:
    """A group that has acked one of three messages of a key, and none of another."""
    for n in range(3):
        mq.publish("t", n, key="a")
    mq.publish("t", 3)
    mq.create_group("t", "g")
    mq.seek("t", "g", to={"a": 2})


@pytest.mark.usefixtures("behind")
def test_lag_by_group_and_by_partition(url: str) -> None:
    assert lines(answer(url, "lag", "t"))[1] == ["g", "2", "3", "0", "0"]
    first, second = lines(answer(url, "lag", "t", "g", "--partitions"))[1:]
    assert first[:2] + first[3:] == ["g", "-", "0", "1", "1", "0"]
    assert second == ["g", "a", "-", "1", "3", "2", "0"]
    told = json_of(url, "lag", "t")
    (group,) = told["groups"]
    assert (told["topic"], group["group"], group["lag"], group["in_flight"]) == ("t", "g", 3, 0)
    assert group["partitions"][1] == {
        "key": "a",
        "shard": 0,
        "offset_acked": 1,
        "last_offset": 3,
        "lag": 2,
        "in_flight": 0,
        "owner": None,
    }
    assert invoke(url, "lag", "t", "nobody").exit_code == 3
    assert invoke(url, "lag", "nothing").exit_code == 3


def acked(mq: Any) -> dict[str | None, int]:
    return {row.key: row.offset_acked for row in mq.lag("t", "g")}


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (["--to", "earliest"], {None: 0, "a": 0}),
        (["--to", "latest"], {None: 1, "a": 3}),
        (["--to", "latest", "--key", "a"], {None: 0, "a": 3}),
        (["--to", "3", "--key", "a"], {None: 0, "a": 2}),
        (["--to", "1"], {None: 0, "a": 0}),
        (["--to", "2000-01-01T00:00:00Z"], {None: 0, "a": 0}),
        (["--to", "2999-01-01T00:00:00Z"], {None: 1, "a": 3}),
    ],
)
def test_seek_shows_what_it_does_and_does_it(
    url: str, mq: Any, arguments: list[str], after: dict[str | None, int]
) -> None:
    before = acked(mq)
    preview = json_of(url, "seek", "t", "g", *arguments, "--dry-run")
    assert acked(mq) == before
    assert {p["key"]: p["next_offset"] - 1 for p in preview["partitions"]} == {
        key: offset for key, offset in after.items() if "--key" not in arguments or key == "a"
    }
    assert invoke(url, "seek", "t", "g", *arguments).exit_code == 2
    assert acked(mq) == before
    done = json_of(url, "seek", "t", "g", *arguments, "--yes")
    assert done["moved"] == len(done["partitions"])
    assert acked(mq) == after


@pytest.mark.usefixtures("behind")
def test_seek_tells_how_much_comes_again_and_how_much_is_skipped(url: str) -> None:
    shown = invoke(url, "seek", "t", "g", "--to", "earliest").stderr
    assert "gets 1 message again and skips 0" in shown
    assert ["a", "-", "1", "1", "1", "0"] in lines(shown)
    shown = invoke(url, "seek", "t", "g", "--to", "latest", "--yes").output
    assert ["a", "-", "1", "4", "0", "2"] in lines(shown)
    assert "moved group g in 2 partitions" in shown


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize(
    ("arguments", "code", "story"),
    [
        (["t", "g", "--to", "9", "--key", "a"], 2, "offsets 1 to 3"),
        (["t", "g", "--to", "3"], 2, "messages without a key"),
        (["t", "g", "--to", "soon"], 2, "earliest, latest"),
        (["t", "g", "--to", "latest", "--key", "zz"], 3, "no messages with the key 'zz'"),
        (["t", "nobody", "--to", "latest"], 3, "rowmq groups t lists them"),
        (["t", "gg", "--to", "latest"], 3, "did you mean 'g'?"),
        (["tt", "g", "--to", "latest"], 3, "error: there is no topic 'tt': did you mean 't'?"),
    ],
)
def test_seek_refuses_what_is_not_there(
    url: str, mq: Any, arguments: list[str], code: int, story: str
) -> None:
    before = acked(mq)
    result = invoke(url, "seek", *arguments, "--yes")
    assert result.exit_code == code
    assert story in result.stderr
    assert acked(mq) == before


# --- dead letters and garbage collection ----------------------------------------------------------


@pytest.fixture
def letters(mq: Any) -> None:
    """Three dead letters of one group."""
    for n in range(3):
        mq.publish("t", {"n": n}, key="k", id=f"m{n}", headers={"h": "v"})
    with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        for delivery in sub.poll(max=10, timeout=10):
            delivery.reject(error=f"bad\n{delivery.message.id}")


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_listed_and_shown(url: str, mq: Any) -> None:
    assert [letter["id"] for letter in json_of(url, "dlq", "t")] == ["m0", "m1", "m2"]
    assert len(json_of(url, "dlq", "t", "--limit", "2")) == 2
    assert len(json_of(url, "dlq", "ls", "t", "--group", "g")) == 3
    (letter,) = json_of(url, "dlq", "show", "t", "m1")
    kept = {name: value for name, value in letter.items() if not name.endswith("_at")}
    assert mq.find_letter("t", kept.pop("handle")).message.id == "m1"
    assert kept == {
        "topic": "t",
        "group": "g",
        "key": "k",
        "shard": 0,
        "id": "m1",
        "offset": 2,
        "attempts": 1,
        "error": "bad\nm1",
        "headers": {"h": "v"},
        "payload": {"n": 1},
        "encoding": "json",
    }
    shown = answer(url, "dlq", "show", "t", "m1")
    assert ["error", "bad"] in lines(shown)
    assert ["m1"] in lines(shown)
    assert 'payload\n{\n  "n": 1\n}' in shown
    assert "bad\\nm2" in answer(url, "dlq", "t")


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_redriven(url: str, mq: Any) -> None:
    assert json_of(url, "dlq", "redrive", "t", "--dry-run") == {
        "redriven": 0,
        "found": 3,
        "dry_run": True,
    }
    assert json_of(url, "dlq", "redrive", "t", "--id", "m0", "--group", "g")["redriven"] == 1
    assert answer(url, "dlq", "redrive", "t") == "redriven 2 dead letters\n"
    assert answer(url, "dlq", "redrive", "t") == "redriven 0 dead letters\n"
    assert mq.dead_letters("t") == []


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_purged_only_if_that_was_meant(url: str, mq: Any) -> None:
    refused = invoke(url, "dlq", "purge", "t")
    assert refused.exit_code == 2
    assert "3 dead letters" in refused.stderr
    assert answer(url, "dlq", "purge", "t", "--dry-run") == "would be purged: 3 dead letters\n"
    assert len(mq.dead_letters("t")) == 3
    assert answer(url, "dlq", "purge", "t", "--id", "m1", "--yes") == "purged 1 dead letter\n"
    assert json_of(url, "dlq", "purge", "t", "--yes")["purged"] == 2
    assert mq.dead_letters("t") == []


def test_letters_of_the_same_id_are_told_apart_by_their_handles(url: str, mq: Any) -> None:
    for key in ("a", "b", "c"):
        mq.publish("t", key, key=key, id="x")
    with mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        while mq.lag("t", "g") and sum(row.lag for row in mq.lag("t", "g")):
            for delivery in sub.poll(max=10, timeout=10):
                delivery.reject(error="bad")
    shown = {letter["key"]: letter["handle"] for letter in json_of(url, "dlq", "show", "t", "x")}
    a, b, c = (shown[key] for key in ("a", "b", "c"))
    (letter,) = json_of(url, "dlq", "show", "t", "--letter", b)
    assert letter["payload"] == "b"
    assert b in answer(url, "dlq", "show", "t", "x")
    purged = answer(url, "dlq", "purge", "t", "--letter", b, "--yes")
    assert purged == "purged 1 dead letter\n"
    assert json_of(url, "dlq", "redrive", "t", "--letter", a, "--group", "g")["redriven"] == 1
    assert [left.message.key for left in mq.dead_letters("t")] == ["c"]
    for gone in (["--letter", b], ["--letter", c, "--letter", b], ["--letter", c, "--group", "h"]):
        assert invoke(url, "dlq", "redrive", "t", *gone).exit_code == 3
    for wrong in (["--letter", c, "--id", "x"], []):
        assert invoke(url, "dlq", "show", "t", *wrong).exit_code == 2
    assert invoke(url, "dlq", "purge", "t", "--letter", c, "--id", "x", "--yes").exit_code == 2
    assert "no handle" in invoke(url, "dlq", "purge", "t", "--letter", "x", "--yes").stderr
    assert [left.message.key for left in mq.dead_letters("t")] == ["c"]


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    "arguments",
    [["ls", "nothing"], ["ls", "t", "--group", "x"], ["show", "t", "m9"],
     ["redrive", "t", "--id", "m9"], ["redrive", "t", "--group", "x"], ["redrive", "nothing"],
     ["purge", "t", "--id", "m9", "--yes"], ["purge", "nothing", "--yes"]],
)  # fmt: skip
def test_what_has_no_dead_letters_is_not_found(url: str, mq: Any, arguments: list[str]) -> None:
    assert invoke(url, "dlq", *arguments).exit_code == 3
    assert len(mq.dead_letters("t")) == 3


def test_gc_takes_what_every_group_has_acked(url: str, mq: Any) -> None:
    mq.publish_many("t", [rowmq.Message(payload=n) for n in range(5)])
    mq.publish("other", 1)
    mq.create_group("t", "g", start="latest")
    assert json_of(url, "gc") == {
        "deleted": 5,
        "topics": [{"topic": "other", "deleted": 0}, {"topic": "t", "deleted": 5}],
    }
    assert answer(url, "gc", "t") == "deleted 0 messages of topic t\n"
    assert invoke(url, "gc", "nothing").exit_code == 3


def test_an_envelope_that_is_nested_too_deep_is_refused(url: str) -> None:
    for deep in ("[" * 100_000, "[" * 300 + "]" * 300):
        for more in ([], ["--json"]):
            result = invoke(url, "publish", "t", "--envelope", f'{{"payload": {deep}}}', *more)
            assert result.exit_code == 1
            assert isinstance(result.exception, SystemExit)
            assert "payload 1: " in result.stderr


def test_lines_of_many_chunks_are_read_whole(url: str, tmp_path: Path) -> None:
    lines = ["a" * (3 * CHUNK_BYTES + 1), "b", "c" * (CHUNK_BYTES - 2), "", "d" * CHUNK_BYTES]
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines))
    answer(url, "publish", "t", "--raw", "--key", "k", "--file", str(file))
    with rowmq.connect(url) as mq:
        assert [message.payload for message in mq.read("t")] == [line for line in lines if line]


def test_a_line_of_megabytes_is_over_the_limit_and_nothing_else(url: str) -> None:
    result = invoke(url, "publish", "t", "--raw", "--file", "-", input="x" * 2**24 + "\n")
    assert result.exit_code == 1
    assert "stdin:1: a payload of 16,777,216 bytes is over the limit" in result.stderr
