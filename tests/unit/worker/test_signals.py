"""Signals: the first one asks to stop, a second one stops at once, and no stop takes for ever.

In processes of their own, since signals are for whole processes.
"""

import subprocess
import sys
import time

SCRIPT = """
import os, signal, sys, time
from rowmq.worker.signals import stop_on_signals

stops = []
with stop_on_signals(lambda: stops.append(1), seconds_max=float(sys.argv[1])):
    exec(sys.argv[2])
print(len(stops), flush=True)
"""


def run(code: str, seconds_max: float = 20.0) -> tuple[int, str, float]:
    """The exit code of a process, what it wrote, and how long it took."""
    began = time.monotonic()
    command = [sys.executable, "-c", SCRIPT, str(seconds_max), code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


KILL = "os.kill(os.getpid(), signal.{})"


def test_the_first_signal_asks_to_stop() -> None:
    for name in ("SIGTERM", "SIGINT"):
        assert run(KILL.format(name))[:2] == (0, "1\n")


def test_signals_that_come_together_are_one() -> None:
    code = "; ".join(KILL.format(name) for name in ("SIGTERM", "SIGINT", "SIGTERM"))
    assert run(code)[:2] == (0, "1\n")


def test_a_second_signal_stops_at_once() -> None:
    code = "; ".join([KILL.format("SIGTERM"), "time.sleep(0.4)", KILL.format("SIGINT")])
    returned, written, _ = run(code + "; time.sleep(30)")
    assert returned == 128 + 2
    assert "stopped at once" in written


def test_a_stop_that_does_not_come_to_its_end_is_ended() -> None:
    returned, written, seconds = run(KILL.format("SIGTERM") + "; time.sleep(30)", seconds_max=0.2)
    assert returned == 5
    assert "too long" in written
    assert seconds < 10


def test_without_a_signal_nothing_is_ended() -> None:
    assert run("time.sleep(0.3)", seconds_max=0.1)[:2] == (0, "0\n")


def test_afterwards_signals_are_what_they_were() -> None:
    code = "pass"
    after = "\nprint(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + after, "5", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "0\nTrue\n"
