"""Metrics as plain values: their labels stay few, and nothing is lost on their way."""

import msgspec

from rowmq.telemetry import catalogue
from rowmq.telemetry.families import (
    OTHER,
    Distribution,
    Family,
    Gathering,
    Labels,
    Sample,
    of_processes,
)


def sole(gathering: Gathering) -> Family:
    (family,) = gathering.families()
    return family


def test_ten_thousand_topics_do_not_make_ten_thousand_series() -> None:
    gathering = Gathering(Labels(100))
    for number in range(10_000):
        gathering.add(catalogue.PUBLISHED, (f"topic-{number}",), 1)
    samples = {sample.labels: sample.value for sample in sole(gathering).samples}
    assert len(samples) == 101
    assert samples["topic-0",] == samples["topic-99",] == 1
    assert samples[OTHER,] == 9_900, "what has no series of its own is counted all the same"


def test_the_first_values_keep_their_series() -> None:
    labels = Labels(2)
    for names in (["a", "b", "c"], ["c", "b", "d"]):
        gathering = Gathering(labels)
        for name in names:
            gathering.add(catalogue.PUBLISHED, (name,), 1)
        told = {sample.labels[0] for sample in sole(gathering).samples}
        assert told == ({"a", "b", OTHER} if "a" in names else {"b", OTHER})


def test_combinations_of_labels_stay_few_too() -> None:
    """A hundred topics with a hundred groups each would be ten thousand series."""
    gathering = Gathering(Labels(100))
    for topic in range(100):
        for group in range(100):
            gathering.add(catalogue.LAG, (f"t{topic}", f"g{group}"), 1)
    samples = sole(gathering).samples
    assert len(samples) == 1_001
    assert sum(sample.value for sample in samples) == 10_000
    assert samples[-1].labels == (OTHER, OTHER)


def test_names_of_statements_are_not_bounded_as_they_are_our_own() -> None:
    gathering = Gathering(Labels(1))
    for name in ("a", "b"):
        gathering.add(catalogue.STATEMENT_FAILURES, (name,), 1)
    assert [sample.labels for sample in sole(gathering).samples] == [("a",), ("b",)]


def test_of_ages_the_highest_stands_for_all_others() -> None:
    gathering = Gathering(Labels(1))
    for name, age in (("a", 5), ("b", 7), ("c", 3)):
        gathering.most(catalogue.OLDEST_SECONDS, (name, "g"), age)
    ages = {sample.labels[0]: sample.value for sample in sole(gathering).samples}
    assert ages == {"a": 5, OTHER: 7}


def test_distributions_are_added_up() -> None:
    gathering = Gathering(Labels(1))
    for name in ("a", "b", "c"):
        values = Distribution((0.1, 1.0))
        for value in (0.1, 0.5, 7.0):
            values.note(value)
        gathering.spread(catalogue.STATEMENT_SECONDS._replace(fixed=False), (name,), values)
    samples = {sample.labels[0]: sample for sample in sole(gathering).samples}
    assert samples["a"].counts == (1, 1, 1), "a bound belongs to its bucket"
    assert samples[OTHER].counts == (2, 2, 2)
    assert samples[OTHER].value == 2 * 7.6


def test_several_processes_are_told_apart() -> None:
    """Each tells its parent as JSON."""
    told = []
    for number, count in ((1, 3), (2, 5)):
        gathering = Gathering(Labels(10))
        gathering.add(catalogue.FAILURES, ("send", "emails"), count)
        text = msgspec.json.encode(gathering.families())
        told.append((str(number), msgspec.json.decode(text, type=list[Family])))
    (family,) = of_processes(told)
    assert family.labels == ("handler", "source", "process")
    assert family.samples == [
        Sample(("send", "emails", "1"), 3.0),
        Sample(("send", "emails", "2"), 5.0),
    ]
    assert told[0][1][0].labels == ("handler", "source"), "what was told is left as it is"
