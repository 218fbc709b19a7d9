"""The main path of every command, on every database."""

from typing import Any

import pytest

import rowmq
from tests.databases import Database
from tests.unit.cli.running import answer, invoke, json_of


@pytest.fixture
def url(database: Database) -> str:
    return database.url


def test_migrate_makes_the_tables_of_an_empty_database(empty_database: Database) -> None:
    url = empty_database.url
    refused = invoke(url, "topics")
    no_file = empty_database.dialect == "sqlite"
    assert refused.exit_code == (3 if no_file else 1)
    assert ("no file" if no_file else "SchemaMissing: ") in refused.stderr
    assert "CREATE TABLE" in answer(url, "migrate", "--dry-run")
    assert answer(url, "migrate") == "applied 0001 initial\n"
    assert json_of(url, "migrate") == []
    assert json_of(url, "topics") == []


def test_what_sql_drops_leaves_nothing_behind(empty_database: Database) -> None:
    before = everything(empty_database)
    empty_database.execute("CREATE TABLE rowmq_of_another (n integer)")
    answer(empty_database.url, "migrate")
    answer(empty_database.url, "publish", "t", "1")
    answer(empty_database.url, "jobs", "put", "q", "1")
    assert len(everything(empty_database)) > 20
    name = {"postgres": "postgresql"}.get(empty_database.dialect, empty_database.dialect)
    for _ in range(2):  # it can be run again
        for statement in answer(None, "sql", name, "--drop").splitlines():
            empty_database.execute(statement)
    assert everything(empty_database) - before == {"rowmq_of_another"}
    answer(empty_database.url, "migrate")


def everything(database: Database) -> set[str]:
    """The names of what a database holds, but for what it keeps for itself."""
    queries = {
        "sqlite": "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'",
        "postgres": "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace",
        "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
    }
    return {str(row[0]) for row in database.execute(queries[database.dialect])}


def test_messages_are_published_followed_and_looked_at(url: str) -> None:
    answer(url, "publish", "orders", '{"id": 7}', "--key", "k", "--id", "order-7")
    assert (
        json_of(url, "publish", "orders", "x", "--key", "k", "--id", "order-7")["duplicates"] == 1
    )
    given = "\n".join(map(str, range(1_200)))
    assert json_of(url, "publish", "orders", input=given)["published"] == 1_200
    assert answer(url, "tail", "orders", "-n", "2", "--no-follow").split()[-1] == "1199"
    keyed = answer(url, "tail", "orders", "--key", "k", "--from", "earliest", "--no-follow")
    assert '{"id":7}' in keyed
    (topic,) = json_of(url, "topics")
    assert (topic["partitions"], topic["messages"]) == (2, 1_201)
    keys = json_of(url, "topics", "orders")["keys"]
    assert [(key["key"], key["last_offset"]) for key in keys] == [(None, 1_200), ("k", 1)]
    answer(url, "topics", "configure", "orders", "--retention", "7d")
    assert json_of(url, "topics")[0]["retention_seconds"] == 604_800


def test_groups_are_created_moved_collected_and_dropped(url: str) -> None:
    answer(url, "publish", "t", "1", "2", "3", "--key", "k")
    answer(url, "groups", "create", "t", "g")
    assert json_of(url, "groups", "t")[0]["lag"] == 3
    assert json_of(url, "lag", "t", "g")["groups"][0]["lag"] == 3
    preview = json_of(url, "seek", "t", "g", "--to", "3", "--key", "k", "--dry-run")
    assert preview["partitions"][0]["skipped"] == 2
    answer(url, "seek", "t", "g", "--to", "3", "--key", "k", "--yes")
    assert json_of(url, "lag", "t")["groups"][0]["lag"] == 1
    assert json_of(url, "gc")["deleted"] == 2
    shown = json_of(url, "seek", "t", "g", "--to", "2000-01-01T00:00:00Z", "--yes")
    assert [p["next_offset"] for p in shown["partitions"]] == [3]
    answer(url, "groups", "drop", "t", "g", "--yes")
    assert json_of(url, "groups", "t") == []


def test_dead_letters_are_listed_redriven_and_purged(url: str) -> None:
    answer(url, "publish", "t", "1", "2", "3")
    with rowmq.connect(url) as mq, mq.subscribe("t", group="g", discovery_interval=0.05) as sub:
        for delivery in sub.poll(max=3, timeout=10):
            delivery.reject(error="bad")
    letters = json_of(url, "dlq", "t")
    assert [letter["error"] for letter in letters] == ["bad"] * 3
    id = letters[0]["id"]
    assert json_of(url, "dlq", "show", "t", id)[0]["payload"] == 1
    assert json_of(url, "dlq", "redrive", "t", "--id", id)["redriven"] == 1
    assert json_of(url, "dlq", "purge", "t", "--group", "g", "--yes")["purged"] == 2
    assert json_of(url, "dlq", "t") == []


def test_jobs_are_put_listed_retried_dropped_and_pruned(url: str) -> None:
    assert json_of(url, "jobs", "put", "q", "1", "2", "--priority", "2")["put"] == 2
    answer(url, "jobs", "put", "q", "later", "--key", "k", "--delay", "1h")
    with rowmq.connect(url) as mq:
        done, failed = mq.queue("q").try_poll_many(2)
        done.ack()
        failed.reject(error="bad")
    (queue,) = json_of(url, "queues")
    assert queue["counts"] == {
        "pending": 1, "processing": 0, "retryable": 0, "completed": 1, "failed": 1
    }  # fmt: skip
    states = {job["id"]: job["state"] for job in json_of(url, "jobs", "q", "--state", "all")}
    assert (states[done.id], states[failed.id]) == ("completed", "failed")
    assert json_of(url, "jobs", "show", "q", str(done.id))["state"] == "completed"
    assert json_of(url, "jobs", "retry", "q", "--all")["retried"] == 1
    assert json_of(url, "jobs", "show", "q", str(failed.id))["state"] == "pending"
    assert json_of(url, "jobs", "drop", "q", "k", "--yes")["dropped"]
    pruned = json_of(url, "jobs", "prune", "q", "--older-than", "0s", "--yes")
    assert pruned["pruned"] == 1
    answer(url, "queues", "pause", "q")
    answer(url, "queues", "configure", "q", "--max-in-flight", "3")
    told = json_of(url, "queues", "q")
    assert (told["paused"], told["max_in_flight"]) == (True, 3)
    answer(url, "queues", "resume", "q")


def test_schedules_and_workers_are_listed(url: str) -> None:
    with rowmq.connect(url) as mq:
        mq.cron.install("s", "0 2 * * *", payload=1, queue="q", tz="UTC", tend=False)
    assert json_of(url, "schedules")[0]["expression"] == "0 2 * * *"
    assert len(json_of(url, "schedules", "next", "s", "--count", "3")["next"]) == 3
    answer(url, "schedules", "run", "s")
    assert json_of(url, "queues", "q")["counts"]["pending"] == 1
    answer(url, "schedules", "pause", "s")
    answer(url, "schedules", "resume", "s")
    answer(url, "schedules", "rm", "s", "--yes")
    assert json_of(url, "schedules") == []
    assert json_of(url, "workers") == []


def test_tables_can_have_another_prefix(empty_database: Database) -> None:
    url, prefix = empty_database.url, ["--prefix", "other_"]
    answer(url, "migrate", *prefix)
    answer(url, "publish", "t", "1", *prefix)
    assert json_of(url, "topics", *prefix)[0]["messages"] == 1
    found: Any = empty_database.execute("SELECT COUNT(*) FROM other_messages")
    assert found[0][0] == 1
