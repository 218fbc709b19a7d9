"""Queues with a million jobs waiting and a million archived: what statements read and lock.

The statements are not copied: they are watched while real calls run, and then explained, or run
again and undone, with the parameters they had.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql as composed

import rowmq
from rowmq.store.statement import Statement
from rowmq.times import to_micros
from tests.choices import on_mysql
from tests.databases import Database, Databases, MySQLDatabase
from tests.plans import reads_of, scans_of

MILLION = 1_000_000
CLAIMED = 20_000
SOME = 3_000
OLD = 100
"""How many of the archived jobs are too old to be kept."""

on_postgres = pytest.mark.parametrize("database", ["postgres"], indirect=True)
on_row_locks = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)

READ_MAX = 3_000
"""How many rows a statement about a hundred jobs may read, far from what any table holds."""

WHOLE = {
    "archive.count",
    "archive.locks",
    "archive.lock_of",
    "backlogs.lanes",
    "backlogs.locks",
    "backlogs.queues",
    "histories.lock",
    "steering.locks",
}
"""What counts all jobs of a queue, or looks through the locks, which are as many as workers; or
through queues and lanes.
"""

LOOKED_AT_MAX = 40_000
"""How many rows a page may read of what no index knows: some thousand jobs, and what is beside."""

WRITTEN_FIRST = -(2**40)
"""An id before all others."""


@pytest.fixture(scope="module")
def crowded(databases: Databases) -> Callable[[str], Database]:
    """Databases with a million jobs waiting and a million archived, made once."""
    made: dict[str, Database] = {}

    def get(name: str) -> Database:
        if name not in made:
            made[name] = databases.get(name).create()
            databases.stack.callback(made[name].drop)
            fill(made[name])
        return made[name]

    return get


def fill(database: Database) -> None:
    """The queue q, another one beside it, and something in every table."""
    with rowmq.connect(database.url) as mq:
        mq.migrate()
        queue, other = mq.queue("q"), mq.queue("other")
        queue.put(0)
        other.put(0)
        other.configure(max_in_flight=500, rate=500)
        keys = [rowmq.ScheduledMessage(f"k{n}", n, later()) for n in range(SOME)]
        other.offer_batch(keys)
        for n in range(20):
            other.put(n, ordering_key=f"o{n}")
    ((lane, queue_id),) = database.execute(
        "SELECT l.id, q.id FROM rowmq_lanes l JOIN rowmq_queues q ON q.id = l.queue_id "
        "WHERE q.queue = 'q'"
    )
    ((other_id,),) = database.execute("SELECT id FROM rowmq_queues WHERE queue = 'other'")
    payload = {"postgres": "'1'::bytea"}.get(database.dialect, "'1'")
    claimed = {"postgres": "ARRAY[[1::bigint, 1, 1, 0, 1, 0]]"}
    lock = claimed.get(database.dialect, "'[[1,1,1,0,1,0]]'")
    key = {"mysql": "CONCAT('w', n)"}.get(database.dialect, "'w' || n")
    now = to_micros(datetime.now(UTC))
    with numbers(database) as execute:
        # Of the jobs themselves, those that are claimed: their table is only looked up by id.
        execute(
            "INSERT INTO rowmq_jobs (id, created_at, due_at, lane_id, encoding, payload) "
            f"SELECT {10**9} + n, {now}, n, {lane}, 2, {payload} FROM numbers "
            f"WHERE n <= {CLAIMED} OR n > {MILLION - CLAIMED}"
        )
        execute(
            "INSERT INTO rowmq_ready (lane_id, due_at, job_id, attempts, deliveries) "
            f"SELECT {lane}, n, {10**9} + n, 0, 0 FROM numbers"
        )
        execute(
            "INSERT INTO rowmq_completed "
            "(queue_id, finished_at, job_id, started_at, attempts, deliveries) "
            f"SELECT {queue_id}, n + CASE WHEN n > {OLD} THEN {now - MILLION} ELSE 0 END, "
            f"{2 * 10**9} + n, 0, 1, 1 FROM numbers"
        )
        few = f"FROM numbers WHERE n <= {SOME}"
        execute(
            "INSERT INTO rowmq_failed "
            "(job_id, queue_id, finished_at, started_at, attempts, deliveries, error) "
            f"SELECT {WRITTEN_FIRST} + n, {other_id}, n, 0, 1, 1, 'x' {few}"
        )
        execute(
            "INSERT INTO rowmq_job_errors (job_id, failed_at, attempt, due_at) "
            f"SELECT {WRITTEN_FIRST} + n, 0, 1, 1 FROM numbers WHERE n <= {CLAIMED}"
        )
        execute(
            "INSERT INTO rowmq_locks (token, locked_until, claimed_at, owner, claimed, settled) "
            f"SELECT {WRITTEN_FIRST} + n, {2**61}, 0, 'x', {lock}, '0' {few}"
        )
        execute(
            "INSERT INTO rowmq_lines "
            "(queue_id, head_id, head_lane, head_order, head_due, ordering_key) "
            f"SELECT {other_id}, 1, 1, 0, 0, {key} {few}"
        )
        execute(
            "INSERT INTO rowmq_waiting "
            "(queue_id, due_at, job_id, lane_id, precedence, ordering_key) "
            f"SELECT {other_id}, n, {WRITTEN_FIRST} + n, 1, 0, {key} {few}"
        )
    database.analyze()


@contextmanager
def numbers(database: Database) -> Iterator[Callable[[str], Any]]:
    """A connection that has a table of the numbers to a million, for as long as this lasts."""
    thousand = ", ".join(f"({n})" for n in range(1_000))
    database.execute("CREATE TABLE thousand (n integer NOT NULL PRIMARY KEY)")
    database.execute(f"INSERT INTO thousand VALUES {thousand}")
    database.execute("CREATE TABLE numbers (n bigint NOT NULL PRIMARY KEY)")
    product = "SELECT a.n * 1000 + b.n + 1 AS n FROM thousand a, thousand b"
    database.execute(f"INSERT INTO numbers SELECT n FROM ({product}) p WHERE n <= {MILLION}")
    yield database.execute
    database.execute("DROP TABLE numbers")
    database.execute("DROP TABLE thousand")


def later() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def claim_and_settle(mq: rowmq.RowMQ) -> None:
    """Every call of a worker, in the sizes that differ."""
    queue = mq.queue("q")
    queue.put(1)
    queue.put_many(range(3), priority=3)
    one, two = queue.try_poll(), queue.try_poll_many(100)
    assert one is not None
    one.extend(60)
    one.ack()
    two[0].nack(delay=3_600, error="later")  # of a higher priority: not while tests go on
    two[1].reject(error="no")
    two[2].release()
    queue.ack(two[3:50])
    queue.ack(two[50:])
    with mq.transaction() as tx:
        tx.queue("q").put(1)
    expired = queue.try_poll_many(10, lock_timeout=0.001)
    time.sleep(0.01)
    mq.queue("other").put(1, key=f"new {time.monotonic_ns()}", ordering_key="o1")
    both = mq.poller("q", "other").try_poll_many(100)
    both[0].extend(60)
    mq.poller("q", "other").ack(both)
    assert len(expired) == 10


def look_after(mq: rowmq.RowMQ) -> None:
    """Every call of producers by key, and of operators, that is not about a whole queue."""
    queue, other = mq.queue("q"), mq.queue("other")
    other.offer_or_update("k1", "new", later())
    other.offer_if_not_exists("k2", "new", later())
    other.offer_batch([rowmq.ScheduledMessage(f"k{n}", "x", later()) for n in range(100)])
    other.read("k3")
    other.contains("k3")
    other.drop("k3")
    queue.archive(limit=10)
    queue.failed(limit=10)
    queue.retry([job.id for job in queue.failed(limit=10)])
    queue.errors(7)
    queue.live(limit=10)
    queue.live(state=rowmq.State.PENDING, limit=10)
    other.live(limit=10)
    queue.get(10**9 + 1)
    done = queue.try_poll()
    assert done is not None
    done.ack()
    queue.get(done.id)
    queue.prune()
    queue.pause()
    queue.resume()
    job = other.try_poll()
    assert job is not None
    job.reject(error="no")
    other.retry([job.id])


def look_around(mq: rowmq.RowMQ) -> None:
    """Every page that people look at, where an index knows what they look for."""
    queue, other = mq.queue("q"), mq.queue("other")
    for state in (None, *rowmq.State):
        for some in (queue, other):
            page = some.find(state=state, limit=10)
            some.find(state=state, limit=10, after=page.next)
    other.find(key="k5", state=rowmq.State.PENDING)
    queue.find(since=later(), limit=10)
    queue.find(state=rowmq.State.COMPLETED, until=later(), limit=10)
    for some in (queue, other):
        assert some.counts(up_to=100)["pending"] == 100
    mq.queue("other", kind="int").counts(up_to=100)
    assert any(one.capped for one in mq.backlog(up_to=100))
    assert mq.find_job(10**9 + 2) is not None
    queue.timeline(10**9 + 2)


def steer(mq: rowmq.RowMQ) -> None:
    """Everything that people do to jobs by their ids."""
    queue, other = mq.queue("q"), mq.queue("other")
    later_on = [job.id for job in queue.put_many(range(20), delay=86_400, priority=2)]
    lined = [other.put(n, ordering_key="o2", delay=86_400).id for n in range(5)]
    for some, ids in ((queue, later_on), (other, lined)):
        assert some.reschedule(ids, at=later()) == len(ids)
        assert some.run_now(ids[:2]) == 2
        assert some.fail(ids[1:3], error="no") == 2
        assert some.drop_jobs(ids[3:]) == len(ids) - 3
    tried = queue.try_poll()
    assert tried is not None
    tried.nack(delay=86_400)
    queue.timeline(tried.id)
    assert queue.run_now([tried.id]) == 1
    one, two = queue.try_poll_many(2)
    assert queue.fail([one.id]) == 1
    assert queue.drop_jobs([two.id]) == 1
    given = [receipt_of_one(queue) for _ in range(3)]
    assert queue.settle(given[:1], "nack", delay=86_400) == [None]
    assert queue.settle(given[1:2], "reject") == [None]
    assert queue.settle(given[2:], "ack") == [None]
    again = queue.settle(given)
    assert [type(outcome) for outcome in again] == [rowmq.errors.AlreadySettled] * 3


def receipt_of_one(queue: Any) -> str:
    """Of a job that nobody here has any more: it is found by its lock."""
    return str(queue.receipt(queue.try_poll()))


def held(mq: rowmq.RowMQ) -> None:
    with mq.queue("q").hold() as job:
        assert job is not None
    with mq.queue("q").hold(order="lifo") as job:
        assert job is not None
    with pytest.raises(ZeroDivisionError), mq.queue("q").hold():
        1 / 0  # noqa: B018 - it is to raise


def watched(database: Database, *calls: Callable[[rowmq.RowMQ], None]) -> list[Statement]:
    """One statement of each text that calls run."""
    seen: dict[str, Statement] = {}
    of_queues = (
        "queues.", "jobs.", "lines.", "claims.", "settles.", "holds.", "archive.", "listing.",
        "finding.", "histories.", "backlogs.", "steering.", "receipts.",
    )  # fmt: skip
    with rowmq.connect(database.url) as mq:
        mq._driver.observers.append(lambda s: seen.update({s.sql: seen.get(s.sql, s)}))
        for call in calls:
            call(mq)
    return [s for s in seen.values() if s.name.startswith(of_queues) and s.name not in WHOLE]


def test_claims_and_settles_use_indexes_only(
    crowded: Callable[[str], Database], database: Database
) -> None:
    subject = crowded(database.name)
    for table in ("ready", "completed"):
        assert subject.execute(f"SELECT COUNT(*) FROM rowmq_{table}")[0][0] > MILLION * 0.99
    statements = watched(subject, claim_and_settle, look_after, look_around, steer, held)
    assert len({statement.name for statement in statements}) >= 60
    # The newest of all jobs are the last of their index.
    statements = [s for s in statements if s.name != "backlogs.put"]
    assert scans_of(subject, statements) == []


def test_claims_and_settles_read_little_more_than_they_take(
    crowded: Callable[[str], Database], database: Database
) -> None:
    subject = crowded(database.name)
    statements = watched(subject, claim_and_settle, look_after, look_around, steer, held)
    # What was written cannot be written again; to look it up is what is measured.
    again = [s for s in statements if not s.sql.strip().startswith("INSERT")]
    again = [s for s in again if s.name not in ("jobs.put", "queues.reserve")]
    assert {what: n for what, n in reads_of(subject, again).items() if n > READ_MAX} == {}


def test_a_page_of_what_no_index_knows_looks_at_some_thousand_jobs(
    crowded: Callable[[str], Database], database: Database
) -> None:
    subject = crowded(database.name)

    def look(mq: rowmq.RowMQ) -> None:
        queue = mq.queue("q")
        for wanted in ({"header": {"no": "no"}}, {"state": rowmq.State.RETRYABLE}):
            page = queue.find(**wanted, limit=10)
            assert page.next is not None
            assert page.looked_at <= 2 * 5_000
            queue.find(**wanted, limit=10, after=page.next)
        mq.queue("q", kind="none").find(state=rowmq.State.COMPLETED, limit=10)

    statements = watched(subject, look)
    assert scans_of(subject, statements) == []
    reads = reads_of(subject, statements)
    assert {what: n for what, n in reads.items() if n > LOOKED_AT_MAX} == {}


@on_row_locks
def test_a_claim_locks_only_the_rows_that_it_takes(
    crowded: Callable[[str], Database], database: Database
) -> None:
    """A claim is left open; then whoever passes over locked rows misses just those it took."""
    subject = crowded(database.name)

    def claim(mq: rowmq.RowMQ) -> None:
        assert len(mq.queue("q").try_poll_many(100)) == 100

    names = ("claims.claim", "claims.lock_ready")
    (statement,) = [s for s in watched(subject, claim) if s.name in names]
    in_order = "SELECT due_at, job_id FROM rowmq_ready WHERE lane_id = %s ORDER BY due_at, job_id"
    lane = statement.params[0]
    with opened(subject) as claiming, opened(subject) as other:
        before = ask(other, f"{in_order} LIMIT 5000", lane)
        params = list(statement.params)
        if statement.name == "claims.claim":
            params[4] += 1  # the token of another lock
        ask(claiming, statement.sql, *params)
        free = set(ask(other, f"{in_order} LIMIT 5000 FOR UPDATE SKIP LOCKED", lane))
        assert [row for row in before if row not in free] == before[:100]
        if isinstance(subject, MySQLDatabase):
            # Each with its job; the last one is where it stopped.
            assert ask(claiming, ROWS_LOCKED)[0][0] <= 2 * 100 + 1


ROWS_LOCKED = """
    SELECT trx_rows_locked FROM information_schema.innodb_trx
    WHERE trx_mysql_thread_id = CONNECTION_ID()"""


@contextmanager
def opened(database: Database) -> Iterator[Any]:
    """A connection with a transaction at READ COMMITTED, which is undone in the end."""
    if isinstance(database, MySQLDatabase):
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.begin()
            yield cursor
            connection.rollback()
    else:
        with psycopg.connect(database.url) as postgres:
            yield postgres.cursor()
            postgres.rollback()


def ask(cursor: Any, sql: str, *params: Any) -> list[Any]:
    """The rows of a statement of ours or RowMQ's, whatever its placeholders."""
    if "$1" in sql:
        values = [composed.Literal(value) for value in params]
        name = composed.Identifier(f"s{abs(hash(sql))}")
        cursor.execute(composed.SQL("PREPARE {} AS " + sql).format(name))
        arguments = composed.SQL(", ").join(values)
        cursor.execute(composed.SQL("EXECUTE {}({})").format(name, arguments))
    else:
        cursor.execute(sql, params or None)
    return list(cursor.fetchall())


