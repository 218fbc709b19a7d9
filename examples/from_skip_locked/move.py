"""Move the rows of a plain SKIP LOCKED table into a RowMQ queue, while the old workers still run.

A batch of rows is locked, put as jobs, and deleted, in one transaction: each row is a job or still
a row, never both and never neither. The script may be stopped, killed and started again, and any
number of copies may run. Rows that an old worker has locked are left to it.

    python move.py --table jobs --queue emails
"""

import argparse
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import rowmq

URL = os.environ.get("DATABASE_URL", "sqlite:///old.db")

# The shape of the old table. For another one, change these two and job_of().
COLUMNS = "id, payload, run_at, priority, attempts"
WAITING = "NOT done"


def job_of(table: str, row: Sequence[Any]) -> rowmq.ScheduledMessage[Any]:
    """The job that a row becomes. Its key tells where it came from."""
    id, payload, run_at, priority, attempts = row
    return rowmq.ScheduledMessage(
        key=f"{table}-{id}",
        payload=json.loads(payload) if isinstance(payload, str | bytes) else payload,
        at=aware(run_at),
        priority=priority,
        headers={"old-attempts": str(attempts)},
    )


def move_batch(mq: rowmq.RowMQ, table: str, queue: str, limit: int) -> int:
    """Move up to `limit` rows in one transaction; how many it were."""
    with mq.transaction() as tx:
        rows = tx.execute(
            f"SELECT {COLUMNS} FROM {table} WHERE {WAITING} ORDER BY id LIMIT ? {skip_locked()}",
            [limit],
        ).rows
        if not rows:
            return 0
        tx.queue(queue).offer_batch([job_of(table, row) for row in rows])
        marks = ", ".join("?" * len(rows))
        tx.execute(f"DELETE FROM {table} WHERE id IN ({marks})", [row[0] for row in rows])
    return len(rows)


def skip_locked() -> str:
    """SQLite has one writer at a time, and so neither needs nor knows row locks."""
    return "" if URL.startswith("sqlite") else "FOR UPDATE SKIP LOCKED"


def aware(value: datetime | str) -> datetime:
    """A time of the old table, which is taken to be in UTC if it does not say."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="jobs")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--batch", type=int, default=500)
    options = parser.parse_args()
    if not options.table.isidentifier():
        parser.error(f"{options.table!r} is no name of a table")

    moved = 0
    with rowmq.connect(URL) as mq:
        mq.migrate()
        while count := move_batch(mq, options.table, options.queue, options.batch):
            moved += count
            print(f"{moved} moved", flush=True)
        print(f"done: {mq.queue(options.queue).counts()['pending']} jobs are waiting")


if __name__ == "__main__":
    main()
