"""The virtual environment in which the peers are installed: theirs, and never the product's.

It is made on first use, in the user's cache folder, and made anew when the pinned versions or the
interpreter change. A file tells what is in it:

    nothing --> unfinished --> the stamp of what was installed
                    ^                   |
                    '-- other versions -'

A folder that has no such file was made by somebody else, and is left alone.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rowmq.errors import ConfigurationError

__all__ = ["REQUIREMENTS", "default_folder", "ensure"]

REQUIREMENTS = Path(__file__).with_name("peers") / "requirements.txt"

STAMP = "rowmq-peers"
UNFINISHED = "unfinished"
TOLD_LINES = 8
"""How much of what a command said is told when it fails."""


def ensure(
    folder: Path | None = None,
    *,
    requirements: Path = REQUIREMENTS,
    tell: Callable[[str], object] = lambda _: None,
) -> Path:
    """The interpreter of an environment with the peers, which is made if it is not there.

    Raises `ConfigurationError` if it cannot be made, or if the folder holds something else.
    """
    home = (folder or default_folder()).absolute()
    wanted = stamp_of(requirements)
    with locked(home):
        if not is_made(home, wanted):
            refuse_foreign(home)
            tell(f"Installing the peers into {home}: once, and it takes about a minute ...")
            make(home, requirements, wanted)
    return interpreter_of(home)


def default_folder() -> Path:
    """Where the environment is kept if no other place is named."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rowmq" / "bench-peers"


def interpreter_of(home: Path) -> Path:
    return home / "bin" / "python"


def stamp_of(requirements: Path) -> str:
    """What tells one content of the environment from another."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    return f"{sys.implementation.cache_tag} {digest}"


def is_made(home: Path, wanted: str) -> bool:
    """Whether everything is there. An interpreter that has been removed leaves a dead link."""
    return read_stamp(home) == wanted and interpreter_of(home).exists()


def read_stamp(home: Path) -> str | None:
    try:
        return (home / STAMP).read_text("utf-8")
    except OSError:
        return None


def refuse_foreign(home: Path) -> None:
    if home.exists() and read_stamp(home) is None and (not home.is_dir() or any(home.iterdir())):
        raise ConfigurationError(
            f"{home} is to hold the peers of the benchmark, but something else is there. "
            f"Name a folder that is empty or does not exist."
        )


def make(home: Path, requirements: Path, stamp: str) -> None:
    """Make it from nothing. Whatever interrupts this, the next call begins again."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    (home / STAMP).write_text(UNFINISHED, "utf-8")
    run(
        [sys.executable, "-m", "venv", "--without-pip", str(home)],
        what="Python could not make a virtual environment",
        advice="On Debian and Ubuntu: apt-get install python3-venv",
    )
    install(interpreter_of(home), requirements)
    (home / STAMP).write_text(stamp, "utf-8")


def install(python: Path, requirements: Path) -> None:
    """Install by the pip of this interpreter: a copy of it for the peers would take longer to make
    than all else.
    """
    run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--disable-pip-version-check", "--no-input", "--requirement", str(requirements)),
        ],
        what="pip could not install the peers",
        advice=f"See that {sys.executable} has a pip (`-m ensurepip` gives it one) that reaches a "
        f"package index with what {requirements} names, or run the benchmark without --peers",
    )


def run(command: list[str], *, what: str, advice: str) -> None:
    done = subprocess.run(  # noqa: S603 - our own command, and no shell
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-TOLD_LINES:])
        raise ConfigurationError(f"{what}. {advice}. It said:\n{said}")


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Two runs at once make one environment: the second waits, and finds it there."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        lock = (home.parent / f"{home.name}.lock").open("w")
    except OSError as error:
        raise ConfigurationError(
            f"The peers of the benchmark cannot be installed at {home}: {error}. "
            f"Name a folder that can be written to, or set XDG_CACHE_HOME."
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
