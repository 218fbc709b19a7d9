"""RowMQ: the message queue inside the database you already run."""

from rowmq import errors
from rowmq.client import (
    DEFAULT_PREFIX,
    AsyncDelivery,
    AsyncRowMQ,
    AsyncSubscriber,
    AsyncTransaction,
    Delivery,
    RowMQ,
    Subscriber,
    Transaction,
    connect,
    connect_async,
    schema_sql,
)
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
from rowmq.store.statement import Result

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
