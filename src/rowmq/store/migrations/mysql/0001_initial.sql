-- Names are VARBINARY: exact to the byte. Every text collation that MySQL and MariaDB share ignores
-- trailing spaces. DDL commits by itself here, so each statement can be repeated after a crash.

-- Topics: a partitioned log. A partition's row is its registry entry and its counter in one; it also
-- knows the largest payload it ever had, so that a reader can bound its memory before it reads.

CREATE TABLE IF NOT EXISTS {topics} (
    topic             varbinary(200) PRIMARY KEY,
    max_payload_bytes bigint,
    retention_us      bigint,
    created_at        bigint NOT NULL,
    edited            bigint NOT NULL DEFAULT 0,
    holds_letters     smallint NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {partitions} (
    id            bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic         varbinary(200) NOT NULL,
    partition_key varbinary(255) NOT NULL,
    first_offset  bigint NOT NULL DEFAULT 1,
    next_offset   bigint NOT NULL,
    largest_bytes bigint NOT NULL DEFAULT 0,
    UNIQUE (topic, partition_key),
    KEY partitions_by_topic (topic, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {messages} (
    partition_id   bigint NOT NULL,
    message_offset bigint NOT NULL,
    published_at   bigint NOT NULL,
    encoding       smallint NOT NULL,
    message_id     varbinary(255) NOT NULL,
    headers        mediumblob,
    payload        longblob NOT NULL,
    PRIMARY KEY (partition_id, message_offset),
    UNIQUE (partition_id, message_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Consumer groups: where each one stands, who owns what, and what is in flight, as ranges.

-- Expired counts the messages that retention let go of before the group had acked them. Moved at is
-- when a reader that keeps its own books said last how far it is.
CREATE TABLE IF NOT EXISTS {groups} (
    id             bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic          varbinary(200) NOT NULL,
    consumer_group varbinary(200) NOT NULL,
    start_at       varbinary(40) NOT NULL,
    created_at     bigint NOT NULL,
    expired        bigint NOT NULL DEFAULT 0,
    read_by        smallint NOT NULL DEFAULT 0,
    moved_at       bigint,
    UNIQUE (topic, consumer_group)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A group's place in a partition, and its lease, in one row: so one predicate fences every write.
-- The newest delivered range, the tail, stands in this row too: a batch that is delivered and acked
-- whole writes no other. Version rises with each write, by two with
-- those of others; touched asks the owner to look again.
CREATE TABLE IF NOT EXISTS {offsets} (
    group_id         bigint NOT NULL,
    partition_id     bigint NOT NULL,
    offset_acked     bigint NOT NULL,
    offset_delivered bigint NOT NULL,
    tail_first       bigint NOT NULL,
    tail_until       bigint NOT NULL,
    epoch            bigint NOT NULL,
    version          bigint NOT NULL,
    leased_by        bigint NOT NULL,
    tail_attempts    integer NOT NULL,
    touched          smallint NOT NULL,
    PRIMARY KEY (group_id, partition_id),
    KEY offsets_by_owner (group_id, leased_by, partition_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- States: 1 delivered, 2 waiting to be delivered again, 3 acked out of order.
CREATE TABLE IF NOT EXISTS {delivery_state} (
    group_id        bigint NOT NULL,
    partition_id    bigint NOT NULL,
    first_offset    bigint NOT NULL,
    last_offset     bigint NOT NULL,
    invisible_until bigint NOT NULL,
    reopened        bigint NOT NULL DEFAULT 0,
    attempts        integer NOT NULL,
    state           smallint NOT NULL,
    error           mediumblob,
    PRIMARY KEY (group_id, partition_id, first_offset)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A subscriber's id is never given twice: a lease names it, and so cannot be mistaken for another's.
CREATE TABLE IF NOT EXISTS {subscribers} (
    id              bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    group_id        bigint NOT NULL,
    heartbeat_at    bigint NOT NULL,
    expires_at      bigint NOT NULL,
    subscriber_name varbinary(200) NOT NULL,
    KEY subscribers_by_group (group_id, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A dead letter is a message of its own in the dead-letter topic; this is where it came from.
CREATE TABLE IF NOT EXISTS {dead_letters} (
    partition_id        bigint NOT NULL,
    message_offset      bigint NOT NULL,
    origin_partition_id bigint NOT NULL,
    origin_offset       bigint NOT NULL,
    failed_at           bigint NOT NULL,
    attempts            integer NOT NULL,
    origin_topic        varbinary(200) NOT NULL,
    consumer_group      varbinary(200) NOT NULL,
    origin_id           varbinary(255) NOT NULL,
    error               mediumblob,
    PRIMARY KEY (partition_id, message_offset),
    KEY dead_letters_by_origin (origin_topic, failed_at, partition_id, message_offset),
    KEY dead_letters_by_group
        (consumer_group, origin_topic, failed_at, partition_id, message_offset),
    KEY dead_letters_by_id (origin_id, origin_topic)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Queues: a job's payload is written once; what changes hands is narrow. Numbers stand for names: a
-- lane is what is claimed in one order, the jobs of one queue, one kind and one priority.

CREATE TABLE IF NOT EXISTS {queues} (
    id                  bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    max_payload_bytes   bigint,
    retention_us        bigint,
    failed_retention_us bigint,
    rate_period_us      bigint,
    created_at          bigint NOT NULL,
    max_in_flight       integer,
    rate                integer,
    paused              smallint NOT NULL DEFAULT 0,
    keep_completed      smallint NOT NULL DEFAULT 1,
    keep_failed         smallint NOT NULL DEFAULT 1,
    relaxed             smallint NOT NULL DEFAULT 0,
    queue               varbinary(200) NOT NULL,
    UNIQUE (queue)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Precedence is minus the priority, so that lower is first everywhere.
CREATE TABLE IF NOT EXISTS {lanes} (
    id         bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue_id   bigint NOT NULL,
    precedence integer NOT NULL,
    kind       varbinary(200) NOT NULL,
    UNIQUE (queue_id, kind, precedence)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Each number is a block of job ids: whoever takes it need not ask again for a while.
CREATE TABLE IF NOT EXISTS {job_ids} (
    id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {jobs} (
    id           bigint NOT NULL PRIMARY KEY,
    created_at   bigint NOT NULL,
    due_at       bigint NOT NULL,
    lane_id      bigint NOT NULL,
    encoding     smallint NOT NULL,
    job_key      varbinary(255),
    ordering_key varbinary(255),
    headers      mediumblob,
    payload      longblob NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- What can be claimed, in the order of claims, which its index is.
CREATE TABLE IF NOT EXISTS {ready} (
    due_at     bigint NOT NULL,
    job_id     bigint NOT NULL,
    lane_id    bigint NOT NULL,
    attempts   integer NOT NULL,
    deliveries integer NOT NULL,
    PRIMARY KEY (lane_id, due_at, job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A lock is a claimed batch. Of each job it has what stood in its ready row, so that it can be put
-- back; settled has a 1 for each job that has left the lock.
CREATE TABLE IF NOT EXISTS {locks} (
    token        bigint NOT NULL PRIMARY KEY,
    locked_until bigint NOT NULL,
    claimed_at   bigint NOT NULL,
    owner        varbinary(200) NOT NULL,
    claimed      mediumblob NOT NULL,
    settled      mediumblob NOT NULL,
    KEY locks_by_expiry (locked_until)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Keys of live jobs. Lane and due time are those of the ready row, if the job is there.
CREATE TABLE IF NOT EXISTS {job_keys} (
    queue_id bigint NOT NULL,
    job_id   bigint NOT NULL,
    lane_id  bigint NOT NULL,
    due_at   bigint NOT NULL,
    job_key  varbinary(255) NOT NULL,
    kind     varbinary(200) NOT NULL,
    PRIMARY KEY (queue_id, job_key, kind)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A line is the jobs of one ordering key. Its head is ready or claimed; the others wait.
CREATE TABLE IF NOT EXISTS {lines} (
    queue_id     bigint NOT NULL,
    head_id      bigint NOT NULL,
    head_lane    bigint NOT NULL,
    head_order   integer NOT NULL,
    head_due     bigint NOT NULL,
    ordering_key varbinary(255) NOT NULL,
    PRIMARY KEY (queue_id, ordering_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {waiting} (
    queue_id     bigint NOT NULL,
    due_at       bigint NOT NULL,
    job_id       bigint NOT NULL,
    lane_id      bigint NOT NULL,
    precedence   integer NOT NULL,
    ordering_key varbinary(255) NOT NULL,
    PRIMARY KEY (queue_id, ordering_key, precedence, due_at, job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The archive: jobs joined with one of these two.
CREATE TABLE IF NOT EXISTS {completed} (
    queue_id    bigint NOT NULL,
    finished_at bigint NOT NULL,
    job_id      bigint NOT NULL,
    started_at  bigint NOT NULL,
    attempts    integer NOT NULL,
    deliveries  integer NOT NULL,
    PRIMARY KEY (queue_id, finished_at, job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {failed} (
    job_id      bigint NOT NULL PRIMARY KEY,
    queue_id    bigint NOT NULL,
    finished_at bigint NOT NULL,
    started_at  bigint NOT NULL,
    attempts    integer NOT NULL,
    deliveries  integer NOT NULL,
    error       mediumblob,
    KEY failed_by_time (queue_id, finished_at, job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Why earlier attempts failed, and when the next one was due.
CREATE TABLE IF NOT EXISTS {job_errors} (
    job_id    bigint NOT NULL,
    failed_at bigint NOT NULL,
    due_at    bigint,
    attempt   integer NOT NULL,
    error     mediumblob,
    PRIMARY KEY (job_id, failed_at, attempt)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A limit of n is n permits: to start a job takes one that is free. Purposes: 1 in flight, which is
-- free when its job is settled, or its lock is gone; 2 rate, which is free when its time has come.
CREATE TABLE IF NOT EXISTS {permits} (
    queue_id bigint NOT NULL,
    free_at  bigint NOT NULL,
    token    bigint NOT NULL DEFAULT 0,
    job_id   bigint,
    purpose  smallint NOT NULL,
    number   integer NOT NULL,
    PRIMARY KEY (queue_id, purpose, number),
    KEY permits_by_time (queue_id, purpose, free_at, number),
    KEY permits_by_job (job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Who holds a job in a transaction is written down beside it, so that a death is counted.
CREATE TABLE IF NOT EXISTS {holds} (
    job_id     bigint NOT NULL PRIMARY KEY,
    started_at bigint NOT NULL,
    starts     integer NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Workers say who they are and what they run; one that has not been heard of for long is dead.
CREATE TABLE IF NOT EXISTS {workers} (
    name       varbinary(200) NOT NULL PRIMARY KEY,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL,
    expires_at bigint NOT NULL,
    facts      longblob NOT NULL,
    running    longblob NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Schedules: one row each. Revision is another number with each change, by which whoever made it knows
-- it again.

CREATE TABLE IF NOT EXISTS {schedules} (
    name        varbinary(200) NOT NULL PRIMARY KEY,
    next_at     bigint,
    last_at     bigint,
    created_at  bigint NOT NULL,
    revision    bigint NOT NULL,
    paused      smallint NOT NULL DEFAULT 0,
    config_hash varbinary(100) NOT NULL,
    spec        longblob NOT NULL,
    KEY schedules_by_time (paused, next_at, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A tick's row stays when its job is done: it is what makes the tick fire once. Without a queue it is
-- one of a schedule; else it was put ahead of time, and name is the prefix that it was put under.
CREATE TABLE IF NOT EXISTS {ticks} (
    queue       varbinary(200) NOT NULL,
    name        varbinary(200) NOT NULL,
    fire_at     bigint NOT NULL,
    part        varbinary(255) NOT NULL,
    fired_at    bigint NOT NULL,
    job_id      bigint,
    lane_id     bigint,
    config_hash varbinary(100) NOT NULL,
    PRIMARY KEY (queue, name, fire_at, part),
    KEY ticks_by_time (fire_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Staging: what Spark's tasks have written and its driver has not published yet. A stage is what one
-- task writes; its parts are the partitions, or the lanes, that its rows are for, with how many are
-- for each. A batch is the stages that are published together, in the order of their places; batch 0
-- is those that nobody may publish any more. Name is what the ids of its messages begin with.
CREATE TABLE IF NOT EXISTS {stages} (
    id           bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at   bigint NOT NULL,
    batch_id     bigint,
    published_at bigint,
    place        integer NOT NULL DEFAULT 0,
    name         varbinary(100) NOT NULL,
    KEY stages_by_batch (batch_id, place),
    KEY stages_by_time (created_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Home is the id of the partition or the lane, once it is known.
CREATE TABLE IF NOT EXISTS {stage_parts} (
    stage_id      bigint NOT NULL,
    part          integer NOT NULL,
    precedence    integer NOT NULL,
    messages      bigint NOT NULL,
    largest_bytes bigint NOT NULL,
    home_id       bigint,
    first_offset  bigint,
    target        varbinary(200) NOT NULL,
    name          varbinary(255) NOT NULL,
    PRIMARY KEY (stage_id, part)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Name is the id of a message or the key of a job, nth the place of a message in its part, from 0 on.
CREATE TABLE IF NOT EXISTS {staged} (
    stage_id     bigint NOT NULL,
    number       bigint NOT NULL,
    nth          bigint NOT NULL,
    due_at       bigint,
    part         integer NOT NULL,
    encoding     smallint NOT NULL,
    name         varbinary(255),
    ordering_key varbinary(255),
    headers      mediumblob,
    payload      longblob NOT NULL,
    PRIMARY KEY (stage_id, number)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The highest version that each writer has published to a target, which makes it be published once.
CREATE TABLE IF NOT EXISTS {ledger} (
    writer     varbinary(255) NOT NULL,
    target     varbinary(255) NOT NULL,
    version    bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (writer, target)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Tokens of the dashboard and the HTTP API: only a hash is kept of the secret. Those that have ended
-- stay, so that the trail says whose they were. In use is the name until then, and nothing after.
CREATE TABLE IF NOT EXISTS {tokens} (
    id          bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at  bigint NOT NULL,
    expires_at  bigint,
    used_at     bigint,
    revoked_at  bigint,
    secret_hash varbinary(64) NOT NULL,
    name        varbinary(200) NOT NULL,
    name_in_use varbinary(200),
    roles       varbinary(100) NOT NULL,
    topics      mediumblob NOT NULL,
    queues      mediumblob NOT NULL,
    UNIQUE (secret_hash),
    UNIQUE (name_in_use)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Sessions that were signed out of, until they would have ended by themselves.
CREATE TABLE IF NOT EXISTS {ended_sessions} (
    nonce   varbinary(64) NOT NULL PRIMARY KEY,
    ends_at bigint NOT NULL,
    KEY ended_sessions_by_end (ends_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- The audit trail. Endings: 0 begun, 1 done, 2 refused, 3 failed.
CREATE TABLE IF NOT EXISTS {audit} (
    id      bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at      bigint NOT NULL,
    ending  smallint NOT NULL,
    who     varbinary(200) NOT NULL,
    action  varbinary(100) NOT NULL,
    target  mediumblob NOT NULL,
    remote  varbinary(100) NOT NULL,
    details mediumblob NOT NULL,
    KEY audit_by_who (who, id),
    KEY audit_by_action (action, id),
    KEY audit_by_both (who, action, id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
