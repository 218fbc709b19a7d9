-- Text compares byte by byte here. AUTOINCREMENT: an id is never given twice, even after a delete.
-- Narrow tables are clustered by their key; wide ones keep their rowid, so that appends stay appends.
-- The columns of a key come first: SQLite 3.40 takes a clustered table for damaged otherwise.

-- Topics: a partitioned log. A partition's row is its registry entry and its counter in one; it also
-- knows the largest payload it ever had, so that a reader can bound its memory before it reads.

CREATE TABLE {topics} (
    topic             text PRIMARY KEY,
    max_payload_bytes integer,
    retention_us      integer,
    created_at        integer NOT NULL,
    edited            integer NOT NULL DEFAULT 0,
    holds_letters     integer NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE {partitions} (
    id            integer PRIMARY KEY AUTOINCREMENT,
    topic         text NOT NULL,
    partition_key text NOT NULL,
    first_offset  integer NOT NULL DEFAULT 1,
    next_offset   integer NOT NULL,
    largest_bytes integer NOT NULL DEFAULT 0,
    UNIQUE (topic, partition_key)
);

CREATE INDEX {prefix}partitions_by_topic ON {partitions} (topic, id);

CREATE TABLE {messages} (
    partition_id   integer NOT NULL,
    message_offset integer NOT NULL,
    published_at   integer NOT NULL,
    encoding       integer NOT NULL,
    message_id     text NOT NULL,
    headers        text,
    payload        blob NOT NULL,
    PRIMARY KEY (partition_id, message_offset),
    UNIQUE (partition_id, message_id)
);

-- Consumer groups: where each one stands, who owns what, and what is in flight, as ranges.

-- Expired counts the messages that retention let go of before the group had acked them. Moved at is
-- when a reader that keeps its own books said last how far it is.
CREATE TABLE {groups} (
    id             integer PRIMARY KEY AUTOINCREMENT,
    topic          text NOT NULL,
    consumer_group text NOT NULL,
    start_at       text NOT NULL,
    created_at     integer NOT NULL,
    expired        integer NOT NULL DEFAULT 0,
    read_by        integer NOT NULL DEFAULT 0,
    moved_at       integer,
    UNIQUE (topic, consumer_group)
);

-- A group's place in a partition, and its lease, in one row: so one predicate fences every write.
-- The newest delivered range, the tail, stands in this row too: a batch that is delivered and acked
-- whole writes no other. Version rises with each write, by two with
-- those of others; touched asks the owner to look again.
CREATE TABLE {offsets} (
    group_id         integer NOT NULL,
    partition_id     integer NOT NULL,
    offset_acked     integer NOT NULL,
    offset_delivered integer NOT NULL,
    tail_first       integer NOT NULL,
    tail_until       integer NOT NULL,
    epoch            integer NOT NULL,
    version          integer NOT NULL,
    leased_by        integer NOT NULL,
    tail_attempts    integer NOT NULL,
    touched          integer NOT NULL,
    PRIMARY KEY (group_id, partition_id)
) WITHOUT ROWID;

CREATE INDEX {prefix}offsets_by_owner ON {offsets} (group_id, leased_by, partition_id);

-- States: 1 delivered, 2 waiting to be delivered again, 3 acked out of order.
CREATE TABLE {delivery_state} (
    group_id        integer NOT NULL,
    partition_id    integer NOT NULL,
    first_offset    integer NOT NULL,
    last_offset     integer NOT NULL,
    invisible_until integer NOT NULL,
    reopened        integer NOT NULL DEFAULT 0,
    attempts        integer NOT NULL,
    state           integer NOT NULL,
    error           text,
    PRIMARY KEY (group_id, partition_id, first_offset)
) WITHOUT ROWID;

-- A subscriber's id is never given twice: a lease names it, and so cannot be mistaken for another's.
CREATE TABLE {subscribers} (
    id              integer PRIMARY KEY AUTOINCREMENT,
    group_id        integer NOT NULL,
    heartbeat_at    integer NOT NULL,
    expires_at      integer NOT NULL,
    subscriber_name text NOT NULL
);

CREATE INDEX {prefix}subscribers_by_group ON {subscribers} (group_id, id);

-- A dead letter is a message of its own in the dead-letter topic; this is where it came from.
CREATE TABLE {dead_letters} (
    partition_id        integer NOT NULL,
    message_offset      integer NOT NULL,
    origin_partition_id integer NOT NULL,
    origin_offset       integer NOT NULL,
    failed_at           integer NOT NULL,
    attempts            integer NOT NULL,
    origin_topic        text NOT NULL,
    consumer_group      text NOT NULL,
    origin_id           text NOT NULL,
    error               text,
    PRIMARY KEY (partition_id, message_offset)
) WITHOUT ROWID;

CREATE INDEX {prefix}dead_letters_by_origin
    ON {dead_letters} (origin_topic, failed_at, partition_id, message_offset);

CREATE INDEX {prefix}dead_letters_by_group
    ON {dead_letters} (consumer_group, origin_topic, failed_at, partition_id, message_offset);

CREATE INDEX {prefix}dead_letters_by_id ON {dead_letters} (origin_id, origin_topic);

-- Queues: a job's payload is written once; what changes hands is narrow. Numbers stand for names: a
-- lane is what is claimed in one order, the jobs of one queue, one kind and one priority.

CREATE TABLE {queues} (
    id                  integer PRIMARY KEY AUTOINCREMENT,
    max_payload_bytes   integer,
    retention_us        integer,
    failed_retention_us integer,
    rate_period_us      integer,
    created_at          integer NOT NULL,
    max_in_flight       integer,
    rate                integer,
    paused              integer NOT NULL DEFAULT 0,
    keep_completed      integer NOT NULL DEFAULT 1,
    keep_failed         integer NOT NULL DEFAULT 1,
    relaxed             integer NOT NULL DEFAULT 0,
    queue               text NOT NULL,
    UNIQUE (queue)
);

-- Precedence is minus the priority, so that lower is first everywhere.
CREATE TABLE {lanes} (
    id         integer PRIMARY KEY AUTOINCREMENT,
    queue_id   integer NOT NULL,
    precedence integer NOT NULL,
    kind       text NOT NULL,
    UNIQUE (queue_id, kind, precedence)
);

-- Each number is a block of job ids: whoever takes it need not ask again for a while.
CREATE TABLE {job_ids} (
    id integer PRIMARY KEY AUTOINCREMENT
);

CREATE TABLE {jobs} (
    id           integer PRIMARY KEY,
    created_at   integer NOT NULL,
    due_at       integer NOT NULL,
    lane_id      integer NOT NULL,
    encoding     integer NOT NULL,
    job_key      text,
    ordering_key text,
    headers      text,
    payload      blob NOT NULL
);

-- What can be claimed, in the order of claims, which its index is.
CREATE TABLE {ready} (
    lane_id    integer NOT NULL,
    due_at     integer NOT NULL,
    job_id     integer NOT NULL,
    attempts   integer NOT NULL,
    deliveries integer NOT NULL,
    PRIMARY KEY (lane_id, due_at, job_id)
) WITHOUT ROWID;

-- A lock is a claimed batch. Of each job it has what stood in its ready row, so that it can be put
-- back; settled has a 1 for each job that has left the lock.
CREATE TABLE {locks} (
    token        integer NOT NULL PRIMARY KEY,
    locked_until integer NOT NULL,
    claimed_at   integer NOT NULL,
    owner        text NOT NULL,
    claimed      text NOT NULL,
    settled      text NOT NULL
) WITHOUT ROWID;

CREATE INDEX {prefix}locks_by_expiry ON {locks} (locked_until);

-- Keys of live jobs. Lane and due time are those of the ready row, if the job is there.
CREATE TABLE {job_keys} (
    queue_id integer NOT NULL,
    job_key  text NOT NULL,
    kind     text NOT NULL,
    job_id   integer NOT NULL,
    lane_id  integer NOT NULL,
    due_at   integer NOT NULL,
    PRIMARY KEY (queue_id, job_key, kind)
) WITHOUT ROWID;

-- A line is the jobs of one ordering key. Its head is ready or claimed; the others wait.
CREATE TABLE {lines} (
    queue_id     integer NOT NULL,
    ordering_key text NOT NULL,
    head_id      integer NOT NULL,
    head_lane    integer NOT NULL,
    head_order   integer NOT NULL,
    head_due     integer NOT NULL,
    PRIMARY KEY (queue_id, ordering_key)
) WITHOUT ROWID;

CREATE TABLE {waiting} (
    queue_id     integer NOT NULL,
    ordering_key text NOT NULL,
    precedence   integer NOT NULL,
    due_at       integer NOT NULL,
    job_id       integer NOT NULL,
    lane_id      integer NOT NULL,
    PRIMARY KEY (queue_id, ordering_key, precedence, due_at, job_id)
) WITHOUT ROWID;

-- The archive: jobs joined with one of these two.
CREATE TABLE {completed} (
    queue_id    integer NOT NULL,
    finished_at integer NOT NULL,
    job_id      integer NOT NULL,
    started_at  integer NOT NULL,
    attempts    integer NOT NULL,
    deliveries  integer NOT NULL,
    PRIMARY KEY (queue_id, finished_at, job_id)
) WITHOUT ROWID;

CREATE TABLE {failed} (
    job_id      integer NOT NULL PRIMARY KEY,
    queue_id    integer NOT NULL,
    finished_at integer NOT NULL,
    started_at  integer NOT NULL,
    attempts    integer NOT NULL,
    deliveries  integer NOT NULL,
    error       text
);

CREATE INDEX {prefix}failed_by_time ON {failed} (queue_id, finished_at, job_id);

-- Why earlier attempts failed, and when the next one was due.
CREATE TABLE {job_errors} (
    job_id    integer NOT NULL,
    failed_at integer NOT NULL,
    attempt   integer NOT NULL,
    due_at    integer,
    error     text,
    PRIMARY KEY (job_id, failed_at, attempt)
) WITHOUT ROWID;

-- A limit of n is n permits: to start a job takes one that is free. Purposes: 1 in flight, which is
-- free when its job is settled, or its lock is gone; 2 rate, which is free when its time has come.
CREATE TABLE {permits} (
    queue_id integer NOT NULL,
    purpose  integer NOT NULL,
    number   integer NOT NULL,
    free_at  integer NOT NULL,
    token    integer NOT NULL DEFAULT 0,
    job_id   integer,
    PRIMARY KEY (queue_id, purpose, number)
) WITHOUT ROWID;

CREATE INDEX {prefix}permits_by_time ON {permits} (queue_id, purpose, free_at, number);

CREATE INDEX {prefix}permits_by_job ON {permits} (job_id);

-- Who holds a job in a transaction is written down beside it, so that a death is counted.
CREATE TABLE {holds} (
    job_id     integer NOT NULL PRIMARY KEY,
    started_at integer NOT NULL,
    starts     integer NOT NULL
) WITHOUT ROWID;

-- Workers say who they are and what they run; one that has not been heard of for long is dead.
CREATE TABLE {workers} (
    name       text NOT NULL PRIMARY KEY,
    started_at integer NOT NULL,
    seen_at    integer NOT NULL,
    expires_at integer NOT NULL,
    facts      text NOT NULL,
    running    text NOT NULL
) WITHOUT ROWID;

-- Schedules: one row each. Revision is another number with each change, by which whoever made it knows
-- it again.

CREATE TABLE {schedules} (
    name        text NOT NULL PRIMARY KEY,
    next_at     integer,
    last_at     integer,
    created_at  integer NOT NULL,
    revision    integer NOT NULL,
    paused      integer NOT NULL DEFAULT 0,
    config_hash text NOT NULL,
    spec        text NOT NULL
);

CREATE INDEX {prefix}schedules_by_time ON {schedules} (paused, next_at, name);

-- A tick's row stays when its job is done: it is what makes the tick fire once. Without a queue it is
-- one of a schedule; else it was put ahead of time, and name is the prefix that it was put under.
CREATE TABLE {ticks} (
    queue       text NOT NULL,
    name        text NOT NULL,
    fire_at     integer NOT NULL,
    part        text NOT NULL,
    fired_at    integer NOT NULL,
    job_id      integer,
    lane_id     integer,
    config_hash text NOT NULL,
    PRIMARY KEY (queue, name, fire_at, part)
) WITHOUT ROWID;

CREATE INDEX {prefix}ticks_by_time ON {ticks} (fire_at);

-- Staging: what Spark's tasks have written and its driver has not published yet. A stage is what one
-- task writes; its parts are the partitions, or the lanes, that its rows are for, with how many are
-- for each. A batch is the stages that are published together, in the order of their places; batch 0
-- is those that nobody may publish any more. Name is what the ids of its messages begin with.
CREATE TABLE {stages} (
    id           integer PRIMARY KEY AUTOINCREMENT,
    created_at   integer NOT NULL,
    batch_id     integer,
    published_at integer,
    place        integer NOT NULL DEFAULT 0,
    name         text NOT NULL
);

CREATE INDEX {prefix}stages_by_batch ON {stages} (batch_id, place);

CREATE INDEX {prefix}stages_by_time ON {stages} (created_at);

-- Home is the id of the partition or the lane, once it is known.
CREATE TABLE {stage_parts} (
    stage_id      integer NOT NULL,
    part          integer NOT NULL,
    precedence    integer NOT NULL,
    messages      integer NOT NULL,
    largest_bytes integer NOT NULL,
    home_id       integer,
    first_offset  integer,
    target        text NOT NULL,
    name          text NOT NULL,
    PRIMARY KEY (stage_id, part)
) WITHOUT ROWID;

-- Name is the id of a message or the key of a job, nth the place of a message in its part, from 0 on.
CREATE TABLE {staged} (
    stage_id     integer NOT NULL,
    number       integer NOT NULL,
    nth          integer NOT NULL,
    due_at       integer,
    part         integer NOT NULL,
    encoding     integer NOT NULL,
    name         text,
    ordering_key text,
    headers      text,
    payload      blob NOT NULL,
    PRIMARY KEY (stage_id, number)
);

-- The highest version that each writer has published to a target, which makes it be published once.
CREATE TABLE {ledger} (
    writer     text NOT NULL,
    target     text NOT NULL,
    version    integer NOT NULL,
    updated_at integer NOT NULL,
    PRIMARY KEY (writer, target)
) WITHOUT ROWID;

-- Tokens of the dashboard and the HTTP API: only a hash is kept of the secret. Those that have ended
-- stay, so that the trail says whose they were. In use is the name until then, and nothing after.
CREATE TABLE {tokens} (
    id          integer PRIMARY KEY AUTOINCREMENT,
    created_at  integer NOT NULL,
    expires_at  integer,
    used_at     integer,
    revoked_at  integer,
    secret_hash text NOT NULL,
    name        text NOT NULL,
    name_in_use text,
    roles       text NOT NULL,
    topics      text NOT NULL,
    queues      text NOT NULL,
    UNIQUE (secret_hash),
    UNIQUE (name_in_use)
);

-- Sessions that were signed out of, until they would have ended by themselves.
CREATE TABLE {ended_sessions} (
    nonce   text PRIMARY KEY,
    ends_at integer NOT NULL
) WITHOUT ROWID;

CREATE INDEX {prefix}ended_sessions_by_end ON {ended_sessions} (ends_at);

-- The audit trail. Endings: 0 begun, 1 done, 2 refused, 3 failed.
CREATE TABLE {audit} (
    id      integer PRIMARY KEY AUTOINCREMENT,
    at      integer NOT NULL,
    ending  integer NOT NULL,
    who     text NOT NULL,
    action  text NOT NULL,
    target  text NOT NULL,
    remote  text NOT NULL,
    details text NOT NULL
);

CREATE INDEX {prefix}audit_by_who ON {audit} (who, id);

CREATE INDEX {prefix}audit_by_action ON {audit} (action, id);

CREATE INDEX {prefix}audit_by_both ON {audit} (who, action, id);
