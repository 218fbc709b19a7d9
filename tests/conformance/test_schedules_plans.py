"""Many schedules and very many ticks: what statements read of them."""

from datetime import UTC, datetime, timedelta

import rowmq
from rowmq.store.statement import Statement
from tests.consuming import statements
from tests.databases import Database
from tests.plans import reads_of

SCHEDULES = 5_000
TICKS = 20_000
READ_MAX = 1_000
"""How many rows a statement may read, far from what there is."""


def fill(database: Database) -> None:
    """Schedules that are not due for long, and ticks of all of them and of many prefixes."""
    (row,) = database.execute("SELECT spec FROM rowmq_schedules")
    spec = (row[0] if isinstance(row[0], str) else row[0].decode()).replace("'", "''")
    rows = [f"('n{n}', {2**60 + n}, 0, 0, {n % 2}, 'h', '{spec}')" for n in range(SCHEDULES)]
    database.execute(
        "INSERT INTO rowmq_schedules "
        f"(name, next_at, created_at, revision, paused, config_hash, spec) VALUES {', '.join(rows)}"
    )
    columns = "(queue, name, fire_at, part, fired_at, job_id, lane_id, config_hash)"
    for queue in ("", "q"):
        rows = [f"('{queue}', 'n{n % 50}', {2**59 + n}, '', 0, 1, 1, 'h')" for n in range(TICKS)]
        database.execute(f"INSERT INTO rowmq_ticks {columns} VALUES {', '.join(rows)}")
    database.analyze()


def calls(mq: rowmq.RowMQ) -> None:
    """Every call on schedules that there may be many of."""
    mq.cron.install_periodic("s", 0.1, queue="q", payload=1, tend=False)
    mq.cron.install_periodic("s", 0.1, queue="q", payload=2, tend=False)
    while not mq.cron.tend():
        pass
    mq.cron.pause("s")
    mq.cron.resume("s")
    mq.cron.next("s")
    mq.cron.run("s")
    mq.cron.remove("s")
    later = datetime.now(UTC) + timedelta(hours=1)
    ticks = [rowmq.CronMessage(n, later + timedelta(hours=n)) for n in range(5)]
    mq.cron.install_tick("old", "prefix", ticks, queue="q")
    mq.cron.install_tick("new", "prefix", ticks, queue="q")
    mq.cron.install_tick("new", "prefix", [rowmq.CronMessage(9, later)], queue="q")
    mq.cron.uninstall_tick("new", "prefix", queue="q")


WHOLE = ["schedules.ahead"]
"""Once a minute, one that looks for what a wrong clock has done: an index for it would be written
with every tick.
"""


def test_no_statement_reads_the_whole_of_a_table(database: Database) -> None:
    with rowmq.connect(database.url) as mq:
        mq.cron.install_periodic("s", 0.1, queue="q", payload=0, tend=False)
        fill(database)
        with statements(mq) as seen:
            calls(mq)
        ours: dict[str, Statement] = {}
        for statement in seen:
            if statement.name.startswith(("schedules.", "ticks.")):
                ours[statement.name] = statement
        assert {"schedules.upcoming", "schedules.claim", "ticks.ahead", "ticks.old"} <= set(ours)
        for name in WHOLE:
            del ours[name]
        reads = reads_of(database, list(ours.values()))
    assert not {name: rows for name, rows in reads.items() if rows > READ_MAX}
