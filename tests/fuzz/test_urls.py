"""URLs, table prefixes and schemas of any characters: understood as they are, or refused; and never
a word of the password.
"""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rowmq
from rowmq.engine import Options, resolve
from rowmq.errors import ConfigurationError, InvalidURL, RowMQError
from rowmq.quoting import visible
from rowmq.store.dialect import TABLES
from tests.fuzz.effort import effort
from tests.fuzz.values import BROKEN, HOSTILE, LENGTHS, ODD, texts

SECRET = "hunter2"
DEAD = "127.0.0.1:1"
"""Where nobody listens, so that the answer comes at once."""

escaped = texts.map(lambda text: quote(text, safe=""))
raw = st.one_of(
    texts,
    st.sampled_from(
        [*ODD, *BROKEN, "%zz", "%", "%00", "%ff", "%0a", "12?", "1/", "/", "/@", "x/y@z"]
    ),
)
parts = st.one_of(escaped, raw)
servers = st.sampled_from(["postgresql", "postgres", "mysql", "mariadb", "mysql+pymysql"])
hosts = st.sampled_from(
    [DEAD, "", "[::1]:1", "127.0.0.1:0x1", "h:99999", "a" * 64 + ".x:1", "[", "a..b"]
)
# Not unix_socket: PyMySQL leaves one that nobody listens at to the garbage collector.
OPTIONS = [
    "password", "user", "host", "port", "sslmode", "ssl", "ssl_ca", "options",
    "service", "passfile", "connect_timeout", "application_name", "target_session_attrs",
    "nonsense",
]  # fmt: skip
queries = st.lists(st.tuples(st.sampled_from(OPTIONS), parts).map("=".join), max_size=2).map(
    "&".join
)


@st.composite
def urls(draw: Callable[..., Any]) -> str:
    """The URL of a server, with a secret in its password."""
    before, after = draw(parts), draw(parts)
    query = draw(queries)
    return (
        f"{draw(servers)}://{draw(parts)}:{before}{SECRET}{after}@{draw(hosts)}/{draw(parts)}"
        f"{'?' if query else ''}{query}"
    )


def told(error: BaseException) -> str:
    """All that anybody shows of an error: sentence, traceback, causes."""
    lines = traceback.TracebackException.from_exception(error, lookup_lines=False)
    return "".join(lines.format()) + repr(error)


def check_told(error: RowMQError) -> None:
    """An error is a line that is not long, and nothing that it is told with has the secret."""
    assert SECRET not in told(error)
    assert str(error) == visible(str(error))
    assert len(str(error)) < 1_500


@effort(60)
@given(urls())
def test_a_server_of_any_url_is_not_reached_or_the_url_refused(url: str) -> None:
    options: dict[str, Any] = {"connect_timeout": 1, "retry_for": 0, "notify": False}

    async def connect() -> None:
        await (await rowmq.connect_async(url, **options)).close()

    with pytest.raises(RowMQError) as caught:
        rowmq.connect(url, **options).close()
    check_told(caught.value)
    with pytest.raises(RowMQError) as caught:
        asyncio.run(connect())
    check_told(caught.value)


def test_no_log_shows_a_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @effort(30)
    @given(urls())
    def check(url: str) -> None:
        with pytest.raises(RowMQError):
            rowmq.connect(url, connect_timeout=1, retry_for=0)

    check()
    assert SECRET not in caplog.text


@effort(100)
@given(texts, texts, texts)
def test_what_is_escaped_is_understood(user: str, password: str, database: str) -> None:
    user, password, database = (quote(text, safe="") for text in (user, password, database))
    url = f"mysql://{user}:{password}@h:1/{database or 'd'}"
    try:
        found = resolve(url, Options())[3]
    except InvalidURL:
        assert "%00" in url
        return
    assert found["password"] == unquote(password)
    assert (found["user"], found["database"]) == (unquote(user), unquote(database or "d"))


@effort(100)
@given(escaped)
def test_an_escaped_path_is_the_file(path: str) -> None:
    try:
        found = resolve(f"sqlite:////tmp/x{path}x", Options())[3]
    except InvalidURL:
        assert "%00" in path
        return
    assert found == str(Path(f"/tmp/x{unquote(path)}x"))  # noqa: S108 - nothing is made there


@effort(100)
@given(raw | HOSTILE)
def test_any_path_is_a_file_or_refused(path: Any) -> None:
    url = f"sqlite:////tmp/x{path}x" if isinstance(path, str) else path
    try:
        found = resolve(url, Options())[3]
    except InvalidURL as error:
        assert str(error) == visible(str(error))
        assert len(str(error)) < 500
        return
    # Nothing was left out of it.
    assert found == str(Path(f"/tmp/x{unquote(path)}x"))  # noqa: S108


identifiers = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,45}", fullmatch=True),
    texts,
    HOSTILE,
    st.sampled_from(LENGTHS).map(lambda length: "p" * length),
)


@effort(100)
@given(identifiers, st.none() | identifiers)
def test_a_prefix_and_a_schema_are_plain_or_refused(prefix: Any, schema: Any) -> None:
    for database in ("sqlite", "postgresql", "mysql"):
        try:
            sql = rowmq.schema_sql(database, prefix=prefix, schema=schema)
        except ConfigurationError as error:
            assert str(error) == visible(str(error))
            assert len(str(error)) < 1_500
            continue
        assert prefix.isascii()
        assert prefix.replace("_", "a").isalnum()
        assert all(f"{prefix}{table}" in sql for table in TABLES)
        # What is longer is cut off, and two names may become one.
        words = sql.replace('"', " ").replace("(", " ").replace(".", " ").split()
        assert max(len(word) for word in words if word.startswith(prefix)) <= 63


def test_no_two_prefixes_share_a_table() -> None:
    """However one of them ends: no table is called as another with something before it."""
    names = set(TABLES)
    assert not {(a, b) for a in names for b in names if a != b and a.endswith(f"_{b}")}


OPTIONS_OF_CONNECT = sorted({*inspect.signature(rowmq.connect).parameters} - {"url"})


@pytest.mark.parametrize("option", OPTIONS_OF_CONNECT)
def test_options_of_connect(option: str) -> None:
    @effort(20)
    @given(HOSTILE)
    def check(value: Any) -> None:
        try:
            rowmq.connect("sqlite://", **{option: value}).close()
        except RowMQError as error:
            assert option in str(error)
            assert str(error) == visible(str(error))

    check()
