"""RowMQ: the message queue inside the database you already run."""

from rowmq import errors
from rowmq.client import AsyncRowMQ, RowMQ, connect, connect_async, schema_sql
from rowmq.message import (
    DeadLetter,
    DeliveryType,
    GroupInfo,
    JobError,
    LagInfo,
    Message,
    Migration,
    Outcome,
    PublishResult,
    QueueInfo,
    ScheduledMessage,
    State,
    TopicInfo,
)
from rowmq.policy import Constant, ExponentialBackoff, Linear, NoRetry, RetryStrategy
from rowmq.queue.job import AsyncJob, Job
from rowmq.queue.poller import AsyncPoller, Poller
from rowmq.queue.queue import AsyncQueue, Queue
from rowmq.store.dialect import DEFAULT_PREFIX
from rowmq.store.statement import Result
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.subscriber import AsyncSubscriber, Subscriber
from rowmq.transaction import AsyncTransaction, Transaction

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_PREFIX",
    "AsyncDelivery",
    "AsyncJob",
    "AsyncPoller",
    "AsyncQueue",
    "AsyncRowMQ",
    "AsyncSubscriber",
    "AsyncTransaction",
    "Constant",
    "DeadLetter",
    "Delivery",
    "DeliveryType",
    "ExponentialBackoff",
    "GroupInfo",
    "Job",
    "JobError",
    "LagInfo",
    "Linear",
    "Message",
    "Migration",
    "NoRetry",
    "Outcome",
    "Poller",
    "PublishResult",
    "Queue",
    "QueueInfo",
    "Result",
    "RetryStrategy",
    "RowMQ",
    "ScheduledMessage",
    "State",
    "Subscriber",
    "TopicInfo",
    "Transaction",
    "connect",
    "connect_async",
    "errors",
    "schema_sql",
]
