"""What may be a name: topics, queues, keys, message ids, headers, table prefixes.

Names are data. Anything Unicode goes (`%`, quotes, spaces, emoji; `Key` and `key` differ), as long
as every database stores exactly what was given: not empty, no NUL, valid UTF-8, and short enough
for the columns. Lengths are counted in UTF-8 bytes, as the databases' index limits are.
"""

import re
from collections.abc import Mapping

from rowmq.errors import (
    ConfigurationError,
    InvalidGroup,
    InvalidHeaders,
    InvalidId,
    InvalidInput,
    InvalidKey,
    InvalidName,
    InvalidQueue,
    InvalidSchedule,
    InvalidTopic,
)
from rowmq.quoting import quoted

__all__ = [
    "GROUP_BYTES_MAX",
    "HEADERS_BYTES_MAX",
    "ID_BYTES_MAX",
    "KEY_BYTES_MAX",
    "KIND_BYTES_MAX",
    "QUEUE_BYTES_MAX",
    "SCHEDULE_BYTES_MAX",
    "SHARD_MARK",
    "TOKEN_BYTES_MAX",
    "TOPIC_BYTES_MAX",
    "check_group",
    "check_headers",
    "check_id",
    "check_identifier",
    "check_job_key",
    "check_key",
    "check_kind",
    "check_queue",
    "check_schedule",
    "check_scope",
    "check_token",
    "check_topic",
]

TOPIC_BYTES_MAX = 200
QUEUE_BYTES_MAX = 200
KIND_BYTES_MAX = 200
GROUP_BYTES_MAX = 200
SCHEDULE_BYTES_MAX = 200
TOKEN_BYTES_MAX = 200
SCOPE_BYTES_MAX = TOPIC_BYTES_MAX + 1
KEY_BYTES_MAX = 255
ID_BYTES_MAX = 255
HEADERS_BYTES_MAX = 64 * 1024

SHARD_MARK = "\x01"
"""What a stored key begins with that stands for no key: so none that is given may."""

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,39}")


def check_topic(topic: str) -> str:
    """The topic's name, if it can be one."""
    return _check(topic, "a topic", TOPIC_BYTES_MAX, InvalidTopic)


def check_queue(queue: str) -> str:
    """The queue's name, if it can be one."""
    return _check(queue, "a queue", QUEUE_BYTES_MAX, InvalidQueue)


def check_kind(kind: str) -> str:
    """The name of a payload's type, if it can be one."""
    return _check(kind, "a kind", KIND_BYTES_MAX, InvalidQueue)


def check_key(key: str | None) -> str | None:
    """A message's key, if it can be one. None is right: such a message needs no order."""
    if key is None:
        return None
    checked = _check(key, "a key", KEY_BYTES_MAX, InvalidKey, hint="; leave it out for none")
    if checked[0] == SHARD_MARK:
        raise InvalidKey("a key must not begin with the character U+0001, which stands for none")
    return checked


def check_job_key(key: str | None, *, what: str = "a key") -> str | None:
    """A job's key or ordering key, if it can be one. None is right."""
    if key is None:
        return None
    return _check(key, what, KEY_BYTES_MAX, InvalidKey, hint="; leave it out for none")


def check_group(group: str, *, what: str = "a group") -> str:
    """The name of a consumer group, or of a subscriber, if it can be one."""
    return _check(group, what, GROUP_BYTES_MAX, InvalidGroup)


def check_schedule(
    name: str, *, what: str = "a schedule's name", bytes_max: int = SCHEDULE_BYTES_MAX
) -> str:
    """The name of a schedule, or what stands for one, if it can be one."""
    name = _check(name, what, bytes_max, InvalidSchedule)
    if not name.strip():
        raise InvalidSchedule(f"{what} must not be blank: people are to know it again")
    return name


def check_token(name: str) -> str:
    """The name of a token, if it can be one."""
    return _check(name, "a token's name", TOKEN_BYTES_MAX, InvalidName)


def check_scope(scope: str) -> str:
    """A name, or a prefix that ends in `*`, if it can be the scope of a token."""
    return _check(scope, "a scope", SCOPE_BYTES_MAX, InvalidName)


def check_id(id: str) -> str:
    """The message id, if it can be one."""
    return _check(id, "an id", ID_BYTES_MAX, InvalidId, hint="; leave it out to have one made")


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """A plain dictionary of the headers; none is an empty one."""
    if headers is None or (type(headers) is dict and not headers):
        return {}
    if not isinstance(headers, Mapping):
        raise InvalidHeaders(f"headers must map str to str, not be a {type(headers).__name__}")
    size = 0
    plain = {}
    for name, value in headers.items():
        size += len(_utf8(name, "a header's name", InvalidHeaders))
        size += len(_utf8(value, f"header {quoted(name)}", InvalidHeaders))
        plain[_plain(name)] = _plain(value)
    if size > HEADERS_BYTES_MAX:
        raise InvalidHeaders(
            f"headers take {size:,} bytes and {HEADERS_BYTES_MAX:,} is the limit: "
            f"put large values into the payload"
        )
    return plain


def check_identifier(name: str, *, what: str) -> str:
    """A table prefix or schema name. It becomes part of SQL, so only plain characters will do."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(
            f"{what} must be 1 to 40 of the characters a-z, 0-9 and _, not starting with a digit; "
            f"got {quoted(name)}"
        )
    return name


def _check(value: str, what: str, bytes_max: int, error: type[InvalidName], hint: str = "") -> str:
    # Nearly every name is plain ASCII and short: that much is seen at a glance.
    if type(value) is str and 0 < len(value) <= bytes_max and value.isascii() and "\0" not in value:
        return value
    size = len(_utf8(value, what, error))
    if size == 0:
        raise error(f"{what} must not be empty{hint}")
    if size > bytes_max:
        raise error(
            f"{what} may have at most {bytes_max} bytes in UTF-8 and this one has {size}: "
            f"{value[:40]!r}... Shorten it, for example by hashing its end"
        )
    return _plain(value)


def _plain(value: str) -> str:
    """The str of a subclass, such as an enum's or numpy's, which not every driver would take."""
    return str.__str__(value)


def _utf8(value: str, what: str, error: type[InvalidInput]) -> bytes:
    if not isinstance(value, str):
        raise error(f"{what} must be a str, not {quoted(value)}")
    if "\0" in value:
        raise error(f"{what} must not hold the NUL character, which databases cannot store")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise error(
            f"{what} must be valid Unicode: {quoted(value)} holds a lone surrogate"
        ) from None