# --- the cursor -----------------------------------------------------------------------------------


@on_postgres
def test_a_claim_at_the_end_of_the_backlog_reads_no_more_pages_than_at_its_start(
    crowded: Callable[[str], Database], database: Database
) -> None:
    """Somebody holds a snapshot, so that what was claimed leaves its index entries behind."""
    subject = crowded(database.name)
    subject.execute("ALTER TABLE rowmq_ready SET (autovacuum_enabled = false)")
    with rowmq.connect(subject.url) as mq, psycopg.connect(subject.url) as snapshot:
        queue = mq.queue("q")
        claims: list[Statement] = []
        mq._driver.observers.append(
            lambda s: claims.append(s) if s.name == "claims.claim" else None
        )
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot.execute("SELECT COUNT(*) FROM rowmq_ready")
        queue.ack(queue.try_poll_many(100))
        start = pages(subject, claims[-1])
        ((lane,),) = subject.execute("SELECT MIN(lane_id) FROM rowmq_ready")
        subject.execute(
            f"DELETE FROM rowmq_ready WHERE lane_id = {lane} AND due_at < {MILLION - CLAIMED}"
        )
        queue.ack(queue.try_poll_many(100))  # may look from the head
        queue._core.claimer._busy = True
        queue._core.claimer._look_at = time.monotonic() + 60
        for _ in range(3):
            queue.ack(queue.try_poll_many(100))
        end = pages(subject, claims[-1])
        lane_id, _, _, *rest = claims[-1].params
        head = Statement("from the head", claims[-1].sql, [lane_id, -(2**62), 0, *rest])
        assert pages(subject, head) > 10 * end
        assert end <= start * 1.1


