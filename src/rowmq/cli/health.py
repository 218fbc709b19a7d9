"""What a worker answers over HTTP: how it does (200 if it is well, 503 if not, and JSON that says
why), and its metrics.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click
import msgspec

from rowmq.errors import InvalidOption
from rowmq.telemetry.families import Family
from rowmq.worker import serving
from rowmq.worker.serving import Address, Answer, Answers, metrics_answers

__all__ = ["Address", "Endpoints", "address_of"]

READY = ("/", "/health", "/healthz", "/readyz")
"""Whether it gets its work done; in an outage of the database it does not."""

LIVE = ("/livez",)
"""Whether it is worth keeping: starting it again mends no outage."""


def address_of(value: str) -> Address:
    """The address of `port` or `host:port`; without a host, only this machine can ask."""
    try:
        return serving.address_of(value)
    except InvalidOption as error:
        raise click.BadParameter(str(error)) from None


class Endpoints:
    """Where a worker answers about its health, and its metrics: perhaps both at one address."""

    def __init__(self, health: Address | None, metrics: Address | None) -> None:
        self.health = health
        self.metrics = metrics

    @contextlib.contextmanager
    def serve(
        self, health: Callable[[], dict[str, Any]], families: Callable[[], list[Family]] | None
    ) -> Iterator[None]:
        """Answer, from threads, for as long as the block runs."""
        told: list[tuple[str, Address, Answers]] = []
        if self.health is not None:
            told.append(("health", self.health, health_answers(health)))
        if self.metrics is not None and families is not None:
            told.append(("metrics", self.metrics, metrics_answers(families)))
        if len(told) == 2 and self.health == self.metrics:
            told = [("health", told[0][1], {**told[0][2], **told[1][2]})]
        with contextlib.ExitStack() as stack:
            for name, address, answers in told:
                listen(stack, name, address, answers)
            yield


def listen(stack: contextlib.ExitStack, name: str, address: Address, answers: Answers) -> None:
    """Answer at an address until the stack is closed."""
    try:
        stack.enter_context(serving.serving(address, answers, name=name))
    except OSError as error:
        host, port = address
        raise click.UsageError(f"cannot listen on {host}:{port} for --{name}: {error}") from error


def health_answers(health: Callable[[], dict[str, Any]]) -> Answers:
    """The paths of health checks."""

    def answer(deciding: str) -> Answer:
        told = health()
        status = 200 if told[deciding] else 503
        return Answer(status, "application/json", msgspec.json.encode(told))

    ready = {path: partial(answer, "healthy") for path in READY}
    return ready | {path: partial(answer, "alive") for path in LIVE}
