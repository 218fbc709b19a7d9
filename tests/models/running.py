"""Runs machines: for so many examples, on a database."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.databases import Databases
from tests.models.queue_machine import QueueMachine
from tests.models.schedule_machine import ScheduleMachine
from tests.models.topic_machine import TopicMachine
from tests.models.world import World

__all__ = ["MACHINES", "STEPS", "run"]

Machine = Callable[[World], RuleBasedStateMachine]

MACHINES: dict[str, Machine] = {
    "topics": TopicMachine,
    "queues": QueueMachine,
    "schedules": ScheduleMachine,
}

STEPS = 40
"""How many rules an example has at most."""


def run(
    databases: Databases,
    name: str,
    machine: Machine,
    examples: int,
    *,
    derandomize: bool = True,
    shorten: bool = True,
) -> None:
    """Compare a machine with its model; raise what differs, with the shortest way to it that was
    found, if it is to be shortened.
    """
    world = World(databases, name)
    # What an example takes says how busy the machine is. Nothing is remembered from run to run.
    how = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink) if shorten else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    try:
        make: Any = lambda: machine(world)  # noqa: E731 - it is called as a class would be
        run_state_machine_as_test(make, settings=how)
    finally:
        world.close()
