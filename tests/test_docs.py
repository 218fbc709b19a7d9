"""Every Python example in the README and the docs runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.databases import Databases

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```python ?(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"print\(.*\)  # (.+)$", re.MULTILINE)
PAGES = [
    ROOT / "README.md",
    # That of Spark is run by tests/spark, which has one at hand.
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "spark.md"),
]


def examples() -> list[Any]:
    found = []
    for page in PAGES:
        for number, (database, code) in enumerate(FENCE.findall(page.read_text()), 1):
            found.append(pytest.param(database, code, id=f"{page.stem}-{number}"))
    return found


@pytest.mark.parametrize(("database", "code"), examples())
def test_an_example_runs(databases: Databases, tmp_path: Path, database: str, code: str) -> None:
    name = {"": "sqlite", "mysql": "mariadb"}.get(database, database)
    run(code, tmp_path, databases.get(name).create().url)


def run(code: str, folder: Path, url: str) -> str:
    """What an example prints, in a process and a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={"DATABASE_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_of_the_readme_print_what_they_say(tmp_path: Path) -> None:
    """Where a line says in a comment what it prints."""
    said = 0
    for number, (_, code) in enumerate(FENCE.findall((ROOT / "README.md").read_text())):
        promised = PRINTED.findall(code)
        if promised:
            folder = tmp_path / str(number)
            folder.mkdir()
            assert run(code, folder, "").splitlines() == promised
            said += len(promised)
    assert said == 3
