"""Runs tests on a copy of the source, and says what became of them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import NONE, SOURCE, Mutant, apply, place_of_test

__all__ = [
    "Failure",
    "Run",
    "Verdict",
    "copied_source",
    "first_failure",
    "is_of_the_guard",
    "passing",
    "try_mutant",
]

ROOT = SOURCE.parent

TEST_SECONDS = 120
RUN_SECONDS = 600
"""How long a test, and all that is run for one mutant, may take. What lasts longer hangs: that may
be for any reason, and a test should rather say what is wrong.
"""

COLUMNS_MAX = 2_000
"""The width of what pytest says: what is longer is cut, and what failed with it."""

PASSED, FAILED = 0, 1
"""What pytest ends with when all tests were run."""


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    BROKEN = "breaks ordinary use"
    HANGS = "hangs"
    OTHER = "fails for another reason"
    UNTRIED = "could not be tried"


class Run(NamedTuple):
    """What the tests said to a mutant on a database."""

    mutant: Mutant
    database: str
    verdict: Verdict
    by: str
    """The test that failed first; or what else there is to tell."""
    reason: str
    """How it failed."""
    seconds: float


@contextmanager
def copied_source(changed: Mapping[Path, str]) -> Iterator[Path]:
    """A copy of the source with changed files."""
    with tempfile.TemporaryDirectory(prefix="rowmq-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for path, text in changed.items():
            (copy / path).write_text(text)
        yield copy


def try_mutant(mutant: Mutant, database: str) -> Run:
    """See whether tests notice that a guard is off."""
    began = time.monotonic()
    names = [mutant.area.ordinary, *mutant.killers]
    with copied_source(apply(mutant.edits)) as source:
        code, said = run_tests(source, names, database)
    failed = first_failure(said)
    verdict = verdict_of(mutant, code, failed)
    by, reason = (said[-2_000:] if code else "", "") if failed is None else failed
    return Run(mutant, database, verdict, by, reason, time.monotonic() - began)


def verdict_of(mutant: Mutant, code: int | None, failed: "Failure | None") -> Verdict:
    """What became of a mutant, of how pytest ended and which test failed first."""
    if code == PASSED:
        return Verdict.SURVIVED
    if failed is None:
        return Verdict.HANGS if code is None else Verdict.UNTRIED
    if mutant.area.ordinary.partition("::")[2] == failed.test.partition("[")[0]:
        return Verdict.BROKEN
    if failed.reason.startswith(TIMEOUT):
        return Verdict.HANGS
    return Verdict.KILLED if is_of_the_guard(failed.reason) else Verdict.OTHER


def passing(mutants: Sequence[Mutant], database: str) -> str:
    """What tests say to the source as it is, if they do not pass: then it means nothing that they
    fail with a mutant.
    """
    chosen = [mutant for mutant in mutants if database in mutant.databases]
    names = dict.fromkeys(
        name for mutant in chosen for name in (mutant.area.ordinary, *mutant.killers)
    )
    if not names:
        return ""
    with copied_source({}) as source:
        code, said = run_tests(source, list(names), database, seconds=None)
    return "" if code == PASSED else said[-5_000:]


def run_tests(
    source: Path, names: Sequence[str], database: str, seconds: float | None = RUN_SECONDS
) -> tuple[int | None, str]:
    """Run tests with a copy of the source until one fails: pytest's exit code, None if it had to be
    ended, and what it said.
    """
    command = [sys.executable, "-c", IMPORTED.format(source=str(source)), "-x", "-q", "--tb=no"]
    command += ["-p", "no:cacheprovider", "-o", f"timeout={TEST_SECONDS}"]
    command += [] if database in NONE else ["-k", database]
    command += ["{}::{}".format(*place_of_test(name)) for name in names]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(source), str(ROOT)))}
    environment["COLUMNS"] = str(COLUMNS_MAX)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            said, _ = process.communicate()
            return None, said
    return process.returncode, said


IMPORTED = """
import sys
import pytest
import rowmq

if not rowmq.__file__.startswith({source!r}):
    sys.exit(f"it is not the copy that is tested, but {{rowmq.__file__}}")
sys.exit(pytest.main(sys.argv[1:]))
"""
"""Runs pytest, once it is sure that what is tested is the copy."""


class Failure(NamedTuple):
    """A test that failed, and how."""

    test: str
    reason: str


TIMEOUT = "Failed: Timeout"

OF_ANOTHER_REASON = re.compile(
    r"^(Import|ModuleNotFound|Syntax|Indentation|Name|UnboundLocal)Error"
    r"|syntax error|error in your SQL syntax|no such (column|table|function)"
    r"|(column|relation|function|table) \S+ does not exist|Unknown column"
    r"|number of (bindings|parameters)|could not determine data type|LIKE pattern",
    re.IGNORECASE,
)
"""What is told of code, or of SQL, that was broken by the change: that kills nobody."""


def first_failure(said: str) -> Failure | None:
    """The test that failed first, if one did."""
    found = re.search(r"^FAILED \S+?::(.+?)(?: - (.*))?$", said, re.MULTILINE)
    return None if found is None else Failure(found[1], found[2] or "")


def is_of_the_guard(reason: str) -> bool:
    """Whether a test failed for what the guard is there for, and not for code that does not run."""
    return OF_ANOTHER_REASON.search(reason) is None
