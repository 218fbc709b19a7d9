"""Every error RowMQ raises, in one tree.

`RowMQError` is the root. Each branch answers one question: is the input wrong (`InvalidInput`), is
the set-up wrong (`ConfigurationError`), or did the database say no (`DatabaseError`)? A message
always says what to do next. Errors of the first two kinds are raised before anything is written.
"""

__all__ = [
    "AlreadySettled",
    "AuthenticationFailed",
    "Closed",
    "ConfigurationError",
    "ConnectionLost",
    "DataLoss",
    "DatabaseError",
    "DatabaseUnreachable",
    "Deadlock",
    "InvalidGroup",
    "InvalidHeaders",
    "InvalidId",
    "InvalidInput",
    "InvalidKey",
    "InvalidName",
    "InvalidOption",
    "InvalidQueue",
    "InvalidSchedule",
    "InvalidTopic",
    "InvalidURL",
    "JavaNotFound",
    "KeyTaken",
    "LakeConflict",
    "LakeError",
    "LakeMismatch",
    "Locked",
    "MissingExtra",
    "MissingTable",
    "NaiveDatetime",
    "NoTransaction",
    "NotADatabase",
    "NotClaimed",
    "PayloadMismatch",
    "PayloadNotSerializable",
    "PayloadTooLarge",
    "PipelineFailed",
    "PoolTimeout",
    "RowMQError",
    "SchemaError",
    "SchemaMissing",
    "SchemaTooNew",
    "SchemaTooOld",
    "SerializationFailure",
    "StageLost",
    "StaleLease",
    "StatementTooLarge",
    "TokenTaken",
    "TransactionFailed",
    "TransientError",
    "UniqueViolation",
    "UnknownGroup",
    "UnknownSchedule",
    "UnknownScheme",
    "UnsupportedConnection",
]


class RowMQError(Exception):
    """The root of every error of this library."""

    in_doubt: bool = False
    """Whether what was asked for may have been done all the same, since its answer was lost."""


# --- the input is wrong: nothing was written ---------------------------------------------------


class InvalidInput(RowMQError, ValueError):
    """A value given to a call cannot be accepted. Nothing was written."""


class InvalidName(InvalidInput):
    """A name is empty, too long, or holds a character that no database can store."""


class InvalidTopic(InvalidName):
    """A topic's name cannot be used."""


class InvalidGroup(InvalidName):
    """The name of a consumer group, or of a subscriber, cannot be used."""


class InvalidQueue(InvalidName):
    """The name of a queue, or of a kind of job, cannot be used."""


class InvalidSchedule(InvalidName):
    """The name of a schedule, a prefix of ticks or the hash of a configuration cannot be used."""


class InvalidKey(InvalidName):
    """A key cannot be used."""


class InvalidId(InvalidName):
    """A message id cannot be used."""


class InvalidHeaders(InvalidInput):
    """Headers are not a mapping of `str` to `str`, or are too large together."""


class InvalidOption(InvalidInput):
    """An option of a call is out of its range."""


class UnknownGroup(InvalidInput):
    """A topic has no consumer group of this name; or it had, and it was dropped."""


class UnknownSchedule(InvalidInput):
    """There is no schedule of this name; or there was, and it was removed."""


class KeyTaken(InvalidInput):
    """A live job has this key already."""


class TokenTaken(InvalidInput):
    """A token of this name is in use."""


class NotClaimed(InvalidInput):
    """A job is to be settled that was not claimed, but only put or looked at."""


class NaiveDatetime(InvalidInput):
    """A datetime has no time zone, so it names no moment."""


class PayloadTooLarge(InvalidInput):
    """A payload is larger than its topic or queue allows."""


class PayloadNotSerializable(InvalidInput):
    """A payload is neither bytes, nor text, nor anything JSON can hold."""


class PayloadMismatch(InvalidInput):
    """A stored payload does not parse as the type that was asked for. It is still stored."""


# --- the set-up is wrong ------------------------------------------------------------------------


class ConfigurationError(RowMQError):
    """RowMQ is set up in a way that cannot work."""


class InvalidURL(ConfigurationError, ValueError):
    """A database URL cannot be understood."""


class UnknownScheme(InvalidURL):
    """A database URL names a database that RowMQ does not speak."""


class MissingExtra(ConfigurationError, ImportError):
    """A driver, or what Spark needs, is not installed; the message names the extra for it."""


class JavaNotFound(ConfigurationError):
    """Spark is asked for, and there is no Java that it runs on."""


class UnsupportedConnection(ConfigurationError, TypeError):
    """The object given as `connection=` cannot be used with this client."""


class NoTransaction(ConfigurationError):
    """The connection given as `connection=` has no transaction open, so nothing would be atomic."""


class Closed(ConfigurationError):
    """The client was closed before this call."""


class SchemaError(ConfigurationError):
    """The tables in the database are not the ones this version of RowMQ works with."""


class SchemaMissing(SchemaError):
    """The database has no RowMQ tables yet."""


class SchemaTooOld(SchemaError):
    """The tables are older than this library: they want a migration."""


class SchemaTooNew(SchemaError):
    """The tables are newer than this library: it wants an upgrade."""


# --- a delivery or a job cannot be settled: nothing was written ---------------------------------


class StaleLease(RowMQError):
    """The lease on a message's partition, or the lock on a job, was lost: this settle changed
    nothing.

    The message or the job is, or will be, delivered to somebody else; unless the job was updated or
    dropped.
    """


class AlreadySettled(RowMQError):
    """A delivery or a job was settled before; the first settle stands."""


class DataLoss(RowMQError):
    """Messages that were to be read are not there any more."""


class StageLost(RowMQError):
    """Rows that Spark's tasks had written are not there any more, so none of them was published."""


class LakeError(RowMQError):
    """A table of the lake cannot be read or written."""


class LakeConflict(LakeError):
    """Somebody else wrote to the lake at the same time, so nothing was added to it."""


class LakeMismatch(LakeError):
    """The lake does not go with the database: what it holds is from another one."""


class PipelineFailed(RowMQError):
    """Spark gave up on a job of a pipeline; what it had done before stands."""


# --- the database said no -----------------------------------------------------------------------


class DatabaseError(RowMQError):
    """The database refused a statement; the driver's own error is its `__cause__`."""


class UniqueViolation(DatabaseError):
    """A row with the same unique key exists."""


class TransactionFailed(DatabaseError):
    """A transaction of `mq.transaction()` cannot be committed: something in it failed earlier."""


class MissingTable(DatabaseError):
    """A statement names a table that is not there."""


class StatementTooLarge(DatabaseError):
    """The server accepts no statement of this size; the message names the setting to raise."""


class AuthenticationFailed(DatabaseError):
    """The server refused the user or the password."""


class NotADatabase(DatabaseError):
    """The file is not an SQLite database."""


class TransientError(DatabaseError):
    """The same work may succeed when it is tried again.

    RowMQ has then already tried again, for as long as `retry_for` allows, unless the work ran
    inside the caller's own transaction: there, roll back and repeat the whole transaction.
    """


class Deadlock(TransientError):
    """The database ended this transaction so that another could go on."""


class SerializationFailure(TransientError):
    """The database could not order this transaction among the others."""


class Locked(TransientError):
    """A lock was not released in time."""


class ConnectionLost(TransientError):
    """The connection broke. What was being committed may or may not have happened."""

    in_doubt = True


class DatabaseUnreachable(TransientError):
    """No connection could be made to the server, or the file cannot be opened."""


class PoolTimeout(TransientError):
    """All connections of the pool were in use for the whole waiting time."""
