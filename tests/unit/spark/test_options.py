"""What options say, and what they may not say."""

import pytest

from rowmq.errors import InvalidOption
from rowmq.spark.options import Given, jobs_options, topics_options
from rowmq.spark.place import place_of

URL = "sqlite:////var/lib/queue.db"


def test_names_are_told_apart_by_letters_only() -> None:
    options = topics_options(
        Given({"URL": URL, "Topic": "orders", "MAXRECORDSPERPARTITION": "7"}), stream=False
    )
    assert (options.topics, options.records_max) == (("orders",), 7)


def test_a_place_never_shows_its_url() -> None:
    place = place_of({"url": "postgresql://me:hunter2@host/db"})
    assert "hunter2" not in repr(place)
    assert "hunter2" not in str(place)


def test_a_path_is_made_absolute_for_tasks_that_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("a %?#b")
    monkeypatch.chdir(folder)
    place = place_of({"url": "sqlite:///queue.db"})
    assert place.target == str(folder / "queue.db")
    monkeypatch.chdir("/")
    assert place.target == str(folder / "queue.db")


def test_the_environment_names_the_database_if_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROWMQ_URL", URL)
    assert place_of({}).url == URL
    monkeypatch.delenv("ROWMQ_URL")
    with pytest.raises(InvalidOption, match="ROWMQ_URL"):
        place_of({})


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(InvalidOption, match="in memory"):
        place_of({"url": "sqlite://"})


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1700000000000", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500_000),
    ],
)
def test_times_are_milliseconds_or_have_a_zone(text: str, micros: int) -> None:
    options = topics_options(
        Given({"url": URL, "topic": "a", "startingTimestamp": text}), stream=False
    )
    assert options.start.time == micros


@pytest.mark.parametrize("text", ["2023-11-14T22:13:20", "yesterday", ""])
def test_times_without_a_zone_are_refused(text: str) -> None:
    given = Given({"url": URL, "topic": "a", "startingTimestamp": text})
    with pytest.raises(ValueError, match="zone"):
        topics_options(given, stream=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-1"),
        ("maxOffsetsPerTrigger", "1e3"),
        ("maxBytesPerTrigger", "lots"),
        ("maxTriggerDelay", "15"),
        ("subscribePattern", "("),
        ("subscribe", "a,,b"),
        ("startingOffsets", '{"a": {"k": 0}}'),
        ("startingOffsets", '{"a": {"k": -3}}'),
        ("startingOffsets", '{"a": 5}'),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(name: str, text: str) -> None:
    chosen = {"url": URL, "group": "g", "minOffsetsPerTrigger": "1", name: text}
    if name not in ("subscribePattern", "subscribe"):
        chosen["topic"] = "a"
    with pytest.raises(InvalidOption, match=name):
        topics_options(Given(chosen), stream=True)


def test_sizes_and_times_have_units() -> None:
    given = {"url": URL, "topic": "a", "group": "g", "minOffsetsPerTrigger": "5"}
    options = topics_options(
        Given(given | {"maxBytesPerTrigger": "64m", "maxTriggerDelay": "1.5s"}), stream=True
    )
    assert (options.bytes_max, options.delay_seconds_max) == (64 * 2**20, 1.5)


def test_a_star_reads_all_queues() -> None:
    assert jobs_options(Given({"url": URL, "queue": "*"})).names == ()
    assert jobs_options(Given({"url": URL, "archive": "a, b"})).names == ("a", "b")


BATCHES: list[tuple[dict[str, str], list[str]]] = [
    ({"topics": "x"}, ["there is no option 'topics'", "did you mean 'topic'?"]),
    ({"topic": "a", "subscribe": "b"}, ["'topic', 'subscribe'"]),
    ({"topic": "a", "queue": "b"}, ["'topic', 'queue'"]),
    ({}, ["which topic?"]),
    ({"topic": "a", "startingOffsets": "latest"}, ["it would read nothing"]),
    ({"topic": "a", "startingOffsets": "soon"}, ["startingOffsets must be"]),
    ({"topic": "a", "startingOffsets": '{"b": {"k": 1}}'}, ["'b', which is not read"]),
    ({"topic": "a", "maxOffsetsPerTrigger": "5"}, ["is for streams"]),
    ({"topic": "a", "group": "g"}, ["a batch is no consumer group"]),
    ({"topic": "a", "minPartitions": "none"}, ["whole number"]),
    ({"topic": "a", "failOnDataLoss": "maybe"}, ["true or false"]),
    ({"queue": "a", "startingOffsets": "earliest"}, ["is for topics, not for 'queue'"]),
    ({"topic": "a", "startingTimestamp": "1", "startingOffsets": "earliest"}, ["not both"]),
    ({"topic": "a", "path": "x"}, ["take no path"]),
]

STREAMS: list[tuple[dict[str, str], list[str]]] = [
    ({"topic": "a"}, ["a stream is a consumer group", "'group'"]),
    ({"topic": "a", "group": "g", "endingOffsets": "latest"}, ["is for batches"]),
    ({"queue": "a", "group": "g"}, ["use spark.read"]),
    (
        {"topic": "a", "group": "g", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "2"},
        ["must not be over"],
    ),
    ({"topic": "a", "group": "g", "maxTriggerDelay": "5s"}, ["needs minOffsetsPerTrigger"]),
]


@pytest.mark.parametrize(("options", "parts"), BATCHES)
def test_a_batch_refuses_what_contradicts_itself(options: dict[str, str], parts: list[str]) -> None:
    given = Given({"url": URL, **options})
    with pytest.raises(InvalidOption) as caught:
        jobs_options(given) if given.named(["queue"]) else topics_options(given, stream=False)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(("options", "parts"), STREAMS)
def test_a_stream_refuses_what_contradicts_itself(
    options: dict[str, str], parts: list[str]
) -> None:
    with pytest.raises(InvalidOption) as caught:
        topics_options(Given({"url": URL, **options}), stream=True)
    for part in parts:
        assert part in str(caught.value)
