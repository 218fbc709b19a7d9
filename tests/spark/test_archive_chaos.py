"""The archive under fire; `python -m tests.spark.chaos` does more of the same, on any database."""

from pathlib import Path

from tests.databases import Databases
from tests.spark.chaos import Chaos


def test_the_lake_is_exact_although_drivers_and_workers_are_killed(
    databases: Databases, tmp_path: Path
) -> None:
    chaos = Chaos(databases.get("postgres"), tmp_path / "lake")
    outcome = chaos.run(kills=1, worker_kills=1)
    assert (outcome.kills, outcome.worker_kills) == (1, 1)
    chaos.check()
