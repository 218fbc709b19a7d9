"""How a client gets subscribers: `subscribe`, with all its options.

Both clients have this method. The options are checked in `options.py`, once; what a subscriber then
does is in `subscriber.py`.
"""

import builtins
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from rowmq.policy import RetryStrategy
from rowmq.subscriber.delivery import AsyncDelivery, Delivery
from rowmq.subscriber.home import Home
from rowmq.subscriber.options import options_of
from rowmq.subscriber.subscriber import AsyncSubscriber, Subscriber
from rowmq.times import Duration

__all__ = ["AsyncSubscribing", "Subscribing"]

T = TypeVar("T")


class Subscribing:
    """Subscribing to topics, for sync code."""

    _home: Home

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: None = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[Delivery[Any]]], None] | None = None,
    ) -> "Subscriber[Any]": ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: builtins.type[T],
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[Delivery[Any]]], None] | None = None,
    ) -> "Subscriber[T]": ...

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: Any = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[Delivery[Any]]], None] | None = None,
    ) -> "Subscriber[Any]":
        """Join a consumer group, which is created if it is new, and consume a topic.

        A message that is not settled within `visibility` is delivered again. After `max_attempts`
        (3, if not given; 1,000 for a dead-letter topic) it goes to the dead letters; `backoff` says
        how long a nacked one waits. `strict` has one message of a key in flight at a time.
        `max_in_flight` and `max_bytes` bound what is delivered and not settled. Payloads come as
        `type`, if one is given. `on_lost` is told of deliveries whose lease was lost.

        Close it, or leave its `with` block, and others take over at once; otherwise they do when
        `lease_duration` has passed since its last heartbeat.
        """
        options = options_of(
            topic,
            group=group,
            name=name,
            batch_size=batch_size,
            visibility=visibility,
            max_attempts=max_attempts,
            backoff=backoff,
            lease_duration=lease_duration,
            heartbeat_interval=heartbeat_interval,
            strict=strict,
            dlq_suffix=dlq_suffix,
            start=start,
            type=type,
            max_in_flight=max_in_flight,
            max_bytes=max_bytes,
            flush_interval=flush_interval,
            poll_interval=poll_interval,
            discovery_interval=discovery_interval,
            idle_timeout=idle_timeout,
            on_lost=on_lost,
        )
        subscriber: Subscriber[Any] = Subscriber(self._home, options)
        self._home.entered(subscriber)
        return subscriber


class AsyncSubscribing:
    """Subscribing to topics, for async code."""

    _home: Home

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: None = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[AsyncDelivery[Any]]], None] | None = None,
    ) -> "AsyncSubscriber[Any]": ...

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: builtins.type[T],
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[AsyncDelivery[Any]]], None] | None = None,
    ) -> "AsyncSubscriber[T]": ...

    def subscribe(
        self,
        topic: str,
        *,
        group: str,
        name: str | None = None,
        batch_size: int = 10,
        visibility: Duration = 60.0,
        max_attempts: int | None = None,
        backoff: RetryStrategy | None = None,
        lease_duration: Duration = 30.0,
        heartbeat_interval: Duration | None = None,
        strict: bool = False,
        dlq_suffix: str = "_dlq",
        start: str = "earliest",
        type: Any = None,
        max_in_flight: int = 1_000,
        max_bytes: int = 64 * 1024 * 1024,
        flush_interval: Duration = 0.0,
        poll_interval: Duration = 0.1,
        discovery_interval: Duration = 1.0,
        idle_timeout: Duration = 60.0,
        on_lost: Callable[[Sequence[AsyncDelivery[Any]]], None] | None = None,
    ) -> "AsyncSubscriber[Any]":
        """Join a consumer group and consume a topic, with `async with` or `await`: see
        `RowMQ.subscribe`.
        """
        options = options_of(
            topic,
            group=group,
            name=name,
            batch_size=batch_size,
            visibility=visibility,
            max_attempts=max_attempts,
            backoff=backoff,
            lease_duration=lease_duration,
            heartbeat_interval=heartbeat_interval,
            strict=strict,
            dlq_suffix=dlq_suffix,
            start=start,
            type=type,
            max_in_flight=max_in_flight,
            max_bytes=max_bytes,
            flush_interval=flush_interval,
            poll_interval=poll_interval,
            discovery_interval=discovery_interval,
            idle_timeout=idle_timeout,
            on_lost=on_lost,
        )
        subscriber: AsyncSubscriber[Any] = AsyncSubscriber(self._home, options)
        self._home.entered(subscriber)
        return subscriber
