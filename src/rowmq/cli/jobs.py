"""`rowmq jobs`: the jobs of a queue."""

from collections.abc import Callable
from datetime import timedelta
from shlex import quote
from typing import Any

import click
from rich.text import Text

import rowmq
from rowmq.cli import names, options
from rowmq.cli.commands import Section
from rowmq.cli.failing import NotFound
from rowmq.cli.options import Database, confirm
from rowmq.cli.queues import find_queue
from rowmq.cli.showing import (
    NEW,
    Cell,
    compact,
    duration,
    emit,
    err,
    facts,
    moment,
    out,
    payload_fields,
    plural,
    pulse,
    show_payload,
    table,
    visible,
    visible_lines,
)
from rowmq.cli.sources import (
    BATCH,
    Item,
    argument_items,
    batches,
    open_sources,
    parse_argument,
    parse_json,
    parse_text,
    reading,
    refused,
)
from rowmq.cli.values import DURATION, HEADER, MOMENT
from rowmq.errors import InvalidInput

__all__ = ["jobs"]

LIVE = ("pending", "processing", "retryable")
FINISHED = ("completed", "failed")


@click.group(cls=Section)
def jobs() -> None:
    """List, show, put, retry, drop or prune jobs.

    For example:
      rowmq jobs emails --state failed
      rowmq jobs show emails 1003
      rowmq jobs put emails '{"to": "ann"}' --delay 5m
      rowmq jobs retry emails --all
    """


@jobs.command()
@click.argument("queue", shell_complete=names.queues)
@click.option(
    "--state",
    type=click.Choice([*LIVE, *FINISHED, "live", "all"]),
    default="live",
    show_default=True,
    help="Which jobs: live are the first three.",
)
@click.option("--key", help="The live job with this key.")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many."
)
@options.database
@options.as_json
def ls(
    database: Database, queue: str, *, state: str, key: str | None, limit: int, as_json: bool
) -> None:
    """List jobs of a QUEUE.

    Live ones soonest first, finished ones newest first.

    For example:
      rowmq jobs ls emails
      rowmq jobs ls emails --state failed --limit 10 --json
    """
    with database.open() as mq:
        find_queue(mq, queue)
        handle = mq.queue(queue)
        found = look(handle, state, key, limit)
        empty = "" if found else none_of(handle, state, key)
    if as_json:
        emit([job_fields(job) for job in found])
        return
    rows = [
        (
            Text(str(job.id)),
            job.state,
            job.finished_at or job.due_at,
            job.priority,
            job.attempts,
            job.key,
            job.error if state == "failed" else compact(job.payload),
        )
        for job in found
    ]
    when, what = (
        "finished" if state in FINISHED else "due",
        "error" if state == "failed" else "payload",
    )
    columns = ("id", "state", when, "prio", "tries", "key", what)
    table(columns, rows, empty=empty)
    if len(rows) >= limit:
        err().print(f"the first {limit}; there may be more: --limit", style="dim")


def look(queue: rowmq.Queue[Any], state: str, key: str | None, limit: int) -> list[rowmq.Job[Any]]:
    """Jobs of a state, or of some."""
    if key is not None:
        job = queue.read(key)
        return [] if job is None else [job]
    found: list[rowmq.Job[Any]] = []
    if state in LIVE:
        return queue.live(state=rowmq.State(state), limit=limit)
    if state in FINISHED:
        return queue.archive(state=rowmq.State(state), limit=limit)
    found = queue.live(limit=limit)
    if state == "all" and len(found) < limit:
        found += queue.archive(limit=limit - len(found))
    return found


def none_of(queue: rowmq.Queue[Any], state: str, key: str | None) -> str:
    """That there are no such jobs, and where there are others."""
    if key is not None:
        return f"queue {queue.name!r} has no live job with the key {key!r}"
    none = f"queue {queue.name!r} has no{'' if state == 'all' else f' {state}'} jobs"
    counts = queue.counts()
    others = [f"{counts[other]:,} {other}" for other in (*LIVE, *FINISHED) if counts[other]]
    if not others:
        return none
    return f"{none}, but {', '.join(others)}: rowmq jobs {quote(queue.name)} --state all"


def job_fields(job: rowmq.Job[Any]) -> dict[str, Any]:
    return {
        "id": job.id,
        "queue": job.queue,
        "state": job.state.value,
        "kind": job.kind or None,
        "key": job.key,
        "ordering_key": job.ordering_key,
        "priority": job.priority,
        "attempts": job.attempts,
        "deliveries": job.deliveries,
        "created_at": job.created_at,
        "due_at": job.due_at,
        "finished_at": job.finished_at,
        "error": job.error,
        "headers": dict(job.headers),
        **payload_fields(job.payload),
    }


