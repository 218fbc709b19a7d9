"""RowMQ: the message queue inside the database you already run."""

from rowmq import errors
from rowmq.client import AsyncRowMQ, RowMQ, connect, connect_async, schema_sql
from rowmq.message import (
    DeadLetter,
    GroupInfo,
    LagInfo,
    Message,
    Migration,
    PublishResult,
    TopicInfo,
)
from rowmq.policy import Constant, ExponentialBackoff, Linear, NoRetry, RetryStrategy
from rowmq.store.dialect import DEFAULT_PREFIX
from rowmq.store.statement import Result
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.subscriber import AsyncSubscriber, Subscriber
from rowmq.transaction import AsyncTransaction, Transaction

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_PREFIX",
    "AsyncDelivery",
    "AsyncRowMQ",
    "AsyncSubscriber",
    "AsyncTransaction",
    "Constant",
    "DeadLetter",
    "Delivery",
    "ExponentialBackoff",
    "GroupInfo",
    "LagInfo",
    "Linear",
    "Message",
    "Migration",
    "NoRetry",
    "PublishResult",
    "Result",
    "RetryStrategy",
    "RowMQ",
    "Subscriber",
    "TopicInfo",
    "Transaction",
    "connect",
    "connect_async",
    "errors",
    "schema_sql",
]
