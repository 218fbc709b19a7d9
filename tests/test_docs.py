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
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def test_the_first_example_prints_what_it_says(tmp_path: Path) -> None:
    (_, code), *_ = FENCE.findall((ROOT / "README.md").read_text())
    lines = [line for line in code.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) <= 20
    said = PRINTED.findall(code)
    assert said == ["1 True"]
    first, *messages = run(code, tmp_path, "").splitlines()
    assert [first] == said
    # Then the messages of one customer, in their order; the id of the last was made.
    assert messages[0] == "1 order-7 {'id': 7, 'total': 12.5}"
    assert re.fullmatch(r"2 \S+ \{'id': 8, 'total': 99\.0\}", messages[1])
    assert len(messages) == 2