def keeper(kept: list[Statement], name: str) -> Callable[[Statement], None]:
    """Keeps the statements of a name."""
    return lambda statement: kept.append(statement) if statement.name == name else None


def pages(database: Database, statement: Statement) -> int:
    """How many pages of tables and indexes a claim touches, when it is run again and undone."""
    with psycopg.connect(database.url) as connection:
        params = list(statement.params)
        params[4] += 1  # the token of another lock
        values = [composed.Literal(value) for value in params]
        connection.execute("PREPARE claim AS " + statement.sql)
        explain = composed.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim({})")
        row = connection.execute(explain.format(composed.SQL(", ").join(values))).fetchone()
        connection.rollback()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@on_mysql
def test_a_claim_at_the_end_of_the_backlog_reads_no_more_rows_than_at_its_start(
    crowded: Callable[[str], Database], database: Database
) -> None:
    subject = crowded(database.name)
    with rowmq.connect(subject.url) as mq:
        queue = mq.queue("q")
        claims: list[Statement] = []
        mq._driver.observers.append(keeper(claims, "claims.lock_ready"))
        queue.ack(queue.try_poll_many(100))
        start = reads_of(subject, [claims[-1]])["claims.lock_ready"]
        ((lane,),) = subject.execute("SELECT MIN(lane_id) FROM rowmq_ready")
        subject.execute(
            f"DELETE FROM rowmq_ready WHERE lane_id = {lane} AND due_at < {MILLION - CLAIMED}"
        )
        for _ in range(3):
            queue.ack(queue.try_poll_many(100))
        assert reads_of(subject, [claims[-1]])["claims.lock_ready"] <= start * 1.1


