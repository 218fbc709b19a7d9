"""Every hot statement, explained on large tables: an index that is lost fails here.

The statements are not copied: they are watched while real calls run, and then explained with the
parameters they had.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

import rowmq
from rowmq import Message, store
from rowmq.store.staging import Part, Stage, StagedRow, Version
from rowmq.store.statement import Statement
from tests.databases import Database, Databases, MySQLDatabase
from tests.plans import reads_of, scans_of

HUGE = 100_000
PARTITIONS = 2_000
EACH = 20
WIDE = 20_000
NARROW = 50

SERIES = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) ",
    "postgres": "WITH s(n) AS (SELECT generate_series(1, {count})) ",
    "mysql": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) ",
}


@pytest.fixture(scope="module")
def large(databases: Databases) -> Callable[[str], Database]:
    """Databases with more than 100,000 messages, and groups with 20,000 partitions, made once."""
    made: dict[str, Database] = {}

    def get(name: str) -> Database:
        if name not in made:
            made[name] = databases.get(name).create()
            databases.stack.callback(made[name].drop)
            fill(made[name])
            fill_groups(made[name])
        return made[name]

    return get


def fill(database: Database) -> None:
    """One huge partition, and many small ones."""
    with rowmq.connect(database.url) as mq:
        mq.migrate()
        mq.publish_many("big", [Message(payload=0, key="huge", id="first")])
        batch = [
            Message(payload=n, key=f"k{n % PARTITIONS}", id=str(n))
            for n in range(PARTITIONS * EACH)
        ]
        mq.publish_many("big", batch)
    series = SERIES[database.dialect].format(count=HUGE)
    id = {"mysql": "CONCAT('x', n)"}.get(database.dialect, "'x' || n")
    select = (
        f"SELECT p.id, n + 1, p.id, 2, {id}, '1' FROM s, rowmq_partitions p "
        "WHERE p.partition_key = 'huge'"
    )
    columns = "(partition_id, message_offset, published_at, encoding, message_id, payload)"
    insert = f"INSERT INTO rowmq_messages {columns} "
    topic = {"mysql": "CONCAT('t', n)"}.get(database.dialect, "'t' || n")
    topics = "INSERT INTO rowmq_topics (topic, created_at) "
    topics_select = f"SELECT {topic}, 0 FROM s WHERE n <= 3000"
    others = "INSERT INTO rowmq_partitions (topic, partition_key, next_offset) "
    others_select = f"SELECT 'other', {topic}, 9 FROM s WHERE n <= 20000"
    if isinstance(database, MySQLDatabase):
        variables = {"mysql": "cte_max_recursion_depth", "mariadb": "max_recursive_iterations"}
        with (
            pymysql.connect(**database.options(), autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SET SESSION {variables[database.name]} = 1000000")
            cursor.execute(insert + series + select)
            cursor.execute(topics + series + topics_select)
            cursor.execute(others + series + others_select)
    else:
        cast = "::bytea" if database.dialect == "postgres" else ""
        select = select.replace("'1'", f"'1'{cast}")
        database.execute(series + insert + select)
        database.execute(series + topics + topics_select)
        database.execute(series + others + others_select)
    database.analyze()
    database.execute(
        f"UPDATE rowmq_partitions SET next_offset = {HUGE + 2} WHERE partition_key = 'huge'"
    )


def fill_groups(database: Database) -> None:
    """A topic of 20,000 partitions and three groups, a narrow one, and thousands of others."""
    with rowmq.connect(database.url) as mq:
        live = [Message(payload=n, key=f"live{n % 100}") for n in range(800)]
        mq.publish_many("other", live)
        few = [Message(payload=n, key=f"k{n % NARROW}") for n in range(NARROW * 8)]
        mq.publish_many("narrow", few)
        for topic, group in [("other", "g1"), ("other", "g2"), ("other", "g3"), ("narrow", "g1")]:
            mq.create_group(topic, group)
    own = "(SELECT id FROM rowmq_groups WHERE topic = 'other' AND consumer_group = 'g1')"
    for key in ("a", "b"):
        database.execute(
            "INSERT INTO rowmq_partitions (topic, partition_key, next_offset) "
            f"SELECT topic, '{key}', 3 FROM rowmq_topics WHERE created_at = 0"
        )
    database.execute(
        "INSERT INTO rowmq_groups (topic, consumer_group, start_at, created_at) "
        "SELECT topic, 'g', 'earliest', 0 FROM rowmq_topics WHERE created_at = 0"
    )
    subscribers = (
        "INSERT INTO rowmq_subscribers (group_id, heartbeat_at, expires_at, subscriber_name) "
    )
    far = 4_000_000_000_000_000
    database.execute(
        f"{subscribers} SELECT {own}, 0, {far}, 'w' FROM rowmq_topics WHERE created_at = 0 "
        "LIMIT 1000"
    )
    database.execute(
        f"{subscribers} SELECT id, 0, {far}, 'w' FROM rowmq_groups WHERE created_at = 0"
    )
    (first,) = database.execute(f"SELECT MIN(id) FROM rowmq_subscribers WHERE group_id = {own}")[0]
    database.execute(
        "INSERT INTO rowmq_offsets (group_id, partition_id, offset_acked, offset_delivered, "
        "tail_first, tail_until, epoch, version, tail_attempts, touched, leased_by) "
        "SELECT g.id, p.id, 0, 0, 1, 0, 0, 0, 0, 0, CASE WHEN g.topic = 'other' AND "
        f"g.consumer_group = 'g1' AND p.next_offset = 9 AND p.largest_bytes = 0 "
        f"THEN {first} + p.id - 1000 * FLOOR(p.id / 1000) ELSE 0 END "
        "FROM rowmq_groups g JOIN rowmq_partitions p ON p.topic = g.topic"
    )
    for offset in (2, 4):
        database.execute(
            "INSERT INTO rowmq_delivery_state (group_id, partition_id, first_offset, last_offset, "
            "invisible_until, attempts, state) "
            f"SELECT o.group_id, o.partition_id, {offset}, {offset}, 0, 1, 3 FROM rowmq_offsets o "
            "JOIN rowmq_groups g ON g.id = o.group_id WHERE o.leased_by > 0 OR g.created_at = 0"
        )
    numbers = "(SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4)"
    database.execute(
        "INSERT INTO rowmq_dead_letters (partition_id, message_offset, origin_partition_id, "
        "origin_offset, failed_at, attempts, origin_topic, consumer_group, origin_id) "
        "SELECT p.id, v.n, p.id, v.n, v.n, 3, p.topic, 'g', 'x' "
        f"FROM rowmq_partitions p, {numbers} v WHERE p.next_offset = 3"
    )
    database.analyze()


def hot_calls(mq: rowmq.RowMQ) -> None:
    """Every call of the hot paths, in the sizes that differ."""
    mq.publish("big", 1, key="huge")
    mq.publish("big", 1, key="huge", id="x77")
    mq.publish("big", 1, key="brand new", id="new")
    mq.publish("big", 1)
    spread = [Message(payload=n, key=f"k{n}", id=f"fresh-{n}") for n in range(120)]
    mq.publish_many("big", spread)
    mq.publish_many("big", spread)
    with mq.transaction() as tx:
        tx.publish("big", 1, key="huge", id="in a transaction")
        tx.publish("big", 1, key="huge", id="in a transaction")
    mq.read("big", key="huge", from_offset=HUGE // 2, limit=100)
    mq.read("big", from_offset=2, limit=100)
    mq.read("big", since=datetime.now(UTC) - timedelta(seconds=1), limit=100)


def watched(database: Database) -> list[Statement]:
    """One statement of each text that the hot calls run."""
    seen: dict[str, Statement] = {}
    with rowmq.connect(database.url) as mq:
        mq._driver.observers.append(lambda statement: seen.update({statement.sql: statement}))
        hot_calls(mq)
    return [s for s in seen.values() if s.name.startswith("topics.")]


def test_hot_statements_use_indexes_only(
    large: Callable[[str], Database], database: Database
) -> None:
    subject = large(database.name)
    count = subject.execute("SELECT COUNT(*) FROM rowmq_messages")[0][0]
    assert count >= 100_000
    statements = watched(subject)
    assert len({statement.name for statement in statements}) >= 5
    scans = scans_of(subject, statements)
    assert scans == []


# --- groups, leases, dead letters and garbage collection ----------------------------------------

ALL_OF_A_TOPIC = {
    "groups.lag",
    "groups.most_lag",
    "groups.partitions",
    "groups.start_at_latest",
    "leases.adopt",
    "leases.list_free",
    "leases.survey",
    "letters.count",
    "letters.list",
    "retention.acked",
    "retention.given_back",
    "retention.old",
}
"""What looks at all partitions of a topic, all places of a group, or all letters, by design."""

ALL_OF_A_GROUP = {"groups.drop_delivery_state", "groups.drop_offsets", "groups.drop_subscribers"}
"""What deletes all rows of a group."""

READ_MAX = 40 * NARROW
"""How many rows a statement about the narrow topic may read, far from what any table holds."""


def consume(mq: rowmq.RowMQ, database: Database, topic: str, count: int) -> None:
    """Every call of a subscriber, and every way to settle."""
    mq.publish(topic, 1, key="of one who is dead")
    group = f"SELECT id FROM rowmq_groups WHERE topic = '{topic}' AND consumer_group = 'g1'"
    dead = f"SELECT MIN(id) FROM rowmq_subscribers WHERE group_id = ({group})"
    with (
        mq.subscribe(topic, group="g1", discovery_interval=60),
        mq.subscribe(topic, group="g1", discovery_interval=0.02, idle_timeout=0) as sub,
    ):
        database.execute(
            f"UPDATE rowmq_subscribers SET expires_at = 1 WHERE id = {database.execute(dead)[0][0]}"
        )
        deliveries: list[Any] = []
        while len(deliveries) < count:
            deliveries += sub.poll(max=count - len(deliveries), timeout=5)
        by_key: dict[str, list[Any]] = {}
        for delivery in deliveries:
            by_key.setdefault(delivery.message.key, []).append(delivery)
        (first, second, third), *others = (each[:3] for each in by_key.values() if len(each) > 2)
        second.ack()
        third.nack(delay=60, error="later")
        first.reject(error="no")
        with mq.transaction() as tx:
            others[0][1].ack(connection=tx)
            others[0][0].extend(60, connection=tx)
        sub.poll(timeout=0.05)
        sub.ack([d for rest in others[1:] for d in rest])
        core: Any = sub._core
        mq._run(partial(core.leases.beat, core.member, lease_us=core.options.lease_us))
        mq._run(partial(core.leases.awaited, core.member))


def administer(mq: rowmq.RowMQ, topic: str, key: str) -> None:
    """Every call of an operator that is not about a whole topic."""
    mq.redrive(topic, group="g1", ids=["no such id"])
    mq.redrive(topic, letters=mq.dead_letters(topic, limit=1), limit=1)
    mq.redrive(topic, group="g1")
    mq.seek(topic, "g1", to={key: 3})
    mq.seek(topic, "g1", to="earliest", key=key)
    mq.seek(topic, "g1", to=datetime.now(UTC), key=key)
    mq.gc(topic)


def exhaust(mq: rowmq.RowMQ) -> None:
    """All of the narrow topic: acked, given up, collected, given back, too old, dropped."""
    mq.groups("narrow")
    mq.group("narrow", "g1")
    mq.lag("narrow", "g1")
    mq.lag("narrow", "g1", limit=5)
    mq.create_group("narrow", "late", start="latest")
    mq.drop_group("narrow", "late")
    with mq.subscribe("narrow", group="g1", discovery_interval=0.02) as sub:
        deliveries: list[Any] = []
        mq.seek("narrow", "g1", to="earliest")
        while batch := sub.poll(max=1000, timeout=0.3):
            deliveries += batch
        sub.ack(deliveries[2:])
        for delivery in deliveries[:2]:
            delivery.reject(error="no")
    mq.gc("narrow")
    mq.redrive("narrow", group="g1")
    mq.create_group("narrow", "abandoned")
    mq.publish_many("narrow", [Message(payload=n, key=f"k{n}") for n in range(NARROW)])
    mq.configure_topic("narrow", retention=timedelta(milliseconds=1))
    with mq.subscribe("narrow", group="g1", discovery_interval=0.02) as sub:
        sub.poll(max=5, timeout=5)[0].reject(error="no")
        mq.gc("narrow")
        sub.poll(max=5, timeout=0.1)
    mq.purge_dead_letters("narrow")


OF_GROUPS = ("leases.", "groups.", "letters.", "retention.")


@contextmanager
def watching(mq: rowmq.RowMQ) -> Iterator[dict[str, Statement]]:
    """One statement of each text that is run meanwhile."""
    seen: dict[str, Statement] = {}

    def see(statement: Statement) -> None:
        if statement.name.startswith(OF_GROUPS):
            seen.setdefault(statement.sql, statement)

    mq._driver.observers.append(see)
    yield seen
    mq._driver.observers.remove(see)


@pytest.fixture(scope="module")
def of_groups(large: Callable[[str], Database]) -> Callable[[str], dict[str, list[Statement]]]:
    """Statements of the wide topic and of the narrow one, watched once for each database."""
    known: dict[str, dict[str, list[Statement]]] = {}

    def get(name: str) -> dict[str, list[Statement]]:
        if name not in known:
            subject = large(name)
            with rowmq.connect(subject.url) as mq:
                with watching(mq) as wide:
                    consume(mq, subject, "other", 60)
                    administer(mq, "other", "live7")
                with watching(mq) as narrow:
                    consume(mq, subject, "narrow", 160)
                    administer(mq, "narrow", "k7")
                    exhaust(mq)
            known[name] = {"wide": [*wide.values()], "narrow": [*narrow.values()]}
        return known[name]

    return get


def test_every_statement_of_groups_is_explained(
    of_groups: Callable[[str], dict[str, list[Statement]]], database: Database
) -> None:
    """Whoever adds a statement has it run by the calls above, too."""
    folder = Path(store.__path__[0])
    others = {"sqlite", "postgres", "mysql"} - {database.dialect}
    text = "".join(path.read_text() for path in folder.glob("*.py") if path.stem not in others)
    named = set(re.findall(r'"((?:leases|groups|letters|retention)\.[a-z_]+)"', text))
    seen = {s.name for statements in of_groups(database.name).values() for s in statements}
    assert named - seen == set()
    assert seen >= ALL_OF_A_TOPIC | ALL_OF_A_GROUP


def test_statements_of_groups_use_indexes_only(
    large: Callable[[str], Database],
    of_groups: Callable[[str], dict[str, list[Statement]]],
    database: Database,
) -> None:
    subject = large(database.name)
    found = of_groups(database.name)
    for table, least in (("partitions", WIDE), ("offsets", 3 * WIDE), ("delivery_state", 2 * WIDE)):
        assert subject.execute(f"SELECT COUNT(*) FROM rowmq_{table}")[0][0] >= least
    every = [*found["wide"], *found["narrow"]]
    statements = [s for s in every if s.name not in ALL_OF_A_TOPIC | ALL_OF_A_GROUP]
    assert len({s.name for s in statements}) >= 25
    assert scans_of(subject, statements) == []


def test_statements_about_a_topic_read_that_topic_only(
    large: Callable[[str], Database],
    of_groups: Callable[[str], dict[str, list[Statement]]],
    database: Database,
) -> None:
    subject = large(database.name)
    statements = [
        s for s in of_groups(database.name)["narrow"] if s.name in ALL_OF_A_TOPIC | ALL_OF_A_GROUP
    ]
    reads = reads_of(subject, statements)
    most = READ_MAX * (2 if database.dialect == "sqlite" else 1)  # which tells its steps, not rows
    assert {what: rows for what, rows in reads.items() if rows > most} == {}


# --- staging ------------------------------------------------------------------------------------


def fill_stages(database: Database) -> None:
    """Thousands of stages that others have written, with a row for every message."""
    own = "1000000 + id - 2000 * FLOOR(id / 2000)"
    database.execute(
        "INSERT INTO rowmq_stages (id, batch_id, created_at, place, name) "
        "SELECT 1000000 + id, 1000000 + id, 9000000000000000, 0, 'x' FROM rowmq_partitions "
        "WHERE id < 2000"
    )
    database.execute(
        "INSERT INTO rowmq_stage_parts (stage_id, part, precedence, messages, largest_bytes, "
        f"target, name) SELECT {own}, id, 0, 1, 1, topic, partition_key FROM rowmq_partitions"
    )
    database.execute(
        "INSERT INTO rowmq_staged (stage_id, number, nth, part, encoding, payload) "
        "SELECT 1000000 + partition_id, message_offset, 1, 1, 1, payload FROM rowmq_messages"
    )
    database.analyze()


def stage_and_publish(mq: rowmq.RowMQ, number: int) -> None:
    """What a small batch of Spark's comes to: two tasks, whose messages are there or not."""
    staging = mq._store.staging
    stages = []
    for name in ("one", "two"):
        id = mq._run(partial(staging.open, f"{name} {number}"))
        rows = [StagedRow(n, n, 0, 0, b"x", f"staged-{n}") for n in range(30)]
        mq._run(partial(staging.fill, id, rows))
        parts = [Part(n, "big", f"k{n}", 0, 1, 1) for n in range(30)]
        mq._run(partial(staging.complete, id, parts))
        stages.append(Stage(id, len(rows)))
    version = Version("w", "t", number)
    mq._run(partial(staging.publish, stages, version, notify=True))
    for stage in stages:
        mq._run(partial(staging.clear, stage.id, 0, 100))
        mq._run(partial(staging.forget, stage.id))


