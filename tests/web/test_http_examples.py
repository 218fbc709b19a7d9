"""The programs of `docs/http-api.md`, with what others have put into the database and get wrong."""

import os
import subprocess
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

import rowmq
from tests.web.browser import Served

HTTP = Path(__file__).parents[2] / "examples" / "http"

SECONDS = 60


def run(program: str, *arguments: str, api: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(HTTP / program), *arguments],
        env={**os.environ, "ROWMQ_API": api},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_shell_script_goes_by_the_ids_of_messages_whatever_their_payloads_hold(
    dashboard: Served, broker: rowmq.RowMQ
) -> None:
    id = 'odd, "1" and }'
    payload = {"id": 1, "attempt": 9, "receipt": "mine", "text": '"id":"no"', "error": "no letter"}
    broker.publish("orders", payload, key="a", id=id, headers={"id": "header"})
    done = run("consume.sh", api=dashboard.url("api", "v1"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    said = done.stdout.splitlines()
    shown = id.replace('"', '\\"')  # as it stands in JSON
    for line in ("billed order-1", f"gave up {shown}", f"indexed {shown}", "indexed order-3"):
        assert line in said
    assert f"billed {shown} after all, attempt 1" in said
    (letters,) = [line for line in said if line.startswith("dead letters")]
    assert "no letter" not in letters
    assert said[-1] == "left to do: billing 0, search 0"


def test_the_shell_script_says_what_the_api_said_and_nothing_else(
    dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.access.create_token("ann", roles=["admin"])
    done = run("consume.sh", api=dashboard.url("api", "v1"))
    assert done.returncode == 1
    assert "failed: sign in, or send Authorization: Bearer and a token" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    away = run("consume.sh", api="http://127.0.0.1:1/api/v1")
    (told,) = away.stderr.splitlines()
    assert told.endswith("/topics/orders/groups/billing failed: no server answers there")


def test_the_program_in_javascript_says_what_a_handler_could_not_do(
    dashboard: Served, broker: rowmq.RowMQ
) -> None:
    broker.publish("orders", {"total": -1}, key="a", id="order-2")
    node = str(compute_driver_executable()[0])
    program = subprocess.Popen(
        [node, str(HTTP / "consume.mjs"), "orders", "billing"],
        env={**os.environ, "ROWMQ_API": dashboard.url("api", "v1")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert program.stdout is not None
    try:
        lines = [next(program.stdout) for _ in range(2)]
    finally:
        program.terminate()
        program.communicate(timeout=SECONDS)
    assert "order-2, attempt 1, failed: Error: a negative total" in lines[1]
