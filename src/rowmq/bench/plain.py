"""The queue that everybody writes first: `python -m rowmq.bench.plain SPEC`.

One table with a row for each job, a state, and a partial index of those that wait. A claim updates
rows that it has locked by `FOR UPDATE SKIP LOCKED`, an ack updates them again. PostgreSQL only: it
shows what a held snapshot does to rows that are updated in place.
"""

import asyncio
import contextlib
import sys
from time import monotonic
from typing import Any

from rowmq.bench.playing import Spec, Stage, end, say, spec_of
from rowmq.bench.raw import connect_postgres

__all__ = ["main"]

CREATE = """
    DROP TABLE IF EXISTS plain_jobs;
    CREATE TABLE plain_jobs (
        id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        due_at  timestamptz NOT NULL DEFAULT now(),
        state   smallint NOT NULL DEFAULT 0,
        payload bytea NOT NULL
    );
    CREATE INDEX plain_jobs_waiting ON plain_jobs (due_at, id) WHERE state = 0"""

PUT = "INSERT INTO plain_jobs (payload) SELECT unnest($1::bytea[])"
FILL = "INSERT INTO plain_jobs (payload) SELECT $1 FROM generate_series(1, $2::int)"

CLAIM = """
    WITH claimed AS MATERIALIZED (
        SELECT id FROM plain_jobs WHERE state = 0 AND due_at <= now()
        ORDER BY due_at, id LIMIT $1 FOR UPDATE SKIP LOCKED
    )
    UPDATE plain_jobs j SET state = 1 FROM claimed c WHERE j.id = c.id RETURNING j.id, j.payload"""

ACK = "UPDATE plain_jobs SET state = 2 WHERE id = ANY($1::bigint[])"

TOP_UP = 1_000
CLAIMERS = 2
"""How many connections claim at once: with more, two cores do no more."""


async def prepare(spec: Spec) -> None:
    connection = await connect_postgres(spec)
    await connection.execute(CREATE)
    await connection.close()


async def fill(spec: Spec) -> None:
    connection = await connect_postgres(spec)
    await connection.execute(FILL, b"x" * spec.payload_bytes, spec.messages + spec.backlog)
    await connection.close()


class Queue:
    """The claimers of a trial, and what they have done."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.count = 0
        self.put = 0

    async def claim(self, connection: Any) -> None:
        """Claim a batch and ack it; wait a little if there is none."""
        rows = await connection.fetch(CLAIM, self.spec.batch)
        if not rows:
            await asyncio.sleep(0.001)
            return
        await connection.execute(ACK, [row["id"] for row in rows])
        self.count += len(rows)

    async def go_on_claiming(self, connection: Any) -> None:
        while True:
            await self.claim(connection)

    async def top_up(self, connection: Any) -> None:
        """Put as many as were claimed."""
        payloads = [b"x" * self.spec.payload_bytes] * TOP_UP
        while True:
            if self.put < self.count:
                await connection.execute(PUT, payloads)
                self.put += TOP_UP
            else:
                await asyncio.sleep(0.002)


async def churn(spec: Spec, stage: Stage) -> None:
    """Put and claim for a while, with about as many jobs waiting all the time."""
    connections = [await connect_postgres(spec) for _ in range(CLAIMERS + 1)]
    queue = Queue(spec)
    stage.ready(batch=spec.batch, connections=CLAIMERS, backlog=spec.backlog)
    began = await stage.wait_async()
    tasks = [asyncio.create_task(queue.top_up(connections[0]))]
    tasks += [asyncio.create_task(queue.go_on_claiming(one)) for one in connections[1:]]
    marks = []
    for number in range(round(spec.seconds / spec.window)):
        await asyncio.sleep(max(0.0, began + (number + 1) * spec.window - monotonic()))
        marks.append(queue.count)
    ended = monotonic()
    await end(tasks)
    windows = [(b - a) / spec.window for a, b in zip([0, *marks], marks, strict=False)]
    stage.done(count=marks[-1], began=began, ended=ended, windows=windows)
    for connection in connections:
        connection.terminate()


async def hold(spec: Spec, stage: Stage) -> None:
    """Hold a snapshot for as long as a trial lasts, as a long report or a backup does."""
    connection = await connect_postgres(spec)
    await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await connection.fetchval("SELECT count(*) FROM pg_class")
    stage.ready(isolation="REPEATABLE READ")
    began = await stage.wait_async()
    await asyncio.sleep(spec.seconds)
    stage.done(count=0, began=began, ended=monotonic())
    with contextlib.suppress(Exception):  # whatever it is, it only held
        await connection.close()


UNMEASURED = {"prepare": prepare, "fill": fill}
MEASURED = {"churn": churn, "hold": hold}


def main() -> None:
    spec = spec_of(sys.argv)
    if spec.task in UNMEASURED:
        asyncio.run(UNMEASURED[spec.task](spec))
        say(event="done")
    else:
        asyncio.run(MEASURED[spec.task](spec, Stage("plain", "")))


if __name__ == "__main__":
    main()
