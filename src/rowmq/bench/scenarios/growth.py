"""What becomes of the rate when much waits, much is kept, a snapshot is held, or many work."""

from collections.abc import Iterable

from rowmq.bench.playing import Spec
from rowmq.bench.scenarios.plan import Entry, Plan, Scenario, handles
from rowmq.bench.trial import Part

__all__ = ["growth"]

CLAIMED = 50_000
BATCH = 100
WAITING = (10_000, 100_000, 1_000_000, 5_000_000)
ARCHIVED = 1_000_000
BACKLOG = 10_000
WORKERS = (1, 16, 64, 256)
SHARED = 200_000
"""How many jobs workers share: so many that all of them claim several times, whoever is first."""
CONNECTIONS_EACH = 4
"""How many connections a worker may have: its pool, and those that keep locks and schedules."""

PROCESSES = 2
"""Over how many processes workers are spread, if there are several."""


def growth(plan: Plan) -> Iterable[Scenario]:
    """All of it on PostgreSQL; elsewhere what waits."""
    yield waiting(plan)
    if plan.database == "postgresql":
        yield snapshot(plan)
        yield workers(plan)


def waiting(plan: Plan) -> Scenario:
    """The same number of jobs, claimed from backlogs of different sizes."""
    claimed = plan.some(CLAIMED)
    sizes = [size for size in WAITING if size <= plan.growth_max]

    def claims(variant: str, backlog: int, archived: int = 0) -> Entry:
        return handles(
            "rowmq",
            variant,
            messages=claimed,
            batch=BATCH,
            backlog=backlog,
            archived=archived,
            reference=backlog == WAITING[0] and not archived,
        )

    entries = [claims(f"{size:,} waiting", size) for size in sizes]
    archived = min(ARCHIVED, plan.growth_max)
    entries.append(claims(f"{archived:,} archived", WAITING[0], archived))
    return Scenario(
        name="growth-waiting",
        title=f"claim and ack {claimed:,} jobs in batches of {BATCH}, with more behind them",
        entries=tuple(entries),
    )


def snapshot(plan: Plan) -> Scenario:
    """Jobs are put and claimed all the time, while another session holds a snapshot, or not."""
    return Scenario(
        name="growth-snapshot",
        title=f"put, claim and ack for {plan.seconds:.0f} s, {BACKLOG:,} waiting",
        entries=tuple(
            churns(plan, player, held=held)
            for player in ("rowmq", "plain")
            for held in (False, True)
        ),
        once=True,
    )


def churns(plan: Plan, player: str, *, held: bool) -> Entry:
    window = min(10.0, plan.seconds / 3)
    spec = Spec(task="churn", batch=BATCH, backlog=BACKLOG, seconds=plan.seconds, window=window)
    holder = Part("plain", Spec(task="hold", seconds=plan.seconds), counted=False)
    return Entry(
        subject=player,
        variant="a snapshot held" if held else "no snapshot held",
        parts=(Part(player, spec), *((holder,) if held else ())),
        fill=Spec(task="fill", backlog=BACKLOG),
        reference=player == "rowmq" and not held,
    )


def workers(plan: Plan) -> Scenario:
    """Apps of their own, each with its own connections and its own claims; as many as the server
    has connections for.
    """
    claimed = plan.some(SHARED)
    return Scenario(
        name="growth-workers",
        title=f"claim and ack {claimed:,} jobs in batches of {BATCH}, by many workers in "
        f"{PROCESSES} processes",
        entries=tuple(
            handles(
                "rowmq",
                f"{count:,} workers" if count > 1 else "1 worker",
                messages=claimed,
                processes=1 if count == 1 else PROCESSES,
                batch=BATCH,
                workers=1 if count == 1 else count // PROCESSES,
                notify=False,
                gather=True,
                idle=1.0,
                reference=count == 16,
            )
            for count in (WORKERS[:2] if plan.brief else WORKERS)
            if count * CONNECTIONS_EACH < plan.connections_max
        ),
    )
