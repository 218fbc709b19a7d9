"""Where a page of jobs ends, as a text that is given back for the next one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.errors import InvalidOption
from rowmq.store.finding import (
    BEGINNINGS,
    FINISHED,
    HIGHEST,
    LOWEST,
    STANDING,
    WAITING,
    Place,
    has_headers,
)

numbers = st.integers(LOWEST, HIGHEST)
places = st.one_of(
    st.builds(
        Place, st.sampled_from([STANDING, FINISHED]), st.tuples(numbers, numbers), st.just("")
    ),
    st.builds(
        Place,
        st.just(WAITING),
        st.tuples(st.integers(-(2**31), 2**31 - 1), numbers, numbers),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50),
    ),
)


@given(places)
def test_a_place_is_read_as_it_was_written(place: Place) -> None:
    assert Place.read(place.written()) == place


@pytest.mark.parametrize("part", BEGINNINGS)
def test_the_beginning_of_a_part_is_before_all_of_it(part: int) -> None:
    assert Place.read(Place(part).written()) == Place(part, BEGINNINGS[part])


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_other_text_is_refused_or_is_a_place(text: str) -> None:
    try:
        place = Place.read(text)
    except InvalidOption:
        return
    assert Place.read(place.written()) == place


@pytest.mark.parametrize(
    "place",
    [
        Place(3, (1, 2)),
        Place(-1, (1, 2)),
        Place(STANDING, (1,)),
        Place(STANDING, (1, 2), "line"),
        Place(STANDING, (1, 2**63)),
        Place(WAITING, (2**31, 1, 1), "line"),
        Place(WAITING, (1, 1, 1), "a\0b"),
    ],
)
def test_what_is_no_place_in_an_index_is_refused(place: Place) -> None:
    with pytest.raises(InvalidOption):
        Place.read(place.written())


@pytest.mark.parametrize(
    ("text", "wanted", "fits"),
    [
        (None, {}, True),
        (None, {"a": ""}, False),
        ('{"a":"1","b":"2"}', {"a": "1"}, True),
        ('{"a":"1","b":"2"}', {"a": "1", "b": "1"}, False),
        ("not headers", {"a": "1"}, False),
        ("not headers", {}, True),
    ],
)
def test_a_job_has_headers_if_all_are_there(
    text: str | None, wanted: dict[str, str], *, fits: bool
) -> None:
    assert has_headers(text, wanted) is fits