def test_statements_of_staging_use_indexes_only(
    large: Callable[[str], Database], database: Database
) -> None:
    subject = large(database.name)
    fill_stages(subject)
    seen: dict[str, Statement] = {}
    with rowmq.connect(subject.url) as mq:
        mq._driver.observers.append(lambda statement: seen.update({statement.sql: statement}))
        stage_and_publish(mq, 1)
        stage_and_publish(mq, 2)
    names = {statement.name for statement in seen.values()}
    assert names >= {"staging.append", "staging.append_new", "staging.place", "staging.advance"}
    hot = [s for s in seen.values() if s.name.startswith("staging.") and "SAVEPOINT" not in s.sql]
    assert scans_of(subject, hot) == []


def test_reading_too_much_would_be_seen(
    large: Callable[[str], Database], database: Database
) -> None:
    """The counting itself must be able to fail."""
    subject = large(database.name)
    sql = "SELECT COUNT(*) FROM rowmq_offsets WHERE offset_delivered = 77"
    reads = reads_of(subject, [Statement("a scan", sql)])
    assert min(reads.values()) > 3 * WIDE


SCANS = {
    "of a table": "SELECT * FROM rowmq_messages m WHERE m.published_at = 7",
    "of an index": """
        SELECT m.partition_id, m.message_offset FROM rowmq_messages m
        ORDER BY m.partition_id, m.message_offset LIMIT 10""",
}


