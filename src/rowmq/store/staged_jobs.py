"""Staged jobs: what Spark's tasks write, put into a queue at once. See `staging`.

Jobs that nothing can stand in the way of are put by statements whose number does not depend on how
many there are. Those with keys, or in lines, go the way of all others, in runs that fit into
memory, but in the same transaction.

Whichever way it goes, a job that says no time is due when its batch was stamped, and ids rise with
the rows: so lines, and claims, keep the order of the rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from rowmq.store.dialect import as_bytes, as_text, as_text_or_none
from rowmq.store.jobs import Jobs
from rowmq.store.postings import Offer, Posting, oversized
from rowmq.store.queues import IDS_A_BLOCK, LaneName, wake_name
from rowmq.store.staging import Stage, Staging, Version, lost
from rowmq.store.statement import Operation, Row, Statement

__all__ = ["CONFLICTS", "IdRun", "StagedJobs", "id_runs"]

CONFLICTS = ("error", "ignore", "update")
"""What becomes of a job whose key a live job has: it is an error, or it is left out, or it takes
the other's place.
"""

RUN_ROWS = 5_000
RUN_BYTES = 16 * 1024 * 1024
"""How many staged jobs are read at a time, and about how large they are together."""


class IdRun(NamedTuple):
    """Rows of a stage, by their numbers, whose ids have no gap, and how far away those are."""

    stage: Stage
    first: int
    last: int
    distance: int


class StagedJobs:
    """How stages are put into queues, for one dialect."""

    def __init__(self, staging: Staging, jobs: Jobs) -> None:
        self.staging = staging
        self.jobs = jobs
        self.queues = jobs.queues
        self.dialect = jobs.dialect

    def put(
        self,
        queue: str,
        stages: Sequence[Stage],
        version: Version | None,
        *,
        conflict: str,
        notify: bool,
    ) -> Operation[bool]:
        """Put what is staged into a queue, all of it or nothing, in the order of the stages; False
        if that was done before.

        `conflict` is one of CONFLICTS. `notify` says whether pollers are to be woken, where the
        database has a way to.
        """
        if not (yield from self.staging.begin(stages, version)):
            return False
        batch = stages[0].id
        largest = yield from self.make_lanes(stages)
        yield from self.staging.stamp(batch)
        yield from self.staging.locate("staged_jobs.lanes", LANES, batch, ("home_id",))
        yield from self.staging.check_count(stages)
        blocks = yield from self.reserve(sum(stage.rows for stage in stages))
        for run in id_runs(stages, blocks):
            if run.stage.plain:
                yield from self.put_plain(run)
            else:
                yield from self.put_others(queue, run, largest, conflict)
        yield from self.jobs.tell([wake_name(queue)] if notify else ())
        return True

    def reserve(self, jobs: int) -> Operation[list[int]]:
        """Blocks of ids for so many jobs, each higher than those before."""
        blocks: list[int] = []
        while len(blocks) * IDS_A_BLOCK < jobs:
            blocks.append((yield from self.queues.reserve()))
        return blocks

    def make_lanes(self, stages: Sequence[Stage]) -> Operation[int]:
        """See that the lanes of a batch are there, and that no payload is too large; how large the
        largest is.
        """
        found = yield Statement("staged_jobs.totals", self.dialect.sql(TOTALS), (stages[0].id,))
        sizes: dict[LaneName, int] = {}
        jobs = 0
        for queue, kind, precedence, count, size in found:
            sizes[LaneName(as_text(queue), as_text(kind), precedence)] = size
            jobs += int(count)
        if jobs != sum(stage.rows for stage in stages):
            raise lost("the server crashed")
        lanes, _ = yield from self.queues.lanes(sizes)
        for name, size in sizes.items():
            if size > lanes[name].payload_bytes_max:
                raise oversized(name.queue, size, lanes[name].payload_bytes_max)
        return max(sizes.values())

    def put_plain(self, run: IdRun) -> Operation[None]:
        """Put jobs that have neither a key nor a line."""
        rows = (run.distance, run.stage.id, run.first, run.last)
        yield Statement("staged_jobs.insert", self.dialect.sql(INSERT), rows)
        ids = (run.first + run.distance, run.last + run.distance)
        yield Statement("staged_jobs.ready", self.dialect.sql(READY), ids)

    def put_others(self, queue: str, run: IdRun, largest: int, conflict: str) -> Operation[None]:
        """Put jobs that others may stand in the way of."""
        result = yield Statement("staged_jobs.parts", self.dialect.sql(PARTS), (run.stage.id,))
        lanes = {part: LaneName(queue, as_text(kind), order) for part, kind, order in result}
        step = max(1, min(RUN_ROWS, RUN_BYTES // max(largest, 1)))
        for first in range(run.first, run.last + 1, step):
            bounds = (run.stage.id, first, min(first + step - 1, run.last))
            result = yield Statement("staged_jobs.read", self.dialect.sql(READ), bounds)
            postings = [(row[0] + run.distance, posting_of(row, lanes)) for row in result]
            put = [p for p in postings if conflict == "error" or p[1].key is None]
            if put:
                yield from self.jobs.put([posting for _, posting in put], [id for id, _ in put])
            keyed = [p for p in postings if conflict != "error" and p[1].key is not None]
            if offered := standing(keyed, can_update=conflict == "update"):
                offers = [Offer(posting, conflict == "update") for _, posting in offered]
                yield from self.jobs.offer(offers, [id for id, _ in offered], memo=[])


def id_runs(stages: Sequence[Stage], blocks: Sequence[int]) -> Iterator[IdRun]:
    """Give the rows of stages the ids of blocks, in their order, in runs as long as they can be."""
    ids = joined(blocks)
    free = next(ids, range(0))
    for stage in stages:
        number = 0
        while number < stage.rows:
            if not free:
                free = next(ids)
            count = min(stage.rows - number, len(free))
            yield IdRun(stage, number, number + count - 1, free.start - number)
            number += count
            free = free[count:]


def joined(blocks: Sequence[int]) -> Iterator[range]:
    """The ids of blocks, those in one range that follow each other."""
    current = range(0)
    for first in blocks:
        if first == current.stop and current:
            current = range(current.start, first + IDS_A_BLOCK)
            continue
        if current:
            yield current
        current = range(first, first + IDS_A_BLOCK)
    if current:
        yield current


def standing(
    postings: Iterable[tuple[int, Posting]], *, can_update: bool
) -> list[tuple[int, Posting]]:
    """Of postings with the same key the one that stands in the end, with its own id, and so in its
    own place; as if each were offered after the one before.
    """
    found: dict[tuple[str, str | None], tuple[int, Posting]] = {}
    for id, posting in postings:
        key = (posting.lane.kind, posting.key)
        if key not in found:
            found[key] = (id, posting)
        elif can_update:
            before, after = found[key][1], posting
            if before.ordering_key is not None:  # an update stays in its line
                after = msgspec.structs.replace(posting, ordering_key=before.ordering_key)
            if after != before:
                found[key] = (id, after)
    return list(found.values())


def posting_of(row: Row, lanes: dict[int, LaneName]) -> Posting:
    """The posting of a staged job."""
    _, part, encoding, payload, key, headers, ordering_key, due_at = row
    return Posting(
        lane=lanes[part],
        at=due_at,
        delay_us=0,
        data=as_bytes(payload),
        encoding=encoding,
        headers=as_text_or_none(headers),
        key=as_text_or_none(key),
        ordering_key=as_text_or_none(ordering_key),
    )


TOTALS = """
    SELECT t.target, t.name, t.precedence, SUM(t.messages), MAX(t.largest_bytes)
    FROM {stages} g {join} {stage_parts} t ON t.stage_id = g.id
    WHERE g.batch_id = ? GROUP BY t.target, t.name, t.precedence"""

# DISTINCT: else MySQL takes the query for a part of the UPDATE, of the table that it reads.
LANES = """
    SELECT DISTINCT x.stage_id, x.part, l.id AS home_id
    FROM {stages} g {join} {stage_parts} x ON x.stage_id = g.id
    {join} {queues} q ON q.queue = x.target
    {join} {lanes} l ON l.queue_id = q.id AND l.kind = x.name AND l.precedence = x.precedence
    WHERE g.batch_id = ?"""

INSERT = """
    INSERT INTO {jobs} (id, created_at, due_at, lane_id, encoding, headers, payload)
    SELECT r.number + ?, g.published_at, COALESCE(r.due_at, g.published_at), t.home_id, r.encoding,
           r.headers, r.payload
    FROM {staged} r {join} {stages} g ON g.id = r.stage_id
    LEFT JOIN {stage_parts} t ON t.stage_id = r.stage_id AND t.part = r.part
    WHERE r.stage_id = ? AND r.number BETWEEN ? AND ?"""

READY = """
    INSERT INTO {ready} (lane_id, due_at, job_id, attempts, deliveries)
    SELECT lane_id, due_at, id, 0, 0 FROM {jobs} WHERE id BETWEEN ? AND ?"""

PARTS = "SELECT part, name, precedence FROM {stage_parts} WHERE stage_id = ?"

READ = """
    SELECT r.number, r.part, r.encoding, r.payload, r.name, r.headers, r.ordering_key,
           COALESCE(r.due_at, g.published_at)
    FROM {staged} r {join} {stages} g ON g.id = r.stage_id
    WHERE r.stage_id = ? AND r.number BETWEEN ? AND ? ORDER BY r.number"""
