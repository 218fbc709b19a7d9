"""The page about performance has the figures of a run, and none that were typed."""

from benchmarks.page import PAGE, fill
from rowmq.bench.benchmark import scenarios_of
from rowmq.bench.scenarios.plan import Plan
from tests.pages import PLACE
from tests.unit.bench.measured import line, results

TEXT = """# Performance

<!-- figures: queues-one postgresql -->
something old
<!-- end -->

Between.

<!-- figures: queues-one sqlite -->
<!-- end -->
"""


def test_places_are_filled_with_tables_and_plots_and_the_rest_stays() -> None:
    found = results(
        line("rowmq", "batches of 100", rate=4_000.0, reference=True),
        line("pgqueuer", "", rate=1_000.0),
    )
    page = fill(TEXT, found)
    assert "something old" not in page
    assert "\nBetween.\n" in page
    assert "| pgqueuer | 4.00x | 1,000 | 20 % |" in page
    assert "(assets/performance/postgresql-queues-one-dark.svg#only-dark)" in page
    assert "Not measured." in page
    assert fill(page, found) == page


def test_a_database_with_a_run_of_its_own_keeps_its_places_from_other_runs() -> None:
    text = TEXT.replace("postgresql", "mysql")
    found = results(line("rowmq", "batches of 100", rate=4_000.0, database="mysql"))
    assert "something old" in fill(text, found)
    alone = fill(text, found, "mysql")
    assert "| RowMQ, batches of 100 |  | 4,000 | 20 % |" in alone
    assert "Not measured." not in alone


def test_the_page_has_places_for_what_is_measured_only() -> None:
    known = {"targets", "surroundings", "targets mysql", "surroundings mysql"} | {
        f"{scenario.name} {database}"
        for database in ("postgresql", "mariadb", "mysql", "sqlite")
        for scenario in scenarios_of(Plan(database=database))
    }
    places = [place[1] for place in PLACE.finditer(PAGE.read_text("utf-8"))]
    assert set(places) <= known
    assert len(set(places)) == len(places)
    every = {
        f"{scenario.name} postgresql" for scenario in scenarios_of(Plan(database="postgresql"))
    }
    assert every <= set(places)
