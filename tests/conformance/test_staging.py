"""What Spark's tasks stage is published at once, once, in order and without gaps; or not at all."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

import rowmq
from rowmq import Message, RowMQ, errors
from rowmq.store import staged_jobs as staged_jobs_module
from rowmq.store.keys import SHARD_KEYS
from rowmq.store.staged_jobs import CONFLICTS
from rowmq.store.staging import Part, Stage, StagedRow, Staging, Version
from tests.choices import on_servers
from tests.consuming import statements
from tests.databases import Database

STRANGE = 'it\'s 100% "quoted" \\ 🐘 Ünï'


@pytest.fixture
def client(database: Database) -> Iterator[RowMQ]:
    with rowmq.connect(database.url) as mq:
        yield mq


def staging(mq: RowMQ) -> Staging:
    return mq._store.staging


def stage(mq: RowMQ, messages: Iterable[Message[str]], topic: str = "t") -> Stage:
    """What a task does: some messages in a stage of their own."""
    messages = list(messages)
    numbers: dict[str, int] = {}
    counts: dict[int, int] = {}
    rows = []
    for number, message in enumerate(messages):
        part = numbers.setdefault(message.key or SHARD_KEYS[0], len(numbers))
        nth = counts[part] = counts.get(part, -1) + 1
        rows.append(StagedRow(number, part, nth, 1, message.payload.encode(), message.id))
    return staged(mq, rows, [(topic, key, 0) for key in numbers])


def staged_jobs(mq: RowMQ, rows: Sequence[dict[str, Any]], queue: str = "q") -> Stage:
    """What a task does: some jobs in a stage of their own."""
    lanes: dict[tuple[str, str, int], int] = {}
    made = []
    for number, row in enumerate(rows):
        lane = (queue, row.get("kind", ""), -row.get("priority", 0))
        part = lanes.setdefault(lane, len(lanes))
        given = {name: row[name] for name in ("name", "ordering_key", "due_at") if name in row}
        made.append(StagedRow(number, part, number, 1, row["value"].encode(), **given))
    plain = not any("name" in row or "ordering_key" in row for row in rows)
    return staged(mq, made, list(lanes))._replace(plain=plain)


def staged(mq: RowMQ, rows: Sequence[StagedRow], parts: Sequence[tuple[str, str, int]]) -> Stage:
    id = mq._run(partial(staging(mq).open, uuid.uuid4().hex))
    mq._run(partial(staging(mq).fill, id, rows))
    counted = [
        Part(
            number,
            *part,
            sum(row.part == number for row in rows),
            max(len(row.payload) for row in rows if row.part == number),
        )
        for number, part in enumerate(parts)
    ]
    mq._run(partial(staging(mq).complete, id, counted))
    return Stage(id, len(rows))


def publish(mq: RowMQ, *stages: Stage, version: Version | None = None) -> bool:
    return mq._run(partial(staging(mq).publish, stages, version, notify=True))


def put(mq: RowMQ, *stages: Stage, version: Version | None = None, conflict: str = "error") -> bool:
    put = mq._store.staged_jobs.put
    return mq._run(partial(put, "q", stages, version, conflict=conflict, notify=True))


def log_of(mq: RowMQ, topic: str = "t") -> list[tuple[str | None, int, str]]:
    return [(m.key, m.offset, m.payload) for m in mq.read(topic, limit=10_000)]


def texts(*payloads: str, key: str | None = None) -> list[Message[str]]:
    return [Message(payload=payload, key=key) for payload in payloads]


# --- topics ---------------------------------------------------------------------------------------


def test_stages_are_published_in_their_order_after_what_is_there(client: RowMQ) -> None:
    client.publish("t", "before", key="a")
    later = stage(client, [*texts("a3", key="a"), *texts("-2"), *texts("a4", key="a")])
    first = stage(client, [*texts("a2", key="a"), *texts("b1", key="b"), *texts("-1")])
    assert log_of(client) == [("a", 1, "before")]
    assert publish(client, first, later)
    assert log_of(client) == [
        (None, 1, "-1"),
        (None, 2, "-2"),
        ("a", 1, "before"),
        ("a", 2, "a2"),
        ("a", 3, "a3"),
        ("a", 4, "a4"),
        ("b", 1, "b1"),
    ]
    assert client.publish("t", "after", key="a").offset == 5


def test_what_is_published_is_as_if_by_publish(client: RowMQ, database: Database) -> None:
    stages = [stage(client, texts(STRANGE, "x" * 3000, key=STRANGE), STRANGE)]
    with client.subscribe(STRANGE, group="g") as sub:
        publish(client, *stages)
        found = [d.message for d in sub.poll(max=10, timeout=10)]
    assert [(m.payload, m.key) for m in found] == [(STRANGE, STRANGE), ("x" * 3000, STRANGE)]
    assert len({m.id for m in found}) == 2
    sql = "SELECT largest_bytes, next_offset FROM rowmq_partitions"
    assert database.execute(sql) == [(3000, 3)]
    client.publish("clock", 1)
    (clock,) = client.read("clock")
    assert clock.published_at is not None
    (time,) = {message.published_at for message in found}
    assert time is not None
    assert time <= clock.published_at


def test_ids_that_are_there_or_come_again_are_left_out(client: RowMQ) -> None:
    client.publish("t", "old", key="k", id="1")
    first = [
        Message(payload="again", key="k", id="1"),
        Message(payload="two", key="k", id="2"),
        Message(payload="other key", key="l", id="1"),
        Message(payload="none", key="k"),
    ]
    second = [
        Message(payload="two again", key="k", id="2"),
        Message(payload="none either", key="k"),
        Message(payload="three", key="k", id="3"),
    ]
    publish(client, stage(client, first), stage(client, second))
    assert log_of(client) == [
        ("k", 1, "old"),
        ("k", 2, "two"),
        ("k", 3, "none"),
        ("k", 4, "none either"),
        ("k", 5, "three"),
        ("l", 1, "other key"),
    ]
    publish(client, stage(client, second[::2]))  # nothing of it is new
    assert client.publish("t", "next", key="k").offset == 6


def test_a_version_is_published_once(client: RowMQ) -> None:
    one = Version("app:a", "t", 1)
    assert publish(client, stage(client, texts("1")), version=one)
    assert not publish(client, stage(client, texts("1 again")), version=one)
    assert not publish(client, stage(client, texts("0 late")), version=one._replace(number=0))
    assert publish(client, stage(client, texts("other")), version=one._replace(writer="app:b"))
    assert publish(client, stage(client, texts("there"), "u"), version=one._replace(target="u"))
    assert publish(client, stage(client, texts("7")), version=one._replace(number=7))
    assert [payload for _, _, payload in log_of(client)] == ["1", "other", "7"]


def test_two_writers_of_one_version_publish_once(client: RowMQ) -> None:
    versions = [Version(STRANGE, STRANGE, number) for number in range(5) for _ in range(2)]
    stages = [stage(client, texts(str(version.number))) for version in versions]

    def race(pair: int) -> list[bool]:
        with ThreadPoolExecutor(2) as pool:
            return list(
                pool.map(
                    lambda n: publish(client, stages[n], version=versions[n]),
                    (2 * pair, 2 * pair + 1),
                )
            )

    assert [sorted(race(pair)) for pair in range(5)] == [[False, True]] * 5
    assert [payload for _, _, payload in log_of(client)] == ["0", "1", "2", "3", "4"]


def test_a_commit_whose_answer_was_lost_is_known_again(client: RowMQ) -> None:
    stages = [stage(client, texts("1")), stage(client, texts("2"))]
    assert publish(client, *stages)
    assert not publish(client, *stages)
    assert len(log_of(client)) == 2


def test_rows_that_are_gone_are_noticed_and_nothing_is_published(
    client: RowMQ, database: Database
) -> None:
    version = Version("w", "t", 1)
    stages = [stage(client, texts("1", "2")), stage(client, texts("3", key="k"))]
    for loss in (
        f"DELETE FROM rowmq_staged WHERE stage_id = {stages[0].id} AND number = 1",
        f"DELETE FROM rowmq_stage_parts WHERE stage_id = {stages[1].id}",
        f"DELETE FROM rowmq_stages WHERE id = {stages[1].id}",
    ):
        database.execute(loss)
        with pytest.raises(errors.StageLost, match="run the write again"):
            publish(client, *stages, version=version)
    assert client.topics() == []
    assert publish(client, stage(client, texts("1")), version=version)


def test_a_payload_over_the_limit_is_refused_with_all_others(client: RowMQ) -> None:
    client.configure_topic("small", max_payload_bytes=10)
    stages = [stage(client, texts("fine", "x" * 11), "small"), stage(client, texts("y"))]
    with pytest.raises(errors.PayloadTooLarge, match="'small', 10 bytes"):
        publish(client, *stages)
    assert log_of(client, "small") == log_of(client) == []
    with pytest.raises(errors.PayloadTooLarge, match="1,048,576 bytes"):
        publish(client, stage(client, texts("x" * (1024 * 1024 + 1))))


def test_staged_rows_and_publishers_go_to_the_same_keys_without_a_gap(client: RowMQ) -> None:
    keys = [f"k{n}" for n in range(6)]

    def publisher(number: int) -> None:
        order = keys if number else keys[::-1]
        for _ in range(5):
            if number < 2:
                publish(client, stage(client, [m for key in order for m in texts("s", key=key)]))
            else:
                client.publish_many("t", [m for key in order for m in texts("p", key=key)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publisher, range(4)))
    offsets: dict[str | None, list[int]] = {}
    for key, offset, _ in log_of(client):
        offsets.setdefault(key, []).append(offset)
    assert offsets == {key: list(range(1, 21)) for key in keys}


def test_statements_do_not_grow_with_the_rows(client: RowMQ) -> None:
    def names(count: int) -> list[str]:
        messages = [m for n in range(count) for m in texts("x", key=f"{count} {n}")]
        done = stage(client, messages)
        with statements(client) as seen:
            publish(client, done, version=Version("w", "t", count))
        return [statement.name for statement in seen]

    assert names(3) == names(700)


# --- sweeping -------------------------------------------------------------------------------------


def test_an_old_stage_is_condemned_and_cannot_be_published(
    client: RowMQ, database: Database
) -> None:
    old, new = stage(client, texts("1", "2")), stage(client, texts("3"))
    database.execute(f"UPDATE rowmq_stages SET created_at = 0 WHERE id = {old.id}")
    condemn = partial(staging(client).condemn, 3_600_000_000)
    assert client._run(condemn) == [(old.id, 1)]
    with pytest.raises(errors.StageLost, match="swept"):
        publish(client, new, old)
    for late in (
        partial(staging(client).fill, old.id, [StagedRow(9, 0, 9, 1, b"late")]),
        partial(staging(client).complete, old.id, []),
    ):
        with pytest.raises(errors.StageLost):
            client._run(late)
    client._run(partial(staging(client).clear, old.id, 0, 1))
    client._run(partial(staging(client).forget, old.id))
    assert client._run(condemn) == []
    for table, column in (("staged", "stage_id"), ("stage_parts", "stage_id"), ("stages", "id")):
        assert database.execute(f"SELECT {column} FROM rowmq_{table}") == [(new.id,)]
    assert publish(client, new)


@on_servers
def test_a_stage_that_is_being_published_is_not_condemned(
    client: RowMQ, database: Database
) -> None:
    old = stage(client, texts("1"))
    database.execute("UPDATE rowmq_stages SET created_at = 0")
    with client.transaction() as tx:
        client._run(partial(staging(client).publish, [old], None, notify=False), tx)
        assert client._run(partial(staging(client).condemn, 1)) == []
    assert len(log_of(client)) == 1


# --- queues ---------------------------------------------------------------------------------------


def test_staged_jobs_are_claimed_in_their_order(client: RowMQ) -> None:
    second = staged_jobs(client, [{"value": f"b{n}"} for n in range(3)])
    rows: list[dict[str, Any]] = [{"value": f"a{n}"} for n in range(1500)]
    rows[700] = {"value": "first", "priority": 5}
    rows[701] = {"value": "later", "due_at": 2**52}
    first = staged_jobs(client, rows)
    assert put(client, first, second, version=Version("w", "q", 1))
    assert not put(client, first, second, version=Version("w", "q", 1))
    jobs = client.queue("q").try_poll_many(2000)
    wanted = [f"a{n}" for n in range(1500) if n not in (700, 701)]
    assert [job.payload for job in jobs] == ["first", *wanted, "b0", "b1", "b2"]
    assert client.queue("q").counts()["pending"] == 1


def test_kinds_of_staged_jobs_are_their_own(client: RowMQ) -> None:
    put(client, staged_jobs(client, [{"value": "1", "kind": STRANGE}, {"value": "2"}]))
    assert {job.payload: job.kind for job in client.queue("q").live()} == {"1": STRANGE, "2": ""}


def test_staged_jobs_of_one_line_wait_for_each_other(client: RowMQ) -> None:
    later = staged_jobs(client, [{"value": "3", "ordering_key": "o"}])
    first = staged_jobs(client, [{"value": str(n), "ordering_key": "o"} for n in (1, 2)])
    put(client, first, later)
    assert line_of(client) == ["1", "2", "3"]


def line_of(mq: RowMQ) -> list[str]:
    """Do the jobs of a line, one after the other."""
    done = []
    while job := mq.queue("q").try_poll():
        assert mq.queue("q").try_poll() is None
        done.append(job.payload)
        job.ack()
    return done


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_line_has_the_order_of_the_staged_rows_with_and_without_keys(
    client: RowMQ, conflict: str
) -> None:
    rows = [{"value": str(n), "ordering_key": "o"} for n in range(8)]
    for number in (0, 2, 5, 6):
        rows[number]["name"] = f"k{number}"
    put(client, staged_jobs(client, rows[:3]), staged_jobs(client, rows[3:]), conflict=conflict)
    assert line_of(client) == [str(n) for n in range(8)]


@pytest.mark.parametrize("run_rows", [2, 5_000])
def test_a_staged_update_has_its_own_place_in_the_line_of_the_first(
    client: RowMQ, monkeypatch: pytest.MonkeyPatch, run_rows: int
) -> None:
    monkeypatch.setattr(staged_jobs_module, "RUN_ROWS", run_rows)
    rows = [
        {"value": "a", "name": "a", "ordering_key": "o"},
        {"value": "b", "name": "b", "ordering_key": "o"},
        {"value": "-", "ordering_key": "o"},
        {"value": "a changed", "name": "a", "ordering_key": "p"},
        {"value": "b", "name": "b", "ordering_key": "o"},
    ]
    put(client, staged_jobs(client, rows), conflict="update")
    assert line_of(client) == ["b", "-", "a changed"]


@pytest.mark.parametrize(
    ("conflict", "wanted"), [("ignore", ["new", "old"]), ("update", ["again", "changed"])]
)
def test_keys_of_staged_jobs_that_are_taken(
    client: RowMQ, conflict: str, wanted: list[str]
) -> None:
    client.queue("q").put("old", key="k")
    rows = [
        {"value": "changed", "name": "k"},
        {"value": "new", "name": "l"},
        {"value": "plain"},
        {"value": "again", "name": "l"},
    ]
    put(client, staged_jobs(client, rows), conflict=conflict)
    assert sorted(job.payload for job in client.queue("q").live()) == sorted([*wanted, "plain"])


def test_a_taken_key_is_an_error_and_nothing_is_put(client: RowMQ) -> None:
    client.queue("q").put("old", key="k")
    taken = [{"value": "fine"}, {"value": "mine", "name": "k"}]
    twice = [{"value": "1", "name": "l"}, {"value": "2", "name": "l"}]
    for rows in (taken, twice):
        with pytest.raises(errors.KeyTaken):
            put(client, staged_jobs(client, [{"value": "0"}]), staged_jobs(client, rows))
    assert [job.payload for job in client.queue("q").live()] == ["old"]


def test_a_job_over_its_queue_s_limit_is_refused_with_all_others(client: RowMQ) -> None:
    client.queue("q").configure(max_payload_bytes=10)
    with pytest.raises(errors.PayloadTooLarge, match="'q', 10 bytes"):
        put(client, staged_jobs(client, [{"value": "fine"}, {"value": "x" * 11}]))
    assert client.queue("q").live() == []
