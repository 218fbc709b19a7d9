-- Text compares byte by byte here. AUTOINCREMENT: an id is never given twice, even after a delete.
-- Narrow tables are clustered by their key; wide ones keep their rowid, so that appends stay appends.

-- Topics: a partitioned log. A partition's row is its registry entry and its counter in one.

CREATE TABLE {topics} (
    topic             text PRIMARY KEY,
    max_payload_bytes integer,
    retention_us      integer,
    created_at        integer NOT NULL
) WITHOUT ROWID;

CREATE TABLE {partitions} (
    id            integer PRIMARY KEY AUTOINCREMENT,
    topic         text NOT NULL,
    partition_key text NOT NULL,
    first_offset  integer NOT NULL DEFAULT 1,
    next_offset   integer NOT NULL,
    UNIQUE (topic, partition_key)
);

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

CREATE TABLE {groups} (
    id             integer PRIMARY KEY AUTOINCREMENT,
    topic          text NOT NULL,
    consumer_group text NOT NULL,
    start_at       text NOT NULL,
    created_at     integer NOT NULL,
    UNIQUE (topic, consumer_group)
);

CREATE TABLE {offsets} (
    group_id         integer NOT NULL,
    partition_id     integer NOT NULL,
    offset_acked     integer NOT NULL,
    offset_delivered integer NOT NULL,
    epoch            integer NOT NULL,
    PRIMARY KEY (group_id, partition_id)
) WITHOUT ROWID;

CREATE TABLE {delivery_state} (
    group_id        integer NOT NULL,
    partition_id    integer NOT NULL,
    first_offset    integer NOT NULL,
    last_offset     integer NOT NULL,
    acked           integer NOT NULL,
    invisible_until integer NOT NULL,
    retry_count     integer NOT NULL,
    PRIMARY KEY (group_id, partition_id, first_offset)
) WITHOUT ROWID;

CREATE TABLE {leases} (
    group_id     integer NOT NULL,
    partition_id integer NOT NULL,
    leased_by    text NOT NULL,
    epoch        integer NOT NULL,
    leased_at    integer NOT NULL,
    PRIMARY KEY (group_id, partition_id)
) WITHOUT ROWID;

CREATE INDEX {prefix}leases_by_owner ON {leases} (group_id, leased_by);

CREATE TABLE {subscribers} (
    group_id        integer NOT NULL,
    subscriber_name text NOT NULL,
    heartbeat_at    integer NOT NULL,
    expires_at      integer NOT NULL,
    deregistered_at integer,
    PRIMARY KEY (group_id, subscriber_name)
) WITHOUT ROWID;

-- A dead letter is a message of its own in the dead-letter topic; this is where it came from.
CREATE TABLE {dead_letters} (
    partition_id        integer NOT NULL,
    message_offset      integer NOT NULL,
    origin_partition_id integer NOT NULL,
    origin_offset       integer NOT NULL,
    failed_at           integer NOT NULL,
    attempts            integer NOT NULL,
    consumer_group      text NOT NULL,
    error               text,
    PRIMARY KEY (partition_id, message_offset),
    UNIQUE (consumer_group, origin_partition_id, origin_offset)
) WITHOUT ROWID;

-- Queues: a job's payload is written once; what changes hands is narrow.

CREATE TABLE {queues} (
    queue          text PRIMARY KEY,
    paused         integer NOT NULL DEFAULT 0,
    keep_completed integer NOT NULL DEFAULT 1,
    keep_failed    integer NOT NULL DEFAULT 1,
    retention_us   integer,
    created_at     integer NOT NULL
) WITHOUT ROWID;

CREATE TABLE {jobs} (
    id           integer PRIMARY KEY AUTOINCREMENT,
    created_at   integer NOT NULL,
    priority     integer NOT NULL,
    encoding     integer NOT NULL,
    queue        text NOT NULL,
    kind         text NOT NULL,
    job_key      text,
    ordering_key text,
    headers      text,
    payload      blob NOT NULL
);

-- Precedence is minus the priority, so that one ascending index is the claim's whole order.
CREATE TABLE {ready} (
    job_id       integer NOT NULL,
    due_at       integer NOT NULL,
    precedence   integer NOT NULL,
    attempts     integer NOT NULL,
    deliveries   integer NOT NULL,
    queue        text NOT NULL,
    ordering_key text,
    PRIMARY KEY (queue, precedence, due_at, job_id)
) WITHOUT ROWID;

-- A lock is a claimed batch: of each job what stood in its ready row, so that it can be put back.
CREATE TABLE {locks} (
    token        text NOT NULL PRIMARY KEY,
    locked_until integer NOT NULL,
    queue        text NOT NULL,
    owner        text NOT NULL,
    claimed      text NOT NULL
);

CREATE INDEX {prefix}locks_by_expiry ON {locks} (queue, locked_until);

CREATE TABLE {job_keys} (
    queue   text NOT NULL,
    job_key text NOT NULL,
    job_id  integer NOT NULL,
    PRIMARY KEY (queue, job_key)
) WITHOUT ROWID;

CREATE TABLE {finished} (
    job_id      integer PRIMARY KEY,
    finished_at integer NOT NULL,
    attempts    integer NOT NULL,
    deliveries  integer NOT NULL,
    state       integer NOT NULL,
    queue       text NOT NULL,
    error       text
);

CREATE INDEX {prefix}finished_by_time ON {finished} (queue, state, finished_at, job_id);

-- Schedules: one row each; a tick's row is what makes it fire once.

CREATE TABLE {schedules} (
    name        text PRIMARY KEY,
    config_hash text NOT NULL,
    spec        text NOT NULL,
    paused      integer NOT NULL DEFAULT 0,
    next_at     integer,
    created_at  integer NOT NULL
) WITHOUT ROWID;

CREATE TABLE {ticks} (
    name        text NOT NULL,
    fire_at     integer NOT NULL,
    config_hash text NOT NULL,
    fired_at    integer,
    PRIMARY KEY (name, fire_at)
) WITHOUT ROWID;
