"""The benchmark measures what it says: its fillings are true, and its runs leave nothing behind."""

import sys
from contextlib import closing

import msgspec

import rowmq
from rowmq.bench import filling
from rowmq.bench.home import open_home
from rowmq.bench.link import open_link
from rowmq.bench.playing import Spec
from rowmq.bench.results import Line
from rowmq.bench.running import run_scenario
from rowmq.bench.scenarios.growth import snapshot
from rowmq.bench.scenarios.plan import Plan, Scenario, handles
from tests.databases import Database, Databases

COMMANDS = {
    name: [sys.executable, "-m", f"rowmq.bench.{module}"]
    for name, module in {"rowmq": "player", "raw": "raw", "plain": "plain"}.items()
}


def run(url: str, scenario: Scenario) -> list[Line]:
    """What is measured, in a database that is there meanwhile."""
    with open_home(url) as home:
        name = home.link.url.rpartition("/")[2]
        assert home.database == "sqlite" or name in names_of_databases(url)
        lines = run_scenario(home, scenario, COMMANDS, repeat=1, tell=lambda *_: None)
    assert home.database == "sqlite" or name not in names_of_databases(url)
    return lines


def names_of_databases(url: str) -> set[str]:
    with closing(open_link(url)) as link:
        return {name for (name,) in link.execute("SELECT datname FROM pg_database")}


def test_jobs_that_are_filled_in_wait_like_those_that_were_put(empty_database: Database) -> None:
    spec = Spec(task="fill", url=empty_database.url, messages=1_000, backlog=1_300, archived=1_100)
    with closing(open_link(empty_database.url)) as link:
        filling.prepare(link)
        filling.fill(link, spec)
    with rowmq.connect(empty_database.url) as mq:
        queue = mq.queue("bench")
        counts = queue.counts()
        assert (counts["pending"], counts["completed"]) == (2_300, 1_100)
        seen: set[int] = set()
        while jobs := queue.try_poll_many(1_000):
            assert {job.payload for job in jobs} == {b"x" * 200}
            seen |= {job.id for job in jobs}
            queue.ack(jobs)
        assert len(seen) == 2_300
    assert filling.left(spec) == 0


def test_messages_that_are_filled_in_follow_each_other(empty_database: Database) -> None:
    spec = Spec(
        task="fill",
        url=empty_database.url,
        source="topic",
        messages=2_700,
        partitions=3,
        groups=2,
        gather=True,
    )
    with closing(open_link(empty_database.url)) as link:
        filling.prepare(link)
        filling.fill(link, spec)
        assert filling.left(spec) == 0  # those who gather see nothing yet
        filling.release(link, spec)
    assert filling.left(spec) == 5_400
    with rowmq.connect(empty_database.url) as mq:
        offsets = [message.offset for message in mq.read("bench", key="key-1", limit=2_000)]
        assert offsets == list(range(1, 901))
        assert mq.publish("bench", b"", key="key-1").offset == 901


def test_a_trial_on_a_server_counts_what_two_processes_did_and_what_it_cost(
    databases: Databases,
) -> None:
    claims = handles(
        "rowmq",
        "two",
        messages=1_000,
        processes=2,
        batch=100,
        gather=True,
        reference=True,
    )
    scenario = Scenario(name="queues-two", title="", entries=(claims,))
    (line,) = run(databases.get("postgres").url, scenario)
    assert line.error is None
    assert line.figures["rate"].median > 0
    # A ready row and a row of the archive, and a lock for each batch; the log has all of them.
    assert 2 <= line.figures["rows_written"].median < 4
    assert line.figures["log_bytes"].median > 50
    assert line.figures["statements"].median < 1


def test_a_snapshot_is_held_while_ours_and_a_plain_queue_are_measured(
    databases: Databases,
) -> None:
    whole = snapshot(Plan(database="postgresql", seconds=0.6))
    held = [entry for entry in whole.entries if entry.variant == "a snapshot held"]
    scenario = msgspec.structs.replace(whole, entries=tuple(held))
    lines = run(databases.get("postgres").url, scenario)
    assert [line.subject for line in lines] == ["rowmq", "plain"]
    for line in lines:
        assert line.error is None
        assert len(line.windows) == 3
        assert line.figures["rate"].median > 0


def test_jobs_that_get_lost_are_told_and_not_measured(databases: Databases) -> None:
    """Here ten are missing from the beginning."""
    whole = handles("rowmq", "", messages=100, batch=100, idle=1.0, reference=True)
    assert whole.fill is not None
    lacking = msgspec.structs.replace(whole, fill=msgspec.structs.replace(whole.fill, messages=90))
    scenario = Scenario(name="queues-one", title="", entries=(lacking,))
    (line,) = run(databases.get("sqlite").url, scenario)
    assert line.figures == {}
    assert line.error == "rowmq handled 90 instead of 100"
