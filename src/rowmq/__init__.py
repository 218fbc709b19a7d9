"""RowMQ: the message queue inside the database you already run."""

from rowmq import errors
from rowmq.client import AsyncRowMQ, RowMQ, connect, connect_async, schema_sql
from rowmq.cron.cron import AsyncCron, Cron
from rowmq.doctor.thresholds import Thresholds
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
    PublishResult,
    QueueInfo,
    RunningInfo,
    ScheduledMessage,
    ScheduleInfo,
    State,
    TopicInfo,
    WorkerInfo,
)
from rowmq.policy import AckPolicy, Constant, ExponentialBackoff, Linear, NoRetry, RetryStrategy
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.poller import AsyncPoller, Poller
from rowmq.queue.queue import AsyncQueue, Queue
from rowmq.store.dialect import DEFAULT_PREFIX
from rowmq.store.statement import Result
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.subscriber import AsyncSubscriber, Subscriber
from rowmq.transaction import AsyncTransaction, Transaction
from rowmq.worker.app import App
from rowmq.worker.context import Context, Progress

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_PREFIX",
    "AckPolicy",
    "App",
    "AsyncCron",
    "AsyncDelivery",
    "AsyncJob",
    "AsyncPoller",
    "AsyncQueue",
    "AsyncRowMQ",
    "AsyncSubscriber",
    "AsyncTransaction",
    "Checkup",
    "Constant",
    "Context",
    "Cron",
    "CronMessage",
    "DeadLetter",
    "Delivery",
    "DeliveryType",
    "ExponentialBackoff",
    "Finding",
    "GroupInfo",
    "Job",
    "JobError",
    "LagInfo",
    "Level",
    "Linear",
    "Message",
    "Migration",
    "NoRetry",
    "Outcome",
    "PartitionInfo",
    "Poller",
    "Progress",
    "PublishResult",
    "Queue",
    "QueueInfo",
    "Result",
    "RetryStrategy",
    "RowMQ",
    "RunningInfo",
    "ScheduleInfo",
    "ScheduledMessage",
    "State",
    "Subscriber",
    "Thresholds",
    "TopicInfo",
    "Transaction",
    "WorkerInfo",
    "connect",
    "connect_async",
    "errors",
    "schema_sql",
]

keep_in_line()
