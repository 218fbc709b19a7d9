"""Every command, given anything: it ends by an exit code that means something, in words of a line,
without a traceback, and nothing that it prints acts on a terminal.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import rowmq
from rowmq.cli.failing import Code
from rowmq.cli.main import ENTRIES, app
from tests.fuzz.effort import effort
from tests.fuzz.values import moments, texts
from tests.unit.cli.running import environment, url_of

Texts = SearchStrategy[str]

EXCUSED = {
    "worker": "runs until it is told to stop",
    "demo": "starts workers, and takes long",
    "bench": "takes long",
    "pipeline": "needs Spark",
    "completion": "asks the shell for its version",
}

# No program can be given the NUL character; bytes that are no text come as lone surrogates.
arguments = texts.map(lambda text: text.replace("\0", "")) | st.sampled_from(
    ["\udcff", "a\udc80", ""]
)
names = st.sampled_from(["t", "q", "g", "s", "k", "t_dlq", "t" * 201, "😀" * 70]) | arguments
digits = st.sampled_from(
    ["0", "1", "1000", "-1", "2", str(2**62), str(2**63), "9" * 5_000, "٣", "1e3"]
)
durations = st.sampled_from(
    [
        "30s",
        "7d",
        "0",
        "forever",
        "1h30m",
        "-1s",
        "9" * 400,
        "9" * 5_000 + "w",
        "1.5",
        "1e9",
        "inf",
        "nan",
    ]
)
sizes = st.sampled_from(["1", "64KiB", "1GiB", "0", "-1", "9" * 5_000, "1" * 30 + "GB", "x"])
times = moments.map(lambda moment: moment.isoformat()) | st.sampled_from(
    ["2026-03-01T09:30:00", "yesterday", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
)
DEEP = "[" * 100_000
bombs = st.sampled_from(
    ["{}", "[1]", "null", "1" * 5_000, "1e999", DEEP, "[" * 300 + "]" * 300, '{"payload": ' + DEEP,
     '{"payload": ' + "[" * 250 + "]" * 250 + "}", '{"payload": 1, "headers": {"a": "\\u0000"}}',
     '{"payload": "x", "encoding": "base64"}', '{"payload": 1, "id": "", "key": "\\u0001"}',
     '{"payload": 1, "nonsense": 2}', '"\\ud800"', '{"a": 1, "a": 2}', "NaN", "x" * 2**17, "{",
     '"\\u001b"', '{"payload": 1, "offset": ' + "9" * 5_000 + "}"]
)  # fmt: skip

files = st.sampled_from(["/no/such/file", "/", "/dev/null", "x" * 5_000])

VALUES: dict[str, Texts] = {
    "text": names,
    "duration": durations,
    "size": sizes,
    "time": times,
    "number": digits | st.just("none"),
    "integer": digits,
    "integer range": digits,
    "float range": digits,
    "file": files,
    "name=value": st.tuples(arguments, arguments).map("=".join) | arguments,
}
"""What an option or an argument is given, by its kind."""

SPECIAL: dict[str, Texts] = {
    "payloads": bombs | arguments,
    "files": files | st.just("-"),
    "start": times | digits | st.sampled_from(["earliest", "latest"]),
    "to": times | digits | st.sampled_from(["earliest", "latest"]),
    "thresholds": st.tuples(names | st.just("wal_bytes"), digits).map("=".join),
}
"""And where the name says more than that."""

NOT_WAITING = {"tail": ["--no-follow"], "lag": [], "dashboard": ["--host", "192.0.2.1"]}
"""What has a command end by itself: the dashboard cannot listen at an address of no machine."""

UNUSED = {("lag", "watch"), ("tail", "follow"), ("lag", "interval"), ("dashboard", "host")}
"""What has a command wait until it is interrupted."""


def commands() -> dict[str, click.Command]:
    """Every command by its words."""
    found: dict[str, click.Command] = {}
    context = click.Context(app)
    for name in ENTRIES:
        command = app.get_command(context, name)
        if isinstance(command, click.Group):
            parts = {part: command.get_command(context, part) for part in command.commands}
            found |= {f"{name} {part}": c for part, c in parts.items() if c is not None}
        elif command is not None:
            found[name] = command
    return found


COMMANDS = {
    words: command for words, command in commands().items() if words.split()[0] not in EXCUSED
}

SHARED = {"url", "prefix", "schema", "as_json"}


def values_of(param: click.Parameter) -> Texts:
    if isinstance(param.type, click.Choice):
        return st.sampled_from([*map(str, param.type.choices)]) | arguments
    return SPECIAL[str(param.name)] if param.name in SPECIAL else VALUES[param.type.name]


@st.composite
def lines(draw: Callable[..., Any], words: str) -> list[str]:
    """A command line: all that is needed, some of what is possible, in any order."""
    given, plain = [], []
    for param in COMMANDS[words].params:
        if param.name in SHARED or (words, param.name) in UNUSED:
            continue
        if isinstance(param, click.Argument):
            count = draw(st.integers(0, 2)) if param.nargs < 0 else 1
            plain += [draw(values_of(param)) for _ in range(count)]
        elif draw(st.booleans()):
            switch = isinstance(param, click.Option) and param.is_flag
            given += [param.opts[0]] if switch else [param.opts[0], draw(values_of(param))]
    stop = ["--"] if draw(st.booleans()) else []
    more = draw(st.sampled_from([[], ["--json"]]))
    return [*words.split(), *NOT_WAITING.get(words, []), *more, *given, *stop, *plain]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database with something of each kind, of odd names."""
    url = url_of(tmp_path)
    evil = "\x1b[31mred\n\u202e'%"
    with rowmq.connect(url) as mq:
        for topic in ("t", evil):
            mq.publish_many(topic, [rowmq.Message(payload={evil: evil}, key=evil, id=evil)])
            mq.publish(topic, evil, headers={evil: evil})
            with mq.subscribe(topic, group="g", name=evil, discovery_interval=0.05) as sub:
                for delivery in sub.poll(max=1, timeout=10):
                    delivery.reject(error=evil)
        queue = mq.queue("q", kind=evil)
        queue.put(evil, key="k", headers={evil: evil}, ordering_key=evil)
        queue.put(1, at=LAST)
        queue.offer_or_update("first", 1, at=FIRST)
        mq.cron.install("s", "0 2 * * *", payload=evil, queue="q", tend=False)
    return url


FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)


def run(url: str, line: list[str], input: str) -> Result:
    data = input.encode("utf-8", "surrogateescape")
    return CliRunner().invoke(app, line, input=data, env=environment(url))


def check_result(line: list[str], result: Result) -> None:
    """It ended as commands end."""
    note(f"{[word[:200] for word in line]}: {result.exit_code}, {result.output[-500:]!r}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (Code.OK, Code.ERROR, Code.USAGE, Code.NOT_FOUND, Code.UNHEALTHY)
    unprintable = {char for char in result.output.replace("\n", "") if not char.isprintable()}
    assert {char for char in unprintable if char not in SPACES} == set()
    if "--json" in line[: line.index("--") if "--" in line else None]:
        for text in filter(None, (result.stdout, result.stderr)):
            for document in text.splitlines():
                json.loads(document)
    elif result.exit_code in (Code.ERROR, Code.NOT_FOUND):
        assert len(result.stderr.splitlines()) == 1


SPACES = "\u00a0\u3000\u2000\u2001\u2002\u2003\u1680\u205f\u202f"


def test_every_command_has_values() -> None:
    """Of a new option somebody has to say what it may be given."""
    unknown = {
        f"{words} {param.name}: {param.type.name}"
        for words, command in COMMANDS.items()
        for param in command.params
        if not isinstance(param.type, click.Choice)
        and not (isinstance(param, click.Option) and param.is_flag)
        and param.name not in SPECIAL
        and param.type.name not in VALUES
    }
    assert unknown == set()
    assert set(EXCUSED) <= set(ENTRIES)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_given_anything(url: str, words: str) -> None:
    @effort(6)
    @given(lines(words), bombs | arguments)
    def check(line: list[str], input: str) -> None:
        check_result(line, run(url, line, input))

    check()


servers = st.sampled_from(
    ["postgresql", "mysql", "mariadb", "sqlite", "postgres", "oracle", "mysql+pymysql", "x" * 300]
)
places = st.one_of(
    arguments,
    st.builds("{}://u{}:{}hunter2@127.0.0.1:1/{}".format, servers, arguments, arguments, arguments),
    st.builds("sqlite:////no/such/directory/{}".format, arguments),
    st.sampled_from(
        ["sqlite://", "sqlite:///", "sqlite:///.", "sqlite:////", "postgresql://", "://"]
    ),
)
"""What may be given as a URL: none of a file that could be made."""


@effort(20)
@given(
    st.sampled_from(["topics", "migrate", "queues", "doctor"]), places, names, names, st.booleans()
)
def test_a_database_of_any_url_prefix_and_schema(
    words: str, place: str, prefix: str, schema: str, as_json: bool
) -> None:
    options = ["--url", place, "--prefix", prefix, "--schema", schema]
    for count in (2, 4, 6):
        line = [words, *(["--json"] if as_json else []), *options[:count]]
        result = CliRunner().invoke(app, line, env={"ROWMQ_URL": None})
        check_result(line, result)
        assert "hunter2" not in result.output


@effort(40)
@given(arguments | names.map("rowmq:{}".format) | names.map("rowmq.{}".format))
def test_a_worker_of_what_is_no_app(target: str) -> None:
    result = CliRunner().invoke(app, ["worker", "--", target], env={"ROWMQ_URL": "sqlite://"})
    check_result(["worker"], result)
    assert result.exit_code != Code.OK


@effort(40)
@given(st.lists(names | digits | st.sampled_from(sorted(ENTRIES)), max_size=4))
def test_words_that_are_no_command(words: list[str]) -> None:
    if words and (words[0] in EXCUSED or words[0] in ("tail", "publish", "jobs", "lag")):
        return
    check_result(words, run("sqlite://", words, ""))
