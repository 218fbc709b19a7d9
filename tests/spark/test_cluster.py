"""Executors that die take nothing with them: a copy of a topic has each message once, in order."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import rowmq
from tests.consuming import eventually
from tests.databases import NAMES, Databases
from tests.spark.reading import publish

MESSAGES = 200
KEYS = 4


def executors(driver: int) -> list[int]:
    """The processes of executors that descend from a driver."""
    parents, found = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))
    return [pid for pid in found if driver in ancestors(pid, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    line = []
    while pid in parents:
        pid = parents[pid]
        line.append(pid)
    return line


@pytest.mark.timeout(600)
async def test_executors_that_die_lose_and_double_nothing(
    databases: Databases, tmp_path: Path
) -> None:
    chosen = [databases.get(name) for name in NAMES]
    clients = [rowmq.connect(database.url) for database in chosen]
    for mq in clients:
        publish(mq, "orders", MESSAGES, keys=KEYS)
    urls = [database.url for database in chosen]
    command = [sys.executable, "-m", "tests.spark.copying", str(tmp_path), *urls]
    environment = os.environ | {"SPARK_WORKER_DIR": str(tmp_path / "workers")}
    with subprocess.Popen(command, start_new_session=True, env=environment) as program:  # noqa: ASYNC220 - nothing else waits
        try:
            await eventually(partial(has_copied, clients, 0), 240)
            (victim, *_) = await eventually(lambda: executors(program.pid), 60)
            os.kill(victim, signal.SIGKILL)
            assert program.wait(timeout=180) == 0
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    for mq in clients:
        for number in range(KEYS):
            sent = [m.payload for m in mq.read("orders", key=f"k{number}", limit=MESSAGES)]
            came = [m.payload for m in mq.read("copy", key=f"k{number}", limit=2 * MESSAGES)]
            # Bytes, as Spark has them.
            assert [json.loads(payload) for payload in came] == sent
        mq.close()


def has_copied(clients: Sequence[rowmq.RowMQ], count: int) -> bool:
    """Whether one of the copies is longer than that."""
    found = [info.messages for mq in clients for info in mq.topics() if info.name == "copy"]
    return max(found, default=0) > count
