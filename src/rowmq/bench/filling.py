"""What is there before RowMQ is measured: fresh tables, messages, jobs that wait, an archive.

Most are made by the database, as copies of some that were published or put: to send them all would
take longer than what is measured. Ids of jobs are those of the first ones and a shift, which is so
large that no id is given twice; messages follow the last one of their partition.
"""

from itertools import islice
from typing import Any

import rowmq
from rowmq.bench.link import Link
from rowmq.bench.playing import Spec
from rowmq.bench.sending import QUEUE, TOPIC, keys_of

__all__ = ["fill", "left", "make_room", "prepare", "release"]

AT_ONCE = 1_000
SHIFT = 10**9

COPY_JOBS = """
    INSERT INTO rowmq_jobs
        (id, created_at, due_at, lane_id, encoding, job_key, ordering_key, headers, payload)
    SELECT j.id + {shift}, j.created_at, j.due_at, j.lane_id, j.encoding, NULL, NULL, NULL,
           j.payload
    FROM rowmq_jobs j JOIN rowmq_ready r ON r.job_id = j.id ORDER BY j.id LIMIT {count}"""

COPY_READY = """
    INSERT INTO rowmq_ready (due_at, job_id, lane_id, attempts, deliveries)
    SELECT due_at, job_id + {shift}, lane_id, attempts, deliveries
    FROM rowmq_ready ORDER BY job_id LIMIT {count}"""

ARCHIVE = """
    INSERT INTO rowmq_completed
        (queue_id, finished_at, job_id, started_at, attempts, deliveries)
    SELECT l.queue_id, r.due_at, r.job_id, r.due_at, 1, 1
    FROM rowmq_ready r JOIN rowmq_lanes l ON l.id = r.lane_id"""


COPY_MESSAGES = """
    INSERT INTO rowmq_messages
        (partition_id, message_offset, published_at, encoding, message_id, headers, payload)
    SELECT partition_id, message_offset + {shift}, published_at, encoding,
           {id}, headers, payload
    FROM rowmq_messages WHERE message_offset <= {count} ORDER BY partition_id, message_offset"""

COPIED_ID = {
    "postgresql": "message_id || '+{shift}'",
    "sqlite": "message_id || '+{shift}'",
    "mysql": "concat(message_id, '+{shift}')",
    "mariadb": "concat(message_id, '+{shift}')",
}


def prepare(link: Link) -> None:
    """Make RowMQ's tables anew."""
    link.drop_tables("rowmq_")
    with rowmq.connect(link.url) as mq:
        mq.migrate()


def make_room(spec: Spec) -> None:
    """Have the partitions, or the queue, be there to which somebody sends."""
    with rowmq.connect(spec.url) as mq:
        if spec.source == "queue":
            mq.queue(QUEUE).put(b"")
            return
        messages = (rowmq.Message(payload=b"", key=key) for key in keys_of(spec))
        while some := list(islice(messages, AT_ONCE)):
            mq.publish_many(TOPIC, some)


def fill(link: Link, spec: Spec) -> None:
    """Have so many messages, or jobs, wait to be handled, for each group."""
    with rowmq.connect(link.url) as mq:
        if spec.source == "topic":
            fill_topic(mq, link, spec)
            return
        queue = mq.queue(QUEUE)
        queue.configure(keep_completed=spec.keep)
        if spec.archived:
            fill_queue(queue, link, spec, spec.archived)
            link.execute(ARCHIVE)
            link.execute("DELETE FROM rowmq_ready")
        fill_queue(queue, link, spec, spec.messages + spec.backlog)
        if spec.gather:
            queue.pause()


def fill_topic(mq: rowmq.RowMQ, link: Link, spec: Spec) -> None:
    """Have each partition hold the same number of messages."""
    for number in range(spec.groups):
        mq.create_group(TOPIC, f"group-{number}")
    keys, payload = keys_of(spec), b"x" * spec.payload_bytes
    each = each_of(spec)
    there = min(each, -(-AT_ONCE // len(keys)))
    messages = (rowmq.Message(payload=payload, key=key) for _ in range(there) for key in keys)
    while some := list(islice(messages, AT_ONCE)):
        mq.publish_many(TOPIC, some)
    while there < each:
        count = min(there, each - there)
        id = COPIED_ID[link.database].format(shift=there)
        link.execute(COPY_MESSAGES.format(shift=there, count=count, id=id))
        there += count
    show(link, 0 if spec.gather else each)


def each_of(spec: Spec) -> int:
    """How many messages each partition holds."""
    return spec.messages // len(keys_of(spec))


def show(link: Link, count: int) -> None:
    """Have so many messages of each partition be seen: its counter decides about that."""
    link.execute(f"UPDATE rowmq_partitions SET next_offset = {count + 1}")


def release(link: Link, spec: Spec) -> None:
    """Let those begin who have gathered."""
    if spec.source == "topic":
        show(link, each_of(spec))
        return
    with rowmq.connect(spec.url) as mq:
        mq.queue(QUEUE).resume()


def fill_queue(queue: Any, link: Link, spec: Spec, total: int) -> None:
    payload = b"x" * spec.payload_bytes
    there = min(total, AT_ONCE)
    queue.put_many([payload] * there)
    shift = SHIFT
    while there < total:
        count = min(there, total - there)
        for template in (COPY_JOBS, COPY_READY):
            link.execute(template.format(shift=shift, count=count))
        there, shift = there + count, shift * 2


def left(spec: Spec) -> int:
    """How many are not done, as the database says."""
    with rowmq.connect(spec.url) as mq:
        if spec.source == "queue":
            counts = mq.queue(QUEUE).counts()
            return counts["pending"] + counts["processing"] + counts["retryable"]
        groups = [f"group-{number}" for number in range(spec.groups)]
        return sum(row.lag for group in groups for row in mq.lag(TOPIC, group))