def test_what_comes_before_the_cursor_is_claimed_within_two_seconds(database: Database) -> None:
    """Put by others while a claimer is kept busy: earlier, and with a higher priority."""
    with rowmq.connect(database.url) as mq, rowmq.connect(database.url) as others:
        queue, elsewhere = mq.queue("q"), others.queue("q")
        elsewhere.put("put back", at=datetime.now(UTC) - timedelta(minutes=2))
        put_back = elsewhere.try_poll()
        elsewhere.put_many(["later"] * 50_000, at=datetime.now(UTC) - timedelta(minutes=1))
        assert busy_until(queue, "nothing", seconds=0.3) is None  # the cursor is past the head
        elsewhere.put("earlier", at=datetime.now(UTC) - timedelta(hours=1))
        assert busy_until(queue, "earlier", seconds=2.0) is not None
        elsewhere.put("higher", priority=1)
        assert busy_until(queue, "higher", seconds=2.0) is not None
        assert put_back is not None
        put_back.release()
        assert busy_until(queue, "put back", seconds=2.0) is not None


def busy_until(queue: Any, payload: str, *, seconds: float) -> Any:
    """Claim one job after the other until a payload comes, or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        jobs = queue.try_poll_many(5)
        assert len(jobs) == 5
        queue.ack(jobs)
        if any(job.payload == payload for job in jobs):
            return jobs
    return None
