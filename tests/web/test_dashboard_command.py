"""`rowmq dashboard`, `rowmq tokens` and `rowmq audit`, as they are called."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import rowmq
from tests.unit.cli.running import answer, command, invoke, json_of, process_environment, url_of

SECONDS_MAX = 30


get = partial(httpx.get, trust_env=False)


@pytest.fixture
def url(tmp_path: Path) -> str:
    answer(url_of(tmp_path), "migrate")
    return url_of(tmp_path)


@contextmanager
def served(
    url: str, *options: str, **variables: str
) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A dashboard in a process of its own, and where it is."""
    with subprocess.Popen(
        command("dashboard", "--port", "0", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=process_environment(url, PYTHONUNBUFFERED="1", **variables),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line + (process.stderr.read() if process.stderr else "")
            yield found[0].rstrip("/"), process
        finally:
            process.kill()


def test_it_serves_this_machine_and_says_so_until_there_is_a_token(url: str) -> None:
    with served(url) as (root, process):
        assert process.stderr is not None
        assert "only this machine itself is served" in process.stderr.readline()
        assert get(f"{root}/health").json() == {"status": "ok"}
        page = get(f"{root}/tokens")
        assert page.status_code == 200
        assert "server" not in page.headers
        evil = get(f"{root}/tokens", headers={"host": "evil.example"})
        assert evil.status_code == 403
        secret = answer(url, "tokens", "create", "ann", "--role", "admin").strip()
        wait_until_closed(root)
        right = {"Authorization": f"Bearer {secret}"}
        assert get(f"{root}/tokens", headers=right).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr.read().count("\n") == 0


def wait_until_closed(root: str) -> None:
    """What is known of tokens is remembered for a second."""
    for _ in range(SECONDS_MAX * 20):
        if get(f"{root}/tokens").status_code == 303:
            return
        get(f"{root}/health")
    raise AssertionError("it is still open")


def test_a_token_of_the_environment_opens_it(url: str) -> None:
    token = "t" * 40
    with served(url, "--read-only", ROWMQ_DASHBOARD_TOKEN=token) as (root, process):
        assert get(f"{root}/tokens").status_code == 303
        right = {"Authorization": f"Bearer {token}"}
        assert get(f"{root}/tokens", headers=right).status_code == 200
        refused = httpx.post(f"{root}/tokens", headers=right, trust_env=False)
        assert (refused.status_code, "read-only" in refused.text) == (403, True)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
    (entry,) = json_of(url, "audit")
    assert (entry["who"], entry["action"], entry["ending"]) == (
        "(settings)", "token.create", "refused"
    )  # fmt: skip


def test_behind_a_proxy_nobody_is_served_until_there_is_a_token(url: str) -> None:
    with served(url, "--proxy", "127.0.0.1", "--rate", "0.5", "--burst", "3") as (root, process):
        assert process.stderr is not None
        assert "nobody is served" in process.stderr.readline()
        assert get(f"{root}/tokens").status_code == 403
        assert [get(f"{root}/login").status_code for _ in range(4)] == [200, 200, 200, 429]
        by_tls = {"x-forwarded-proto": "https", "host": "rowmq.example.com"}
        answered = get(f"{root}/health", headers=by_tls)
        assert answered.headers["strict-transport-security"].startswith("max-age=")


def test_what_is_set_by_options_is_so(url: str) -> None:
    token = answer(url, "tokens", "create", "ann", "--role", "admin").strip()
    with served(url, "--secure-cookies", "--audit-messages") as (root, _):
        signed = httpx.post(f"{root}/login", data={"token": token}, trust_env=False)
        assert "secure" in signed.headers["set-cookie"].lower()
        right = {"Authorization": f"Bearer {token}"}
        path = f"{root}/api/v1/topics/orders/messages"
        httpx.post(path, json={"payload": 1}, headers=right, trust_env=False)
    assert [entry["action"] for entry in json_of(url, "audit")][:2] == [
        "message.publish", "session.begin"
    ]  # fmt: skip


def test_what_keeps_it_from_serving_is_a_sentence(url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke(url, "dashboard", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot be listened on" in result.stderr
    for options, why in [
        (["--token", "short"], "at least 20 characters"),
        (["--mask", "everything"], "a mask is header:NAME"),
        (["--root-path", "x"], "must look like /queues"),
        (["--name", "http://x"], "hosts must be"),
    ]:
        result = invoke(url, "dashboard", "--port", "0", *options)
        assert (result.exit_code, why in result.stderr) == (1, True), result.stderr
    missing = invoke(url_of(tmp_path / "nowhere"), "dashboard")
    assert missing.exit_code == 3


def test_tokens_are_made_listed_and_revoked(url: str) -> None:
    assert "there are no tokens yet" in invoke(url, "tokens").stderr
    made = invoke(url, "tokens", "create", "shop", "--role", "produce", "--topic", "orders*")
    secret = made.stdout.strip()
    assert "shown once" in made.stderr
    with rowmq.connect(url) as mq:
        token = mq.access.check_token(secret)
        assert token is not None
        assert token.roles == {rowmq.Role.PRODUCE}
        assert (token.topics, token.queues) == (("orders*",), ())
    other = json_of(url, "tokens", "create", "ann", "--role", "admin", "--expires-in", "90d")
    assert (other["topics"], other["queues"]) == (["*"], ["*"])
    shown = answer(url, "tokens")
    assert "orders*" in shown
    assert secret not in shown + json.dumps(json_of(url, "tokens"))
    assert "TokenTaken" in invoke(url, "tokens", "create", "ann").stderr
    assert "Say --yes" in invoke(url, "tokens", "revoke", "shop").stderr
    assert answer(url, "tokens", "revoke", "shop", "--yes") == "revoked shop\n"
    assert invoke(url, "tokens", "revoke", "shop", "--yes").exit_code == 3
    assert [token["live"] for token in json_of(url, "tokens")] == [True, False]
    done = json_of(url, "audit")
    assert [(entry["action"], entry["target"]) for entry in done] == [
        ("token.revoke", "shop"), ("token.create", "ann"), ("token.create", "shop")
    ]  # fmt: skip
    assert all(entry["who"].startswith("(command line)") for entry in done)
    assert secret not in json.dumps(done)
    assert [e["id"] for e in json_of(url, "audit", "ls", "--action", "token.revoke")] == [3]
    assert json_of(url, "audit", "prune", "--older-than", "1d", "--yes") == {"pruned": 0}
    assert json_of(url, "audit", "prune", "--older-than", "0", "--yes") == {"pruned": 4}
    (entry,) = json_of(url, "audit")
    assert entry["who"].startswith("(command line)")
    assert (entry["action"], entry["details"]) == (
        "audit.prune", {"older_than_seconds": 0.0, "pruned": 4}
    )  # fmt: skip


def test_a_token_that_cannot_be_written_down_is_not_made(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any, **__: Any) -> None:
        raise rowmq.errors.RowMQError("the trail is full")

    answer(url, "tokens", "create", "ann")
    monkeypatch.setattr(rowmq.access.Access, "record", cannot)
    assert "the trail is full" in invoke(url, "tokens", "create", "shop").stderr
    assert "the trail is full" in invoke(url, "tokens", "revoke", "ann", "--yes").stderr
    assert [(t["token"], t["live"]) for t in json_of(url, "tokens")] == [("ann", True)]


def test_a_live_token_is_seen_and_revoked_however_many_have_ended_since(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowmq.store.access.TOKENS_MAX", 2)
    for name in ("ann", "b", "c", "d"):
        answer(url, "tokens", "create", name)
    for name in ("c", "d"):
        answer(url, "tokens", "revoke", name, "--yes")
    assert [token["token"] for token in json_of(url, "tokens")] == ["b", "ann"]
    answer(url, "tokens", "create", "e")
    assert answer(url, "tokens", "revoke", "ann", "--yes") == "revoked ann\n"
