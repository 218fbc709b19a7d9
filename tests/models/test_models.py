"""Topics, queues and schedules do what their models say: the same few examples each time.

Many more, and others each time, are tried by `make models`.
"""

import pytest

from tests.databases import NAMES, Databases
from tests.models.running import MACHINES, run

EXAMPLES = {"sqlite": 40}
EXAMPLES_ON_SERVERS = 10


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_so_in_the_model_is_so_in_the_database(
    databases: Databases, name: str, machine: str
) -> None:
    examples = EXAMPLES.get(name, EXAMPLES_ON_SERVERS)
    run(databases, name, MACHINES[machine], examples)
