"""Spark Connect: the same programs through a server, by a client without Java and without Spark."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
import pytest

from rowmq.spark.java import provide_java
from tests.spark.test_docs_spark import EXAMPLES, TURNOVER

SECONDS = 240.0
HOME = Path(pyspark.__file__).parent
STARTED = re.compile(r"Spark Connect server started at: \S*?:(\d+)")
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, in which rowmq is installed; its address."""
    folder = tmp_path_factory.mktemp("connect")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME)}
    provide_java(environment)
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"sc://127.0.0.1:{port_in(folder / 'log', process)}"
    finally:
        process.terminate()
        process.wait(SECONDS)


def port_in(log: Path, process: "subprocess.Popen[bytes]") -> int:
    """The port that a server says it has, as soon as it does."""
    deadline = time.monotonic() + SECONDS
    while (found := STARTED.search(log.read_text(errors="replace"))) is None:
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)
    return int(found[1])


def run(folder: Path, command: Sequence[str]) -> str:
    """What a client prints. It finds no Java, and is told no database but by its options."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env={"PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_batches_streams_models_and_pipelines_run_on_a_server(server: str, tmp_path: Path) -> None:
    said = run(tmp_path, [str(EXAMPLES / "turnover.py"), server])
    assert said.splitlines() == TURNOVER
    command = ["-m", "rowmq", "pipeline", "archive", str(tmp_path / "lake"), "--json"]
    url = f"sqlite:///{tmp_path}/shop.db"
    archived = json.loads(run(tmp_path, [*command, "--master", server, "--url", url]))
    assert archived["messages"] == 9
