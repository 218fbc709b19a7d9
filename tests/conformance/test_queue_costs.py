"""What claims and settles cost: how many statements, however many jobs there are."""

from typing import Any

import pytest

from tests.choices import async_only
from tests.consuming import statements
from tests.databases import Database

pytestmark = async_only  # what is asked of the database is the same

JOBS = 1_000

CLAIM = {
    "postgres": {"claims.claim": 1},
    "mysql": {"claims.lock_ready": 1, "claims.take": 1, "claims.lock": 1},
    "sqlite": {"claims.lock_ready": 1, "claims.take": 1, "claims.lock": 1},
}
SETTLE = {
    "postgres": {"settles.ack": 1},
    "mysql": {"settles.lock": 1, "settles.complete": 1, "settles.unlock": 1},
    # Where a statement costs no round trip, many small ones do no harm.
    "sqlite": {"settles.lock": 1, "settles.complete": 10, "settles.unlock": 1},
}


async def test_a_thousand_jobs_are_claimed_and_acked_in_a_handful_of_statements(
    mq: Any, database: Database
) -> None:
    q = mq.queue("q")
    await q.put_many(range(2 * JOBS))
    await q.ack(await q.try_poll_many(JOBS))
    with statements(mq) as claim:
        jobs = await q.try_poll_many(JOBS)
    with statements(mq) as settle:
        await q.ack(jobs)
    assert [job.payload for job in jobs] == list(range(JOBS, 2 * JOBS))
    # It need not look, since it found all that it had asked for.
    assert counted(claim) == CLAIM[database.dialect]
    assert counted(settle) == SETTLE[database.dialect]


@pytest.mark.parametrize("limited", [False, True])
async def test_a_claim_begins_at_the_first_job_that_a_look_saw(mq: Any, *, limited: bool) -> None:
    q = mq.queue("q")
    if limited:
        await q.configure(rate=100, rate_period=60)
    await q.put_many(range(3))
    with statements(mq) as seen:
        (job,) = await q.try_poll_many(1)
    due_at = round(job.due_at.timestamp() * 1_000_000)
    (claim,) = [s for s in seen if s.name in {"claims.claim", "claims.lock_ready"}]
    # With a rate, a look tells when a job may be started, which may be later than it is due.
    assert (due_at in claim.params) is not limited


def counted(seen: list[Any]) -> dict[str, int]:
    names = [statement.name for statement in seen]
    return {name: names.count(name) for name in names}