@pytest.mark.parametrize("sql", SCANS.values(), ids=SCANS)
def test_a_scan_would_be_seen(
    large: Callable[[str], Database], database: Database, sql: str
) -> None:
    """The explaining itself must be able to fail."""
    subject = large(database.name)
    scan = [Statement("a scan", sql)]
    found = scans_of(subject, scan)
    assert found != []
    if subject.dialect == "postgres":
        assert all(("Index" in each) == ("ORDER BY" in sql) for each in found), found


# --- what operators look at ---------------------------------------------------------------------

LETTERS = 100_000

OF_PAGES = ("browsing.", "sorting.", "previews.", "sweeping.", "traffic.", "rewriting.")

AND_OTHERS = (
    *("topics.find", "topics.partitions", "topics.places", "topics.read"),
    *("groups.list", "groups.look", "groups.most_lag", "queues.look", "queues.look_kinds"),
    *("letters.list", "letters.count", "letters.groups"),
    *("doctor.groups", "pipelines.readers", "pipelines.writers"),
)

READS = {
    "browsing.heads": 60_000,
    "browsing.halve": 40_000,
    "browsing.look_up": 50_000,
    "browsing.many": 20_000,
    "groups.most_lag": 80_000,
    "previews.letters": 60_000,
    "previews.standings": 80_000,
    "sweeping.behind": 160_000,
    "sweeping.newest": 25_000,
    "sweeping.next": 40_000,
    "sorting.look": 40_000,
    "traffic.gaps": 160_000,
    "traffic.groups": 20_000,
    "traffic.letters": 20_000,
    "traffic.names": 10_000,
    "traffic.oldest": 160_000,
}
"""How many rows statements may read that look at ten thousand partitions, or letters, by design."""

