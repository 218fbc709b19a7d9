"""Topics, queues and schedules do what their models say: the same few examples each time.

Many more, and others each time, are tried by `make models`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.databases import NAMES, Databases
from tests.models.queue_model import QueueModel
from tests.models.running import MACHINES, run
from tests.models.schedule_model import ScheduleModel
from tests.models.topic_model import TopicModel

EXAMPLES = {"sqlite": 20}
EXAMPLES_ON_SERVERS = 6


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_so_in_the_model_is_so_in_the_database(
    databases: Databases, name: str, machine: str
) -> None:
    examples = EXAMPLES.get(name, EXAMPLES_ON_SERVERS)
    run(databases, name, MACHINES[machine], examples)


def reversed_of(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    return lambda *given, **how: function(*given, **how)[::-1]


WRONG: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "topics": (TopicModel, "lag", lambda *_: 0),
    "queues": (QueueModel, "claimable", reversed_of(QueueModel.claimable)),
    "schedules": (ScheduleModel, "tend", lambda *_: 0),
}
"""What a model may be mistaken in."""


@pytest.mark.parametrize("machine", MACHINES)
def test_what_differs_is_told(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(*WRONG[machine])
    with pytest.raises((AssertionError, ExceptionGroup)):
        run(databases, "sqlite", MACHINES[machine], EXAMPLES["sqlite"], shorten=False)
