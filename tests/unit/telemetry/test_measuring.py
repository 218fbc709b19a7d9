"""What is measured of statements."""

from rowmq.errors import ConnectionLost, UniqueViolation
from rowmq.store.statement import Statement
from rowmq.telemetry import catalogue
from rowmq.telemetry.families import Gathering, Labels
from rowmq.telemetry.measuring import StatementMeter


def test_a_row_that_is_there_already_is_no_failure() -> None:
    """It is how duplicates are found, of which nobody is to be woken up."""
    meter = StatementMeter()
    for error in (None, UniqueViolation("there is one"), ConnectionLost("gone")):
        meter(Statement("topics.insert_messages", "SELECT 1"))(error)
    gathering = Gathering(Labels(10))
    meter.gather(gathering)
    families = {family.name: family for family in gathering.families()}
    (failed,) = families[catalogue.STATEMENT_FAILURES.name].samples
    (timed,) = families[catalogue.STATEMENT_SECONDS.name].samples
    assert failed.value == 1
    assert sum(timed.counts or ()) == 3
