"""The peers: on which databases each can be played, and how it is quickest.

How much a peer is given to do is about what it does in two seconds or three.
"""

from typing import Any

import msgspec

from rowmq.bench.scenarios.plan import BATCH_HANDLERS, NO_ARCHIVE, Entry, Plan, handles, sends

__all__ = ["PEERS", "Peer", "handled_by_peers", "sent_by_peers"]

MYSQL = frozenset({"mysql", "mariadb"})


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer: what it is called, where it runs, and what it is given to do."""

    name: str
    databases: frozenset[str]
    single: int
    """How many messages it sends one by one."""
    bulk: int | None = None
    """How many it sends in batches; None if it has no call for that."""
    handled: int
    """How many it handles in one process."""
    ways: tuple[dict[str, Any], ...] = ({},)
    """The ways in which it handles them, of which the quickest counts."""


PEERS = (
    Peer(
        name="pgqueuer",
        databases=frozenset({"postgresql"}),
        single=4_000,
        bulk=50_000,
        handled=40_000,
        ways=({"batch": 1_000}, {"batch": 1_000, "callers": 2}),
    ),
    Peer(
        name="pgmq",
        databases=frozenset({"postgresql"}),
        single=4_000,
        bulk=50_000,
        handled=40_000,
        ways=(
            {"batch": 100, "callers": 4},
            {"batch": 1_000},
            {"batch": 1_000, "callers": 4},
            {"batch": 1_000, "callers": 4, "keep": False},
        ),
    ),
    Peer(
        name="procrastinate",
        databases=frozenset({"postgresql"}),
        single=1_500,
        bulk=20_000,
        handled=2_000,
        ways=({}, {"callers": 4}, {"callers": 4, "keep": False}),
    ),
    Peer(
        name="huey",
        databases=frozenset({"sqlite", "postgresql"}),
        single=4_000,
        handled=4_000,
        # It takes a task out of the database before it runs it: there is nothing to keep.
        ways=({"keep": False}, {"callers": 2, "keep": False}),
    ),
    Peer(
        name="sqlbroker",
        databases=frozenset({"postgresql", "sqlite"}) | MYSQL,
        single=1_500,
        bulk=10_000,
        handled=10_000,
        ways=(
            {"batch": 1_000},
            {"batch": 1_000, "keep": False},
            {"batch": 1_000, "handler": "batch"},
            {"batch": 1_000, "handler": "batch", "keep": False},
        ),
    ),
)


def playing(plan: Plan) -> list[Peer]:
    """The peers that can be played on a database."""
    return [peer for peer in PEERS if peer.name in plan.peers and plan.database in peer.databases]


def sent_by_peers(plan: Plan, *, batch: int = 1, callers: int = 1) -> list[Entry]:
    """What the peers send, one by one or in batches."""
    found = []
    for peer in playing(plan):
        messages = peer.single * (1 if callers == 1 else 2) if batch == 1 else peer.bulk
        if messages is not None:
            count = plan.some(messages)
            found.append(sends(peer.name, "", messages=count, batch=batch, callers=callers))
    return found


def handled_by_peers(plan: Plan, *, processes: int = 1, only: str | None = None) -> list[Entry]:
    """What the peers handle, in every way that may be the quickest."""
    return [
        handles(
            peer.name,
            way_name(way),
            messages=plan.some(peer.handled) * processes,
            processes=processes,
            **way,
        )
        for peer in playing(plan)
        if only in (None, peer.name)
        for way in peer.ways
    ]


def way_name(way: dict[str, Any]) -> str:
    """A way of handling, in words."""
    words = []
    if "batch" in way:
        words.append(f"batches of {way['batch']:,}")
    if "callers" in way:
        words.append(f"{way['callers']} at once")
    if way.get("handler") == "batch":
        words.append(BATCH_HANDLERS)
    if way.get("keep") is False:
        words.append(NO_ARCHIVE)
    return ", ".join(words)