@jobs.command()
@click.argument("queue", shell_complete=names.queues)
@click.argument("id", type=int)
@options.database
@options.as_json
def show(database: Database, queue: str, id: int, *, as_json: bool) -> None:
    """Show a job, with its payload and its errors.

    It may be alive or finished.

    For example:
      rowmq jobs show emails 1003
    """
    with database.open() as mq:
        find_queue(mq, queue)
        handle = mq.queue(queue)
        job, errors = handle.get(id), handle.errors(id)
    if job is None:
        raise NotFound(f"queue {queue!r} has no job {id}: rowmq jobs ls lists them")
    if as_json:
        told = [{"attempt": e.attempt, "failed_at": e.failed_at, "error": e.error} for e in errors]
        emit(job_fields(job) | {"errors": told})
        return
    shown: dict[str, Cell] = {
        name.replace("_", " ").removesuffix(" at"): value
        for name, value in job_fields(job).items()
        if name not in ("payload", "encoding", "headers", "id") and value is not None
    }
    shown["state"] = job.state
    shown["error"] = None if job.error is None else Text(visible_lines(job.error))
    shown |= {f"header {name}": value for name, value in job.headers.items()}
    for error in errors:
        why = visible_lines(error.error or "no error")
        shown[f"attempt {error.attempt}"] = Text(f"{moment(error.failed_at)} {why}")
    facts({"job": str(job.id)} | shown)
    show_payload(job.payload)


