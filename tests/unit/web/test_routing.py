"""Paths: names of any kind are one segment, and come out as they went in."""

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowmq.rights import Role
from rowmq.web.routing import Route, Routes, plain, quote, segments_of

NAMES = [
    *("a", "a/b", "../x", ".", "..", "~.", "~~..", "~", "%2e%2e", "a?b#c", "é ☃", '"<&>'),
    *("a%2Fb", "\\", ";a=b", "\0", "a\r\nb", "\u202e"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_one_segment(name: str) -> None:
    path = f"/topics/{quote(name)}/messages"
    assert path.isascii()
    found = segments_of(path.encode(), "")
    assert found is not None
    assert (len(found), plain(found[1])) == (3, name)
    assert quote(name) not in (".", "..")
    # Some proxies and browsers look at it decoded.
    assert unquote_to_bytes(quote(name)) not in (b".", b"..")


@given(st.text(min_size=1))
def test_every_name_comes_out_as_it_went_in(name: str) -> None:
    if not any("\ud800" <= char <= "\udfff" for char in name):
        (found,) = segments_of(f"/{quote(name)}".encode(), "") or ("",)
        assert plain(found) == name


def test_the_root_is_taken_off_once() -> None:
    assert segments_of(b"/app/app/topics", "/app") == ("app", "topics")
    assert segments_of(b"/a%20b/topics/", "/a b") == ("topics",)
    assert segments_of(b"/app", "/app") == ()
    assert segments_of(b"/app/", "/app") == ()
    assert segments_of(b"/topics?x=/y", "") == ("topics",)
    assert segments_of(b"/%ff", "") is None
    assert segments_of(b"/a//b", "") == ("a", "", "b")


def route(path: str, method: str = "GET") -> Route:
    action = None if method == "GET" else "test.act"
    return Route(method, path, None, needs=Role.READ, action=action)  # type: ignore[arg-type]


def test_a_literal_goes_before_a_parameter() -> None:
    routes = Routes([route("/jobs/{id}"), route("/jobs/new"), route("/jobs/new", "POST")])
    for method, path, expected in [
        ("GET", ("jobs", "new"), "/jobs/new"),
        ("HEAD", ("jobs", "7"), "/jobs/{id}"),
        ("POST", ("jobs", "new"), "/jobs/new"),
    ]:
        found = routes.find(method, path)
        assert found is not None
        assert found.route.path == expected
    assert routes.find("POST", ("jobs", "7")) is None
    assert routes.find("GET", ("jobs",)) is None
    assert routes.methods(("jobs", "new")) == ["GET", "HEAD", "POST"]
    assert routes.methods(("nothing",)) == []


def test_two_routes_for_the_same_paths_are_refused() -> None:
    with pytest.raises(ValueError, match="two of"):
        Routes([route("/jobs/{id}"), route("/jobs/{name}")])
