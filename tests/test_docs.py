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
    url = databases.get(name).create().url
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"DATABASE_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_first_example_prints_what_it_says() -> None:
    (_, code), *_ = FENCE.findall((ROOT / "README.md").read_text())
    lines = [line for line in code.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) <= 20