@jobs.command()
@click.argument("queue", shell_complete=names.queues)
@click.argument("payloads", metavar="[PAYLOAD]...", nargs=-1)
@options.files
@click.option("--delay", type=DURATION, help="Due after so long: 30s, 5m, 2h.")
@click.option("--at", type=MOMENT, help="Due at a time: 2026-03-01T09:30:00Z.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher is done first.")
@click.option("--key", help="The key, of which there is one live job at most.")
@click.option("--ordering-key", help="Jobs with the same one are done one at a time, in order.")
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="A header; may be given again."
)
@click.option("--raw", is_flag=True, help="Payloads are text, and not JSON.")
@options.database
@options.as_json
def put(
    database: Database,
    queue: str,
    payloads: tuple[str, ...],
    *,
    files: tuple[str, ...],
    key: str | None,
    headers: tuple[tuple[str, str], ...],
    raw: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Put jobs into a QUEUE from arguments, files or stdin.

    A PAYLOAD is JSON, or else text; what begins with { or [ must be JSON. Files, and stdin if it is
    no terminal, have a JSON value to a line; 1,000 are put at a time. A QUEUE that is not there is
    made, and said to be new.

    For example:
      rowmq jobs put emails '{"to": "ann"}' --delay 5m --priority 3
      rowmq jobs put emails --file emails.jsonl
    """
    if how["delay"] is not None and how["at"] is not None:
        raise click.UsageError("give --delay or --at, but not both")
    if key is not None and (len(payloads) != 1 or files):
        raise click.UsageError("--key names one job: give one PAYLOAD")
    how["headers"] = dict(headers) or None
    sources = open_sources(files, arguments=bool(payloads))
    of_argument, of_line = (parse_text,) * 2 if raw else (parse_argument, parse_json)
    items = argument_items(payloads, of_argument)
    ids: list[int] = []
    with (
        database.open(create=True) as mq,
        reading(f"putting into {queue}", sources, quiet=as_json) as read,
    ):
        is_new = not as_json and mq.queue(queue).info() is None
        put = putter(mq.queue(queue), key, how)
        for batch in [items] if items else []:
            ids += put(batch, 0)
        for batch in batches(sources, of_line, read=read):
            ids += put(batch, len(ids))
    if as_json:
        emit({"queue": queue, "put": len(ids), "ids": ids})
    else:
        named = f": {', '.join(map(str, ids))}" if payloads and not files else ""
        where = f"{visible(queue)}{NEW if is_new and ids else ''}"
        out().print(f"put {plural(len(ids), 'job')} into {where}{named}", soft_wrap=True)


def putter(
    queue: rowmq.Queue[Any], key: str | None, how: dict[str, Any]
) -> Callable[[list[Item[Any]], int], list[int]]:
    """Puts a batch, and gives the ids of its jobs."""

    def put(batch: list[Item[Any]], done: int) -> list[int]:
        try:
            if key is not None:
                return [queue.put(batch[0].value, key=key, **how).id]
            return [job.id for job in queue.put_many([item.value for item in batch], **how)]
        except InvalidInput as error:
            raise refused(error, batch, done) from error

    return put


@jobs.command()
@click.argument("queue", shell_complete=names.queues)
@click.argument("ids", metavar="[ID]...", nargs=-1, type=int)
@click.option("--all", "everything", is_flag=True, help="All failed jobs of the queue.")
@options.database
@options.dry_run
@options.as_json
def retry(
    database: Database,
    queue: str,
    ids: tuple[int, ...],
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Have failed jobs be tried again.

    From their first attempt on. One whose key has a live job by now stays failed.

    For example:
      rowmq jobs retry emails 1003 1004
      rowmq jobs retry emails --all
    """
    if bool(ids) == everything:
        raise click.UsageError("give the ID of a failed job, or --all")
    with database.open() as mq:
        find_queue(mq, queue)
        handle = mq.queue(queue)
        failed = [id for id in ids if is_failed(handle, id)]
        if ids and not failed:
            raise NotFound(f"none of these is a failed job of queue {queue!r}")
        found = len(failed) if ids else handle.counts()["failed"]
        done = 0
        if not dry_run:
            with pulse(f"retrying {plural(found, 'job')}", total=found, quiet=as_json) as update:
                done = handle.retry(failed) if ids else retry_all(handle, found, update)
    if as_json:
        emit({"queue": queue, "retried": done, "found": found, "dry_run": dry_run})
    elif dry_run:
        out().print(f"would be retried: {plural(found, 'job')}")
    else:
        left = f"; {found - done:,} left as they are" if done < found else ""
        out().print(f"retried {plural(done, 'job')}{left}")


def retry_all(queue: rowmq.Queue[Any], total: int, update: Callable[[float], None]) -> int:
    """Retry the failed jobs, some at a time. Those that cannot be are passed over; those that fail
    again meanwhile are not taken again, since they were counted first.
    """
    done, left = 0, set[int]()
    while done < total:
        failed = queue.failed(limit=BATCH + len(left))
        batch = [job.id for job in failed if job.id not in left][: total - done]
        if not batch:
            break
        retried = queue.retry(batch)
        if retried < len(batch):
            still = queue.failed(limit=BATCH + len(left))
            left |= {job.id for job in still} & set(batch)
        done += retried
        update(done)
    return done


def is_failed(queue: rowmq.Queue[Any], id: int) -> bool:
    job = queue.get(id)
    return job is not None and job.state is rowmq.State.FAILED


@jobs.command()
@click.argument("queue", shell_complete=names.queues)
@click.argument("key")
@options.database
@options.dry_run
@options.yes
@options.as_json
def drop(
    database: Database, queue: str, key: str, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete the live job with a KEY.

    Also if it is being worked on.

    For example:
      rowmq jobs drop emails reminder-7
    """
    with database.open() as mq:
        find_queue(mq, queue)
        handle = mq.queue(queue)
        job = handle.read(key)
        if job is None:
            raise NotFound(f"queue {queue!r} has no live job with the key {key!r}")
        what = f"Job {job.id} of queue {queue!r}, which is {job.state.value}, will be deleted."
        if not dry_run:
            confirm(what, yes=yes)
            handle.drop(key)
    if as_json:
        emit(job_fields(job) | {"dropped": not dry_run})
    else:
        out().print(visible(f"would happen: {what}") if dry_run else f"dropped job {job.id}")


@jobs.command()
@click.argument("queue", shell_complete=names.queues)
@click.option("--older-than", type=DURATION, help="Finished longer ago than this: 7d.")
@click.option(
    "--state", type=click.Choice(FINISHED), help="Only these; failed ones must be named here."
)
@options.database
@options.yes
@options.as_json
def prune(
    database: Database,
    queue: str,
    *,
    older_than: timedelta | None,
    state: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete finished jobs.

    Those that the queue need not keep longer, or those that finished longer ago than --older-than.

    For example:
      rowmq jobs prune emails
      rowmq jobs prune emails --older-than 30d --state failed --yes
    """
    with database.open() as mq:
        find_queue(mq, queue)
        confirm(what_goes(queue, older_than, state), yes=yes)
        chosen = None if state is None else rowmq.State(state)
        with pulse(f"pruning {queue}", quiet=as_json):
            count = mq.queue(queue).prune(older_than=older_than, state=chosen)
    if as_json:
        emit({"queue": queue, "pruned": count})
    else:
        out().print(f"pruned {plural(count, 'job')} of {visible(queue)}")


def what_goes(queue: str, older_than: timedelta | None, state: str | None) -> str:
    """What `prune` is about, in a sentence."""
    if older_than is None:
        which, why = state or "finished", "it need not keep longer"
    else:
        which, why = state or "completed", f"finished more than {duration(older_than)} ago"
    return f"The {which} jobs of queue {queue!r} that {why} will be deleted."
