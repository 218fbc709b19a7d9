"""What an option may be: counts, durations, switches, strategies, types."""

import os
import secrets
import socket
from typing import Any

from rowmq.codec import Encoding, NoForm, decode
from rowmq.errors import InvalidOption, PayloadMismatch
from rowmq.policy import RetryStrategy
from rowmq.quoting import quoted
from rowmq.times import Duration, to_seconds

__all__ = ["check_flag", "check_retry", "check_type", "own_name", "positive", "whole"]

NAME_CHARS_MAX = 100


def positive(name: str, duration: Duration) -> float:
    """Seconds of a duration that must be more than none."""
    seconds = to_seconds(duration, name=name)
    if seconds < 0.001:
        raise InvalidOption(f"{name} must be at least a millisecond, not {quoted(duration)}")
    return seconds


def whole(name: str, value: int) -> int:
    """A whole number from 1 on."""
    if type(value) is not int or not 1 <= value < 2**31:
        raise InvalidOption(f"{name} must be a whole number from 1 on, not {quoted(value)}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """True or False, and nothing that only looks like it."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, not {quoted(value)}")
    return value


def check_retry(name: str, strategy: RetryStrategy) -> RetryStrategy:
    """A retry strategy, one of RowMQ's or the user's own."""
    if not isinstance(strategy, RetryStrategy) or isinstance(strategy, type):
        raise InvalidOption(
            f"{name} must be a retry strategy such as rowmq.ExponentialBackoff(), not "
            f"{quoted(strategy)}; one of your own has delay(attempt, *, random) and max_attempts"
        )
    return strategy


def check_type(type: Any) -> Any:
    """The type of payloads, if anything could ever parse as it: else all would fail."""
    if isinstance(type, str):
        raise InvalidOption(f"type must be the class itself, not its name, {quoted(type)}")
    try:
        decode(b"null", Encoding.JSON, type)
    except PayloadMismatch as error:
        cause = error.__cause__
        if isinstance(cause, TypeError) or (cause and isinstance(cause.__cause__, NoForm)):
            raise InvalidOption(
                f"no payload can be read as type={quoted(type)} ({error})"
            ) from error
    except Exception:  # noqa: BLE001, S110 - a type's own code may raise for this payload
        pass
    return type


def own_name() -> str:
    """A name that tells people where this process runs."""
    return f"{socket.gethostname()[:NAME_CHARS_MAX]}-{os.getpid()}-{secrets.token_hex(3)}"
