"""What needs attention, from what was looked at."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rowmq.inspection import QueueBacklog
from rowmq.message import Level, Pipelines, WorkerInfo
from rowmq.overview import GroupTraffic, Traffic
from rowmq.web.attention import ALIKE_MAX, Notice, notices
from rowmq.web.callers import Caller
from rowmq.web.sampling import Snapshot

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
ALL = Caller.loopback()


def group(name: str = "billing", topic: str = "orders", **what: Any) -> GroupTraffic:
    zero = {"acked": 0, "lag": 0, "in_flight": 0, "subscribers": 1, "expired": 0, "dead_letters": 0}
    return GroupTraffic(topic=topic, group=name, **(zero | what))


def queue(**what: Any) -> QueueBacklog:
    known: dict[str, Any] = dict.fromkeys(
        ("due", "locks", "put_lately", "completed_lately", "failed_lately"), 0
    )
    known |= {"name": "emails", "paused": False, "counts": {}, "capped": False}
    known |= dict.fromkeys(("oldest_due_at", "max_in_flight", "rate", "rate_period"))
    return QueueBacklog(**(known | what))


def found(
    *groups: GroupTraffic,
    before: tuple[GroupTraffic, ...] | None = None,
    queues: list[QueueBacklog] | None = None,
    workers: list[WorkerInfo] | None = None,
    caller: Caller = ALL,
) -> list[Notice]:
    now = Traffic(at=NOW, topics=(), groups=groups)
    began = Traffic(at=NOW - HOUR / 4, topics=(), groups=groups if before is None else before)
    pipelines = Pipelines(readers=(), writers=())
    snapshot = Snapshot(now, queues or [], workers or [], [], pipelines, began, (), 2.0)
    return notices(snapshot, caller)


def test_nothing_is_nothing() -> None:
    assert (
        found(group(lag=3, in_flight=3, oldest_at=NOW), queues=[queue(due=5, oldest_due_at=NOW)])
        == []
    )


def test_letters_that_come_are_worse_than_letters_that_wait() -> None:
    (waiting,) = found(group(dead_letters=7))
    (growing,) = found(group(dead_letters=7), before=(group(dead_letters=5),))
    assert (waiting.level, growing.level) == (Level.WARNING, Level.PROBLEM)
    assert growing.path == ("topics", "orders", "letters")
    assert growing.hint.startswith("2 came in the last 15 min.")


def test_a_group_that_nobody_reads_for() -> None:
    (notice,) = found(group(lag=3, subscribers=0, oldest_at=NOW - HOUR))
    assert notice.kind == "groups without subscribers"


def test_messages_that_were_lost_come_first() -> None:
    first, second = found(
        group(lag=3, subscribers=0, oldest_at=NOW - HOUR),
        group("b", expired=9),
        before=(group(), group("b", expired=4)),
    )
    assert first.kind == "messages lost to retention"
    assert "5 messages" in first.after
    assert second.level == Level.WARNING


def test_a_queue_that_is_paused_with_work_in_it() -> None:
    (notice,) = found(queues=[queue(paused=True, due=3, oldest_due_at=NOW - HOUR)])
    assert notice.kind == "queues paused with work"
    assert notice.path == ("queues", "emails")


def test_a_worker_that_is_silent() -> None:
    silent = WorkerInfo(
        name="w", app="", host="web-1", pid=1, version="1", handlers=(), started_at=NOW - HOUR,
        seen_at=NOW - HOUR, alive=False, running=(),
    )  # fmt: skip
    (notice,) = found(workers=[silent])
    assert "1 h" in notice.after


def test_many_of_a_kind_are_a_few_and_a_number() -> None:
    told = found(*(group(f"g{n}", dead_letters=1) for n in range(10)))
    assert len(told) == ALIKE_MAX + 1
    assert told[-1].before.startswith("7 more")


def test_what_is_out_of_scope_is_not_told() -> None:
    some = Caller(name="ann", topics=("orders*",), queues=())
    told = found(
        group(dead_letters=1),
        group(topic="secret", dead_letters=1),
        queues=[queue(failed_lately=3)],
        caller=some,
    )
    assert [notice.path[1] for notice in told] == ["orders"]


# --- what was not seen whole ----------------------------------------------------------------------


def test_a_group_of_which_not_all_is_seen_is_never_passed_over() -> None:
    (unseen,) = found(group(capped=True, oldest_capped=True))
    assert (unseen.level, unseen.name) == (Level.WARNING, "billing")
    assert "more partitions than are looked at" in unseen.after
    assert unseen.path == ("topics", "orders", "groups", "billing")
    (waiting,) = found(group(lag=30_000, oldest_at=NOW, oldest_capped=True))
    assert "longer than is shown" in waiting.hint
    assert found(group(oldest_capped=True)) == []


def test_what_is_known_to_be_bad_is_said_instead() -> None:
    (late,) = found(group(lag=7, capped=True, oldest_at=NOW - HOUR))
    assert late.kind == "groups far behind"
    assert "7+ messages" in late.after


def test_more_topics_than_are_looked_at() -> None:
    traffic = Traffic(at=NOW, topics=(), groups=(group(),), capped=True)
    pipelines = Pipelines(readers=(), writers=())
    (notice,) = notices(Snapshot(traffic, [], [], [], pipelines, traffic, (), 2.0), ALL)
    assert notice.level is Level.WARNING
    assert "more topics or groups" in notice.before