OTHER_READS = 5_000


def fill_letters(database: Database) -> None:
    """A topic with 100,000 letters, few of which are of one group, and few of one kind."""
    with rowmq.connect(database.url) as mq:
        mq.create_group("given up", "g")
        mq.create_group("given up", "rare")
    number = {"mysql": "CONCAT('E', message_offset)"}.get(database.dialect, "'E' || message_offset")
    database.execute(
        "INSERT INTO rowmq_dead_letters (partition_id, message_offset, origin_partition_id, "
        "origin_offset, failed_at, attempts, origin_topic, consumer_group, origin_id, error) "
        "SELECT partition_id, message_offset, partition_id, message_offset, message_offset, 3, "
        "'given up', CASE WHEN message_offset % 20000 = 7 THEN 'rare' ELSE 'g' END, message_id, "
        f"CASE WHEN message_offset % 900 = 7 THEN 'seldom' ELSE {number} END "
        "FROM rowmq_messages WHERE message_offset > 1 AND partition_id = "
        "(SELECT id FROM rowmq_partitions WHERE partition_key = 'huge')"
    )
    database.analyze()


def look_around(mq: rowmq.RowMQ) -> None:
    """Every page, from the first on and from within, and every preview."""
    for topic in ("big", "other"):
        page = mq.browse(topic)
        assert len(page.messages) == 50
        page = mq.browse(topic, before=page.older)
        mq.browse(topic, after=page.newer)
    mq.browse("big", key="huge", at=datetime.fromtimestamp(0, UTC) + timedelta(seconds=1))
    mq.browse("big", key="huge", limit=500)
    assert len(mq.browse("big", id="x77777").messages) == 1
    letters = mq.browse_letters("given up")
    mq.browse_letters("given up", whole=False)
    mq.browse_letters("given up", after=letters.next)
    assert len(mq.browse_letters("given up", group="rare").letters) == 5
    assert len(mq.browse_letters("given up", matching="seldom").letters) == 6
    assert len(mq.browse_letters("given up", id="x77777", group="g").letters) == 1
    assert [kind.count for kind in mq.letter_kinds("given up")] == [9_988, 12]
    mq.preview_redrive("given up")
    mq.preview_redrive("given up", group="rare")
    mq.preview_redrive("given up", ids=["x77777"])
    these = [*letters.letters]
    assert mq.find_letter("given up", these[0].handle) == these[0]
    (step,) = mq.preview_purge("given up", letters=these)
    assert step.letters == len(these)
    assert mq.preview_purge("given up")[0].capped
    assert mq.redrive("given up", letters=these) == len(these)
    mq.create_group("big", "looking")
    mq.preview_seek("big", "looking", to=datetime.fromtimestamp(0, UTC) + timedelta(days=1))
    mq.preview_seek("other", "g1", to="earliest")
    mq.preview_seek("other", "g1", to=datetime.now(UTC), key="live7")
    mq.partitions("other", limit=100, after="t5")
    mq.partitions("other", limit=100, prefix="t1")
    mq.lag("other", "g1", limit=50)
    mq.topic("narrow")
    mq.groups("other")
    mq.group("other", "g1")
    mq.queue("looked at").put(1)
    mq.queue("looked at").info()
    mq.traffic()
    mq.doctor(checks=["lag"])
    mq.pipelines()
    mq.publish("edited", 1, key="k", id="x")
    with mq.subscribe("edited", group="g") as sub:
        sub.poll()[0].reject(error="no")
    assert mq.redrive_edited("edited", group="g", id="x", payload=b"x" * 100)


