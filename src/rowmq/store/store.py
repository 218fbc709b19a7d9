"""All operations for one database, in one value."""

import msgspec

from rowmq.store.archive import Archive
from rowmq.store.claims import Claims
from rowmq.store.dialect import Dialect
from rowmq.store.groups import Groups
from rowmq.store.holds import Holds
from rowmq.store.jobs import Jobs
from rowmq.store.leases import Leases
from rowmq.store.letters import Letters
from rowmq.store.lines import Lines
from rowmq.store.listing import Listing
from rowmq.store.positions import Positions
from rowmq.store.queues import Queues
from rowmq.store.retention import Retention
from rowmq.store.schedules import Schedules
from rowmq.store.schema import Schema
from rowmq.store.seeking import Seeking
from rowmq.store.settles import Settles
from rowmq.store.staged_jobs import StagedJobs
from rowmq.store.staging import Staging
from rowmq.store.ticks import Ticks
from rowmq.store.topics import Topics
from rowmq.store.workers import Workers

__all__ = ["Store", "store_of"]


class Store(msgspec.Struct, frozen=True):
    """What a client can ask of a database, by noun."""

    dialect: Dialect
    topics: Topics
    groups: Groups
    leases: Leases
    letters: Letters
    retention: Retention
    seeking: Seeking
    positions: Positions
    queues: Queues
    jobs: Jobs
    claims: Claims
    settles: Settles
    holds: Holds
    archive: Archive
    listing: Listing
    workers: Workers
    schedules: Schedules
    ticks: Ticks
    staging: Staging
    staged_jobs: StagedJobs
    schema: Schema


def store_of(
    dialect: Dialect,
    topics: Topics,
    schema: Schema,
    *,
    staging: type[Staging],
    leases: type[Leases] = Leases,
    queues: type[Queues] = Queues,
    jobs: type[Jobs] = Jobs,
    claims: type[Claims] = Claims,
    settles: type[Settles] = Settles,
) -> Store:
    """The store of a dialect, from the parts that differ in shape."""
    groups = Groups(dialect, topics)
    owned = leases(dialect, topics, groups)
    letters = Letters(dialect, topics, groups, owned)
    retention = Retention(dialect, topics, groups, owned)
    seeking = Seeking(dialect, topics, groups, owned)
    known = queues(dialect)
    live = jobs(known, Lines(known))
    claimed = claims(live)
    settled = settles(claimed)
    archive = Archive(claimed)
    ticks = Ticks(live)
    staged = staging(topics, live)
    return Store(
        dialect=dialect,
        topics=topics,
        groups=groups,
        leases=owned,
        letters=letters,
        retention=retention,
        seeking=seeking,
        positions=Positions(dialect, groups, owned, seeking),
        queues=known,
        jobs=live,
        claims=claimed,
        settles=settled,
        holds=Holds(settled),
        archive=archive,
        listing=Listing(archive),
        workers=Workers(dialect),
        schedules=Schedules(live, topics, ticks),
        ticks=ticks,
        staging=staged,
        staged_jobs=StagedJobs(staged, live),
        schema=schema,
    )
