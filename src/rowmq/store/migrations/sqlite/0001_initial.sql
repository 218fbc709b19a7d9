-- Text compares byte by byte here. AUTOINCREMENT: an id is never given twice, even after a delete.
-- Narrow tables are clustered by their key; wide ones keep their rowid, so that appends stay appends.

-- Topics: a partitioned log. A partition's row is its registry entry and its counter in one; it also
-- knows the largest payload it ever had, so that a reader can bound its memory before it reads.

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

-- Expired counts the messages that retention let go of before the group had acked them.
CREATE TABLE {groups} (
    id             integer PRIMARY KEY AUTOINCREMENT,
    topic          text NOT NULL,
    consumer_group text NOT NULL,
    start_at       text NOT NULL,
    created_at     integer NOT NULL,
    expired        integer NOT NULL DEFAULT 0,
    UNIQUE (topic, consumer_group)
);

-- A group's place in a partition, and its lease, in one row: so one predicate fences every write.
-- The newest delivered range, the tail, stands in this row too: a batch that is delivered and acked
-- whole writes no other. Version counts the writes; touched asks the owner to look again.
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