def test_what_operators_look_at_is_found_by_indexes(
    large: Callable[[str], Database], database: Database
) -> None:
    """However large a table is: a statement reads what it has to show, or a fixed part of it."""
    subject = large(database.name)
    fill_letters(subject)
    assert subject.execute("SELECT COUNT(*) FROM rowmq_dead_letters")[0][0] >= LETTERS
    first, last = dict[str, Statement](), dict[str, Statement]()
    with rowmq.connect(subject.url) as mq:
        mq._driver.observers.append(lambda s: first.update({s.sql: first.get(s.sql, s)}))
        mq._driver.observers.append(lambda s: last.update({s.sql: s}))
        look_around(mq)
    seen = [*first.values(), *last.values()]
    statements = [
        s
        for s in seen
        if (s.name.startswith(OF_PAGES) and s.name != "rewriting.insert") or s.name in AND_OTHERS
    ]
    folder = Path(store.__path__[0])
    modules = ("browsing", "sorting", "previews", "sweeping", "traffic", "rewriting")
    text = "".join((folder / f"{module}.py").read_text() for module in modules)
    named = set(re.findall(r'Statement\("([a-z_.]+)"', text))
    assert (named | set(READS)) - {s.name for s in seen} == set()
    roughly = 4 if database.dialect == "sqlite" else 1  # which tells its steps, and not rows
    too_many = [
        (what, rows, statement.params)
        for statement in statements
        for what, rows in reads_of(subject, [statement]).items()
        if rows > roughly * READS.get(statement.name, OTHER_READS)
    ]
    assert too_many == []


def test_a_page_takes_few_statements(large: Callable[[str], Database], database: Database) -> None:
    subject = large(database.name)
    seen: list[str] = []
    with rowmq.connect(subject.url) as mq:
        mq._driver.observers.append(lambda s: seen.append(s.name))
        page = mq.browse("big")
        first = len(seen)
        mq.browse("big", before=page.older)
        second = len(seen) - first
        mq.browse("big", key="huge", limit=500)
        huge = len(seen) - first - second
        mq.browse_letters("big")
        letters = len(seen) - first - second - huge
    # SQLite looks at one span at a time, in no time.
    spans = 1_000 if database.dialect == "sqlite" else 0
    assert first <= 8 + spans
    assert second <= 10 + spans
    assert huge <= 8 + spans
    assert letters <= 3
