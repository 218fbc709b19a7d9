"""All operations for one database, in one value."""

import msgspec

from rowmq.store.access import Access
from rowmq.store.archive import Archive
from rowmq.store.backlogs import Backlogs
from rowmq.store.browsing import Browsing
from rowmq.store.claims import Claims
from rowmq.store.dialect import Dialect
from rowmq.store.finding import Finding
from rowmq.store.groups import Groups
from rowmq.store.histories import Histories
from rowmq.store.holds import Holds
from rowmq.store.jobs import Jobs
from rowmq.store.leases import Leases
from rowmq.store.letters import Letters
from rowmq.store.lines import Lines
from rowmq.store.listing import Listing
from rowmq.store.pipelines import Pipes
from rowmq.store.positions import Positions
from rowmq.store.previews import Previews
from rowmq.store.queues import Queues
from rowmq.store.receipts import Receipts
from rowmq.store.retention import Retention
from rowmq.store.rewriting import Rewriting
from rowmq.store.schedules import Schedules
from rowmq.store.schema import Schema
from rowmq.store.seeking import Seeking
from rowmq.store.settles import Settles
from rowmq.store.sorting import Sorting
from rowmq.store.staged_jobs import StagedJobs
from rowmq.store.staging import Staging
from rowmq.store.steering import Steering
from rowmq.store.ticks import Ticks
from rowmq.store.topics import Topics
from rowmq.store.traffic import Counting
from rowmq.store.workers import Workers

__all__ = ["Store", "store_of"]


class Store(msgspec.Struct, frozen=True):
    """What a client can ask of a database, by noun."""

    dialect: Dialect
    topics: Topics
    groups: Groups
    leases: Leases
    letters: Letters
    sorting: Sorting
    rewriting: Rewriting
    retention: Retention
    seeking: Seeking
    browsing: Browsing
    previews: Previews
    traffic: Counting
    positions: Positions
    pipes: Pipes
    queues: Queues
    jobs: Jobs
    claims: Claims
    settles: Settles
    holds: Holds
    archive: Archive
    listing: Listing
    finding: Finding
    histories: Histories
    backlogs: Backlogs
    steering: Steering
    receipts: Receipts
    workers: Workers
    schedules: Schedules
    ticks: Ticks
    staging: Staging
    staged_jobs: StagedJobs
    access: Access
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
    workers: type[Workers] = Workers,
) -> Store:
    """The store of a dialect, from the parts that differ in shape."""
    groups = Groups(dialect, topics)
    owned = leases(dialect, topics, groups)
    letters = Letters(dialect, topics, groups, owned)
    retention = Retention(dialect, topics, groups, owned)
    seeking = Seeking(dialect, topics, groups, owned)
    browsing = Browsing(topics)
    known = queues(dialect)
    live = jobs(known, Lines(known))
    claimed = claims(live)
    settled = settles(claimed)
    archive = Archive(claimed)
    listing = Listing(archive)
    ticks = Ticks(live)
    staged = staging(topics, live)
    return Store(
        dialect=dialect,
        topics=topics,
        groups=groups,
        leases=owned,
        letters=letters,
        sorting=Sorting(letters),
        rewriting=Rewriting(letters),
        retention=retention,
        seeking=seeking,
        browsing=browsing,
        previews=Previews(seeking, letters, browsing),
        traffic=Counting(dialect),
        positions=Positions(dialect, groups, owned, seeking),
        pipes=Pipes(dialect),
        queues=known,
        jobs=live,
        claims=claimed,
        settles=settled,
        holds=Holds(settled),
        archive=archive,
        listing=listing,
        finding=Finding(listing),
        histories=Histories(listing),
        backlogs=Backlogs(archive),
        steering=Steering(listing, settled),
        receipts=Receipts(listing),
        workers=workers(dialect),
        schedules=Schedules(live, topics, ticks),
        ticks=ticks,
        staging=staged,
        staged_jobs=StagedJobs(staged, live),
        access=Access(dialect),
        schema=schema,
    )
