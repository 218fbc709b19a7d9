"""The archive under fire: its driver and its workers are killed while sixteen producers publish.

    python -m tests.spark.chaos --database postgres --kills 7 --worker-kills 6

Garbage collection runs all the while. At the end the lake must hold every message once, and so
nothing can have been deleted that was not archived.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rowmq
from tests.databases import Database, Databases
from tests.spark.lakes import rows_by_deltalake

__all__ = ["Chaos", "Outcome"]

PRODUCERS = 16
TOPICS = ["orders", "a/b %", "🎉"]
KEYS = 12
START_SECONDS_MAX = 180.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Sent = tuple[str, str | None, str]


class Outcome:
    """What a run came to."""

    def __init__(self) -> None:
        self.sent: dict[Sent, int] = {}
        self.collected = 0
        self.kills = 0
        self.worker_kills = 0


class Driver:
    """A process that archives, with all that it starts."""

    def __init__(self, url: str, lake: Path) -> None:
        command = [sys.executable, "-m", "rowmq", "pipeline", "archive", str(lake)]
        command += ["--every", "300ms", "--gc", "--json", "--master", "local[2,8]"]
        command += ["--compact-every", "5", "--max-records", "2000", "--no-queues"]
        command += ["--conf", f"spark.driver.extraJavaOptions={QUICK_JAVA}"]
        command += ["--conf", "spark.driver.memory=512m"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "ROWMQ_URL": url},
            start_new_session=True,
        )
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        for stream, take in ((self.process.stdout, self.told), (self.process.stderr, self.erred)):
            threading.Thread(target=drain, args=(stream, take), daemon=True).start()

    def told(self, line: str) -> None:
        self.lines.append(json.loads(line))

    def erred(self, line: str) -> None:
        self.errors.append(line)

    def wait_for_passes(self, count: int) -> None:
        """Wait until it has archived something so often since it was started."""
        end = time.monotonic() + START_SECONDS_MAX
        known = len(self.lines)
        while len(self.lines) < known + count:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("the archive ended by itself:\n" + "\n".join(self.errors))
            time.sleep(0.02)

    def workers(self) -> list[int]:
        """Its Python workers: the children of Spark's daemon."""
        daemons = [pid for pid in family(self.process.pid) if "pyspark.daemon" in command_of(pid)]
        return [pid for pid in daemons if parent_of(pid) in daemons]

    def kill(self) -> None:
        """End all of it at once, the JVM too."""
        found = family(self.process.pid)
        for pid in [self.process.pid, *found]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for pid in found:
            wait_until_gone(pid)

    def stop(self) -> None:
        """Ask it to end, and see that it does so well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert code == 0, "\n".join(self.errors)


def drain(stream: Any, take: Any) -> None:
    with stream:
        for line in stream:
            with suppress(ValueError):
                take(line.decode(errors="replace").strip())


def stat_of(pid: int) -> list[str]:
    """What Linux says of a process, behind its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(stat_of(pid)[1])
    return 0


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def family(pid: int) -> list[int]:
    """All processes that a process started, and those that they did."""
    parents = {
        int(p.name): parent_of(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()
    }
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, known in parents.items() if known == parent]
        found += children
        waiting += children
    return found


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(OSError):
            if stat_of(pid)[0] != "Z":
                time.sleep(0.01)
                continue
        return


