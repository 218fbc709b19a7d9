"""How a subscriber behaves: one frozen value, checked when it is made."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rowmq.errors import InvalidOption
from rowmq.naming import check_group, check_topic
from rowmq.options import check_flag, check_retry, check_type, own_name, positive, whole
from rowmq.policy import ExponentialBackoff, RetryStrategy
from rowmq.quoting import quoted
from rowmq.store.groups import STARTS
from rowmq.store.letters import Grave
from rowmq.times import Duration, to_seconds

__all__ = ["DLQ_ATTEMPTS", "Options", "options_of"]

DLQ_ATTEMPTS = 1_000
"""How often a dead letter is delivered to those who consume its topic, if they do not say."""

DEFAULT_ATTEMPTS = 3


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `subscribe`, checked; times in seconds."""

    topic: str
    group: str
    name: str
    start: str
    batch_size: int
    visibility: float
    max_attempts: int
    backoff: RetryStrategy
    lease_duration: float
    heartbeat_interval: float
    strict: bool
    dlq_suffix: str
    max_in_flight: int
    max_bytes: int
    flush_interval: float
    poll_interval: float
    discovery_interval: float
    idle_timeout: float
    type: Any
    on_lost: Callable[[Sequence[Any]], None] | None
    held: bool = False
    """Whether what was delivered stays invisible for as long as somebody has the delivery."""
    per_key: int | None = None
    """How many messages of one key may be in flight; those without a key are not limited."""

    @property
    def buries(self) -> bool:
        """Whether what fails goes to a dead-letter topic: from one it goes nowhere else."""
        return not self.topic.endswith(self.dlq_suffix)

    @property
    def grave(self) -> Grave:
        return Grave(self.topic, self.group, self.dlq_suffix)

    @property
    def lease_us(self) -> int:
        return round(self.lease_duration * 1_000_000)

    @property
    def visibility_us(self) -> int:
        return round(self.visibility * 1_000_000)


def options_of(
    topic: str,
    *,
    group: str,
    name: str | None,
    start: str,
    batch_size: int,
    visibility: Duration,
    max_attempts: int | None,
    backoff: RetryStrategy | None,
    lease_duration: Duration,
    heartbeat_interval: Duration | None,
    strict: bool,
    dlq_suffix: str,
    max_in_flight: int,
    max_bytes: int,
    flush_interval: Duration,
    poll_interval: Duration,
    discovery_interval: Duration,
    idle_timeout: Duration,
    type: Any,
    on_lost: Callable[[Sequence[Any]], None] | None,
) -> Options:
    """The checked options of `subscribe`."""
    lease = positive("lease_duration", lease_duration)
    beat = (
        lease / 3
        if heartbeat_interval is None
        else positive("heartbeat_interval", heartbeat_interval)
    )
    if beat >= lease:
        raise InvalidOption(
            f"heartbeat_interval ({beat:g} s) must be shorter than lease_duration ({lease:g} s), "
            f"best a third of it: leases are lost between heartbeats otherwise"
        )
    suffix = check_suffix(topic, dlq_suffix)
    attempts = max_attempts
    if attempts is None:
        attempts = DLQ_ATTEMPTS if topic.endswith(suffix) else DEFAULT_ATTEMPTS
    return Options(
        topic=check_topic(topic),
        group=check_group(group),
        name=own_name() if name is None else check_group(name, what="a subscriber's name"),
        start=check_start(start),
        batch_size=whole("batch_size", batch_size),
        visibility=positive("visibility", visibility),
        max_attempts=whole("max_attempts", attempts),
        backoff=check_retry("backoff", ExponentialBackoff() if backoff is None else backoff),
        lease_duration=lease,
        heartbeat_interval=beat,
        strict=check_flag("strict", strict),
        dlq_suffix=suffix,
        max_in_flight=whole("max_in_flight", max_in_flight),
        max_bytes=whole("max_bytes", max_bytes),
        flush_interval=to_seconds(flush_interval, name="flush_interval"),
        poll_interval=positive("poll_interval", poll_interval),
        discovery_interval=positive("discovery_interval", discovery_interval),
        idle_timeout=to_seconds(idle_timeout, name="idle_timeout"),
        type=check_type(type),
        on_lost=check_callback(on_lost),
    )


def check_start(start: str) -> str:
    if start not in STARTS:
        raise InvalidOption(f"start must be 'earliest' or 'latest', not {quoted(start)}")
    return start


def check_suffix(topic: str, suffix: str) -> str:
    """The suffix, if the dead-letter topic can have that name."""
    if not isinstance(suffix, str) or not suffix:
        raise InvalidOption(
            f"dlq_suffix must be some characters, such as '_dlq', not {quoted(suffix)}"
        )
    if not check_topic(topic).endswith(suffix):
        check_topic(topic + suffix)
    return suffix


def check_callback(
    on_lost: Callable[[Sequence[Any]], None] | None,
) -> Callable[[Sequence[Any]], None] | None:
    if on_lost is not None and not callable(on_lost):
        raise InvalidOption(
            f"on_lost must be a function of a list of deliveries, not {quoted(on_lost)}"
        )
    return on_lost
