-- Names are VARBINARY: exact to the byte. Every text collation that MySQL and MariaDB share ignores
-- trailing spaces. DDL commits by itself here, so each statement can be repeated after a crash.

-- Topics: a partitioned log. A partition's row is its registry entry and its counter in one; it also
-- knows the largest payload it ever had, so that a reader can bound its memory before it reads.

CREATE TABLE IF NOT EXISTS {topics} (
    topic             varbinary(200) PRIMARY KEY,
    max_payload_bytes bigint,
    retention_us      bigint,
    created_at        bigint NOT NULL
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

-- Expired counts the messages that retention let go of before the group had acked them.
CREATE TABLE IF NOT EXISTS {groups} (
    id             bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic          varbinary(200) NOT NULL,
    consumer_group varbinary(200) NOT NULL,
    start_at       varbinary(40) NOT NULL,
    created_at     bigint NOT NULL,
    expired        bigint NOT NULL DEFAULT 0,
    UNIQUE (topic, consumer_group)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A group's place in a partition, and its lease, in one row: so one predicate fences every write.
-- The newest delivered range, the tail, stands in this row too: a batch that is delivered and acked
-- whole writes no other. Version counts the writes; touched asks the owner to look again.
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
    KEY dead_letters_by_origin (origin_topic, failed_at, partition_id, message_offset)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Queues: a job's payload is written once; what changes hands is narrow.

CREATE TABLE IF NOT EXISTS {queues} (
    queue          varbinary(200) PRIMARY KEY,
    paused         boolean NOT NULL DEFAULT 0,
    keep_completed boolean NOT NULL DEFAULT 1,
    keep_failed    boolean NOT NULL DEFAULT 1,
    retention_us   bigint,
    created_at     bigint NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {jobs} (
    id           bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at   bigint NOT NULL,
    priority     integer NOT NULL,
    encoding     smallint NOT NULL,
    queue        varbinary(200) NOT NULL,
    kind         varbinary(255) NOT NULL,
    job_key      varbinary(255),
    ordering_key varbinary(255),
    headers      mediumblob,
    payload      longblob NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Precedence is minus the priority, so that one ascending index is the claim's whole order.
CREATE TABLE IF NOT EXISTS {ready} (
    job_id       bigint NOT NULL,
    due_at       bigint NOT NULL,
    precedence   integer NOT NULL,
    attempts     integer NOT NULL,
    deliveries   integer NOT NULL,
    queue        varbinary(200) NOT NULL,
    ordering_key varbinary(255),
    PRIMARY KEY (queue, precedence, due_at, job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- A lock is a claimed batch: of each job what stood in its ready row, so that it can be put back.
CREATE TABLE IF NOT EXISTS {locks} (
    token        binary(16) PRIMARY KEY,
    locked_until bigint NOT NULL,
    queue        varbinary(200) NOT NULL,
    owner        varbinary(200) NOT NULL,
    claimed      mediumblob NOT NULL,
    KEY locks_by_expiry (queue, locked_until)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {job_keys} (
    queue   varbinary(200) NOT NULL,
    job_key varbinary(255) NOT NULL,
    job_id  bigint NOT NULL,
    PRIMARY KEY (queue, job_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {finished} (
    job_id      bigint PRIMARY KEY,
    finished_at bigint NOT NULL,
    attempts    integer NOT NULL,
    deliveries  integer NOT NULL,
    state       smallint NOT NULL,
    queue       varbinary(200) NOT NULL,
    error       mediumblob,
    KEY finished_by_time (queue, state, finished_at, job_id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Schedules: one row each; a tick's row is what makes it fire once.

CREATE TABLE IF NOT EXISTS {schedules} (
    name        varbinary(200) PRIMARY KEY,
    config_hash varbinary(100) NOT NULL,
    spec        mediumblob NOT NULL,
    paused      boolean NOT NULL DEFAULT 0,
    next_at     bigint,
    created_at  bigint NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS {ticks} (
    name        varbinary(200) NOT NULL,
    fire_at     bigint NOT NULL,
    config_hash varbinary(100) NOT NULL,
    fired_at    bigint,
    PRIMARY KEY (name, fire_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