class Chaos:
    """One run."""

    def __init__(self, database: Database, lake: Path, *, seed: int = 0) -> None:
        self.database = database
        self.lake = lake
        self.random = random.Random(seed)
        self.outcome = Outcome()
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []

    def run(self, *, kills: int, worker_kills: int) -> Outcome:
        """Kill the driver so often, and workers in between; then let it catch up, and check."""
        with self.producing():
            for number in range(kills):
                driver = self.started()
                for _ in range(worker_kills * (number + 1) // kills - self.outcome.worker_kills):
                    self.kill_worker(driver)
                time.sleep(self.random.random())  # whatever it is doing then
                driver.kill()
                self.outcome.kills += 1
                print(f"killed the driver, {len(self.outcome.sent):,} sent", flush=True)  # noqa: T201
            driver = self.started()
        self.catch_up(driver)
        return self.outcome

    def started(self) -> Driver:
        driver = Driver(self.database.url, self.lake)
        driver.wait_for_passes(1)
        return driver

    def kill_worker(self, driver: Driver) -> None:
        """End one Python worker, and see that the archive goes on."""
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            workers = driver.workers()
            if workers:
                time.sleep(self.random.random() / 4)
                with suppress(ProcessLookupError):
                    os.kill(self.random.choice(workers), signal.SIGKILL)
                    self.outcome.worker_kills += 1
                    driver.wait_for_passes(2)
                    return
            time.sleep(0.02)
        raise AssertionError("there are no workers:\n" + "\n".join(driver.errors))

    def catch_up(self, driver: Driver) -> None:
        """Wait until the lake has all of it."""
        end = time.monotonic() + START_SECONDS_MAX
        with rowmq.connect(self.database.url) as mq:
            while sum(row.lag for topic in TOPICS for row in mq.lag(topic, "lake")):
                assert time.monotonic() < end, "\n".join(driver.errors)
                time.sleep(0.1)
        driver.stop()
        if self.failures:
            raise self.failures[0]

    # --- who publishes, and who collects ----------------------------------------------------------

    @contextmanager
    def producing(self) -> Iterator[None]:
        """Publish and collect, until the end of the block."""
        threads = [threading.Thread(target=self.produce, args=(n,)) for n in range(PRODUCERS)]
        threads.append(threading.Thread(target=self.collect))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def produce(self, number: int) -> None:
        chance = random.Random(number)
        try:
            with rowmq.connect(self.database.url) as mq:
                while not self.stopping.wait(chance.random()):
                    topic = chance.choice(TOPICS)
                    keys = [chance.choice([None, *map(str, range(KEYS))]) for _ in range(5)]
                    sent = [rowmq.Message(payload={"by": number}, key=key) for key in keys]
                    for key, result in zip(keys, mq.publish_many(topic, sent), strict=True):
                        self.outcome.sent[topic, key, result.id] = result.offset
        except BaseException as error:
            self.failures.append(error)
            raise

    def collect(self) -> None:
        try:
            with rowmq.connect(self.database.url) as mq:
                while not self.stopping.wait(0.5):
                    for topic in TOPICS:
                        mq.gc(topic)
                # The archive collects, too.
                known = [one for topic in TOPICS for one in mq.partitions(topic)]
                self.outcome.collected = sum(one.first_offset - 1 for one in known)
        except BaseException as error:
            self.failures.append(error)
            raise

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Every message is in the lake once, as it was published; some were collected meanwhile."""
        rows = rows_by_deltalake(self.lake, "messages")
        found = Counter((row["topic"], row["key"], row["id"]) for row in rows)
        twice = [message for message, count in found.items() if count > 1]
        assert not twice, twice[:10]
        assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows)
        missing = sorted(map(str, set(self.outcome.sent) - set(found)))
        assert not missing, missing[:10]
        assert {(r["topic"], r["key"], r["id"]): r["offset"] for r in rows} == self.outcome.sent
        assert self.outcome.collected > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default="postgres")
    parser.add_argument("--kills", type=int, default=7)
    parser.add_argument("--worker-kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        databases = Databases(Path(folder))
        with databases.stack:
            database = databases.get(chosen.database)
            chaos = Chaos(database, Path(folder) / "lake", seed=chosen.seed)
            begun = time.monotonic()
            outcome = chaos.run(kills=chosen.kills, worker_kills=chosen.worker_kills)
            chaos.check()
            seconds = time.monotonic() - begun
    print(  # noqa: T201
        f"{chosen.database}: {len(outcome.sent):,} messages, each once in the lake; "
        f"{outcome.kills} drivers and {outcome.worker_kills} workers killed; "
        f"{outcome.collected:,} collected meanwhile, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
