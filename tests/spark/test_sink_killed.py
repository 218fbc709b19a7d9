"""Spark is killed when the database has committed and Spark does not know it yet."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rowmq
from tests.databases import NAMES, Database, Databases

KILLS = int(os.environ.get("ROWMQ_TEST_KILLS", "1"))
"""How often Spark is killed; each time it takes long to start again."""

FILES, LINES = KILLS + 1, 20
NEVER = 1_000


def run(folder: Path, batch: int, databases: list[Database]) -> int:
    """A driver, until it ends or is killed; its exit code."""
    command = [sys.executable, "-m", "tests.spark.killed_sink", str(folder), str(batch)]
    urls = [database.url for database in databases]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *urls], stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # unless this test was interrupted
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.timeout(900)  # Spark is started once more than it is killed
def test_a_driver_that_is_killed_between_two_commits_publishes_each_row_once(
    databases: Databases, tmp_path: Path
) -> None:
    """On all databases at once, since Spark takes long to start."""
    chosen = [databases.get(name) for name in NAMES]
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        lines = [str(number * LINES + line) for line in range(LINES)]
        file = tmp_path / "in" / str(number)
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # Spark takes the oldest first
    for batch in range(KILLS):
        assert run(tmp_path, batch, chosen) == -signal.SIGKILL, (tmp_path / "log").read_text()
        for number, database in enumerate(chosen):
            known = tmp_path / f"checkpoint {number}" / "commits"
            assert not (known / str(batch)).exists()
            count = database.execute("SELECT COUNT(*) FROM rowmq_messages")
            assert count == [((batch + 1) * LINES,)]
    assert run(tmp_path, NEVER, chosen) == 0, (tmp_path / "log").read_text()
    for database in chosen:
        with rowmq.connect(database.url) as mq:
            found = mq.read("t", limit=1_000)
        assert sorted(int(message.payload) for message in found) == list(range(FILES * LINES))
        for key in {message.key for message in found}:
            offsets = [message.offset for message in found if message.key == key]
            assert offsets == list(range(1, FILES * LINES // 10 + 1))
        assert database.execute("SELECT version FROM rowmq_ledger") == [(FILES - 1,)]
