"""RowMQ: the message queue inside the database you already run."""

from rowmq import errors
from rowmq.client import (
    DEFAULT_PREFIX,
    AsyncRowMQ,
    AsyncTransaction,
    RowMQ,
    Transaction,
    connect,
    connect_async,
    schema_sql,
)
from rowmq.message import Message, Migration, PublishResult, TopicInfo
from rowmq.store.statement import Result

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_PREFIX",
    "AsyncRowMQ",
    "AsyncTransaction",
    "Message",
    "Migration",
    "PublishResult",
    "Result",
    "RowMQ",
    "TopicInfo",
    "Transaction",
    "connect",
    "connect_async",
    "errors",
    "schema_sql",
]
