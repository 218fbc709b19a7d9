"""Every metric there is, by its name: the page, the tests and Grafana's file keep to this."""

from rowmq.telemetry.families import Metric

__all__ = ["COUNTER", "EVERYTHING", "GAUGE", "HISTOGRAM", "OUTCOMES"]

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

STATEMENT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
HANDLER_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, 3600)
WAIT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600, 86400)

HANDLER = ("handler", "source")
GROUP = ("topic", "group")

OUTCOMES = ("acked", "retried", "failed", "dropped", "released", "lost")
"""What becomes of what a handler was given. `retried` is tried again, `failed` lies in the dead
letters or among the failed jobs, and `dropped` was given up by a group of a topic of dead letters,
which has none of its own. `released` was given back at no cost, and `lost` could not be settled: it
comes again, to somebody.
"""

# --- of a worker: what its handlers do ------------------------------------------------------------

HANDLED = Metric(
    "rowmq_handled_total",
    COUNTER,
    (*HANDLER, "outcome"),
    "Messages and jobs that handlers were given, by what became of them.",
)
FAILURES = Metric(
    "rowmq_handler_failures_total", COUNTER, HANDLER, "How often handlers have raised."
)
GIVEN_UP = Metric(
    "rowmq_given_up_total",
    COUNTER,
    HANDLER,
    "Messages and jobs that no handler was given: unreadable, or delivered too often.",
)
HANDLER_SECONDS = Metric(
    "rowmq_handler_seconds", HISTOGRAM, HANDLER, "How long handlers took.", HANDLER_BOUNDS
)
WAIT_SECONDS = Metric(
    "rowmq_wait_seconds",
    HISTOGRAM,
    HANDLER,
    "From when a message was published, or a job was due, to its handler; of messages, first "
    "deliveries only.",
    WAIT_BOUNDS,
)
RUNNING = Metric("rowmq_handlers_running", GAUGE, HANDLER, "Handlers at work.")
BUFFERED = Metric(
    "rowmq_handler_buffered", GAUGE, HANDLER, "What was fetched and could be begun at once."
)
UNSETTLED = Metric(
    "rowmq_handler_unsettled", GAUGE, HANDLER, "What handlers are done with and is not settled yet."
)
FETCHES = Metric("rowmq_fetches_total", COUNTER, HANDLER, "Looks for more, also in vain.")
FETCHED = Metric("rowmq_fetched_total", COUNTER, HANDLER, "Messages and jobs that were fetched.")
SETTLE_BATCHES = Metric(
    "rowmq_settle_batches_total", COUNTER, HANDLER, "Transactions that settled what handlers did."
)
SETTLED = Metric(
    "rowmq_settled_total", COUNTER, HANDLER, "Messages and jobs that these transactions settled."
)
SETTLE_FAILURES = Metric(
    "rowmq_settle_failures_total", COUNTER, HANDLER, "Such transactions that failed."
)
LEASES = Metric("rowmq_leases", GAUGE, GROUP, "Partitions that this worker has the lease of.")
LOCKS = Metric("rowmq_job_locks", GAUGE, (), "Locks of jobs that this worker keeps.")
SCHEDULE_FIRES = Metric(
    "rowmq_schedule_fires_total", COUNTER, ("schedule",), "Ticks that were made here."
)
HEALTHY = Metric(
    "rowmq_worker_healthy", GAUGE, ("app", "version"), "1 if the worker gets its work done."
)
UP_SECONDS = Metric("rowmq_worker_up_seconds", GAUGE, (), "How long the worker has been running.")
RESTARTS = Metric(
    "rowmq_worker_restarts_total", COUNTER, (), "How often a process that ended was started again."
)

# --- of any client: its connections and statements ------------------------------------------------

