"""The archive under fire; `python -m tests.spark.chaos` does more of the same, on any database."""

from pathlib import Path

from tests.databases import Databases
from tests.spark.chaos import Chaos


def test_the_lake_is_exact_although_drivers_and_workers_are_killed(
    databases: Databases, tmp_path: Path
) -> None:
    chaos = Chaos(databases.get("postgres"), tmp_path / "lake")
    outcome = chaos.run(kills=2, worker_kills=2)
    assert (outcome.kills, outcome.worker_kills) == (2, 2)
    chaos.check()
