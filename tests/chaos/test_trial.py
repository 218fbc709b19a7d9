"""Two short trials: all of `python -m tests.chaos` works, and its verdict is good."""

from pathlib import Path
from urllib.parse import urlsplit

from tests.chaos.faults import FAULTS
from tests.chaos.places import PostgresPlace, SQLitePlace
from tests.chaos.proxy import Proxy
from tests.chaos.trial import try_fault
from tests.databases import Databases, PostgresDatabase

SECONDS = 1.0


def test_nothing_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    place = SQLitePlace(tmp_path)
    verdict = try_fault(FAULTS["kill"], place, tmp_path, seconds=SECONDS, seed=1, count=1)
    assert verdict.stories == []
    assert verdict.messages


def test_nothing_is_lost_when_connections_are_cut(databases: Databases, tmp_path: Path) -> None:
    database = databases.get("postgres")
    assert isinstance(database, PostgresDatabase)
    with Proxy(urlsplit(database.url).port or 5432) as proxy:
        place = PostgresPlace(database, proxy, None)
        verdict = try_fault(FAULTS["cut"], place, tmp_path, seconds=SECONDS, seed=1, count=1)
    assert verdict.stories == []
    assert verdict.messages