POOL_SIZE = Metric("rowmq_pool_size", GAUGE, (), "Connections that may be open.")
POOL_IN_USE = Metric("rowmq_pool_in_use", GAUGE, (), "Connections that are lent out.")
POOL_WAITS = Metric("rowmq_pool_waits_total", COUNTER, (), "Calls that waited for a connection.")
POOL_WAIT_SECONDS = Metric(
    "rowmq_pool_wait_seconds_total", COUNTER, (), "How long they have waited in all."
)
STATEMENT_SECONDS = Metric(
    "rowmq_statement_seconds",
    HISTOGRAM,
    ("statement",),
    "How long SQL statements took, by their names.",
    STATEMENT_BOUNDS,
    fixed=True,
)
STATEMENT_FAILURES = Metric(
    "rowmq_statement_failures_total",
    COUNTER,
    ("statement",),
    "SQL statements that failed.",
    fixed=True,
)

# --- of the database: the same, whoever tells it --------------------------------------------------

ANSWERS = Metric(
    "rowmq_database_answers", GAUGE, (), "1 if the database has told these figures lately."
)
LOOK_SECONDS = Metric(
    "rowmq_database_look_seconds", GAUGE, (), "How long it took to look these figures up."
)
PUBLISHED = Metric(
    "rowmq_topic_published_total", COUNTER, ("topic",), "Messages that were published."
)
MESSAGES = Metric("rowmq_topic_messages", GAUGE, ("topic",), "Messages in the log of a topic.")
PARTITIONS = Metric("rowmq_topic_partitions", GAUGE, ("topic",), "Partitions of a topic.")
TOPIC_CAPPED = Metric(
    "rowmq_topic_capped",
    GAUGE,
    ("topic",),
    "1 if a topic has more partitions than were looked at, and so more messages.",
)
ACKED = Metric(
    "rowmq_group_acked",
    GAUGE,
    GROUP,
    "Messages that a group is done with; a seek to the past lowers it.",
)
LAG = Metric("rowmq_group_lag", GAUGE, GROUP, "Messages that a group has not acked.")
GROUP_CAPPED = Metric(
    "rowmq_group_capped",
    GAUGE,
    GROUP,
    "1 if a group may be behind by more, or for longer, than is told: not all was looked at.",
)
IN_FLIGHT = Metric("rowmq_group_in_flight", GAUGE, GROUP, "Messages delivered and not settled.")
SUBSCRIBERS = Metric("rowmq_group_subscribers", GAUGE, GROUP, "Subscribers that are alive.")
EXPIRED = Metric(
    "rowmq_group_expired_total",
    COUNTER,
    GROUP,
    "Messages that retention let go of before the group had acked them.",
)
DEAD_LETTERS = Metric("rowmq_group_dead_letters", GAUGE, GROUP, "Dead letters that are there.")
OLDEST_SECONDS = Metric(
    "rowmq_group_oldest_seconds",
    GAUGE,
    GROUP,
    "How old the oldest message is that a group has not acked.",
)
JOBS = Metric(
    "rowmq_queue_jobs",
    GAUGE,
    ("queue", "state"),
    "Jobs by state; counted up to a limit: see rowmq_queue_capped.",
)
QUEUE_CAPPED = Metric(
    "rowmq_queue_capped", GAUGE, ("queue",), "1 if there are more jobs than were counted."
)
QUEUE_DUE = Metric("rowmq_queue_due", GAUGE, ("queue",), "Jobs that could be claimed now.")
QUEUE_OLDEST_SECONDS = Metric(
    "rowmq_queue_oldest_due_seconds",
    GAUGE,
    ("queue",),
    "How long the oldest job has been due that waits.",
)
QUEUE_LOCKS = Metric("rowmq_queue_locks", GAUGE, ("queue",), "Claims that have jobs of a queue.")
QUEUE_PAUSED = Metric("rowmq_queue_paused", GAUGE, ("queue",), "1 if nobody is given its jobs.")
QUEUE_PUT = Metric(
    "rowmq_queue_put_per_second", GAUGE, ("queue",), "Jobs that were put, over the last minute."
)
QUEUE_FINISHED = Metric(
    "rowmq_queue_finished_per_second",
    GAUGE,
    ("queue", "state"),
    "Jobs that were completed, or have failed, over the last minute.",
)

EVERYTHING: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
