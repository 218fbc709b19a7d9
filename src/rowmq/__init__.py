"""RowMQ: the message queue inside the database you already run."""

from rowmq import errors
from rowmq.access import Access, AsyncAccess
from rowmq.client import AsyncRowMQ, RowMQ, connect, connect_async, schema_sql
from rowmq.codec import Beginning
from rowmq.cron.cron import AsyncCron, Cron
from rowmq.doctor.thresholds import Thresholds
from rowmq.inspection import JobEvent, JobPage, JobStep, QueueBacklog
from rowmq.logs import keep_in_line
from rowmq.message import (
    Checkup,
    CronMessage,
    DeadLetter,
    DeliveryType,
    Finding,
    GroupInfo,
    JobError,
    LagInfo,
    Level,
    Message,
    Migration,
    Outcome,
    PartitionInfo,
    Pipelines,
    PublishResult,
    QueueInfo,
    ReaderInfo,
    RunningInfo,
    ScheduledMessage,
    ScheduleInfo,
    State,
    SubscriberInfo,
    TopicInfo,
    WorkerInfo,
    WriterInfo,
)
from rowmq.overview import (
    ANY,
    GroupTraffic,
    LetterKind,
    LetterPage,
    MessagePage,
    PurgeStep,
    RedriveStep,
    SeekPreview,
    SeekStep,
    TopicTraffic,
    Traffic,
)
from rowmq.policy import AckPolicy, Constant, ExponentialBackoff, Linear, NoRetry, RetryStrategy
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.poller import AsyncPoller, Poller
from rowmq.queue.queue import AsyncQueue, Queue
from rowmq.rights import AuditEntry, Ending, Role, TokenInfo
from rowmq.store.dialect import DEFAULT_PREFIX
from rowmq.store.statement import Result
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.subscriber import AsyncSubscriber, Subscriber
from rowmq.transaction import AsyncTransaction, Transaction
from rowmq.worker.app import App
from rowmq.worker.context import Context, Progress

__version__ = "0.1.0"

__all__ = [
    "ANY",
    "DEFAULT_PREFIX",
    "Access",
    "AckPolicy",
    "App",
    "AsyncAccess",
    "AsyncCron",
    "AsyncDelivery",
    "AsyncJob",
    "AsyncPoller",
    "AsyncQueue",
    "AsyncRowMQ",
    "AsyncSubscriber",
    "AsyncTransaction",
    "AuditEntry",
    "Beginning",
    "Checkup",
    "Constant",
    "Context",
    "Cron",
    "CronMessage",
    "DeadLetter",
    "Delivery",
    "DeliveryType",
    "Ending",
    "ExponentialBackoff",
    "Finding",
    "GroupInfo",
    "GroupTraffic",
    "Job",
    "JobError",
    "JobEvent",
    "JobPage",
    "JobStep",
    "LagInfo",
    "LetterKind",
    "LetterPage",
    "Level",
    "Linear",
    "Message",
    "MessagePage",
    "Migration",
    "NoRetry",
    "Outcome",
    "PartitionInfo",
    "Pipelines",
    "Poller",
    "Progress",
    "PublishResult",
    "PurgeStep",
    "Queue",
    "QueueBacklog",
    "QueueInfo",
    "ReaderInfo",
    "RedriveStep",
    "Result",
    "RetryStrategy",
    "Role",
    "RowMQ",
    "RunningInfo",
    "ScheduleInfo",
    "ScheduledMessage",
    "SeekPreview",
    "SeekStep",
    "State",
    "Subscriber",
    "SubscriberInfo",
    "Thresholds",
    "TokenInfo",
    "TopicInfo",
    "TopicTraffic",
    "Traffic",
    "Transaction",
    "WorkerInfo",
    "WriterInfo",
    "connect",
    "connect_async",
    "errors",
    "schema_sql",
]

keep_in_line()
