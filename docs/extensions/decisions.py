"""Puts the decisions into the navigation by themselves: there is another one now and then."""

import re
from pathlib import Path
from typing import Any

SECTION = "Decisions"
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


def on_config(config: Any) -> None:
    """Called by mkdocs before it builds."""
    folder = Path(config["docs_dir"]) / "decisions"
    pages = [{title_of(path): f"decisions/{path.name}"} for path in sorted(folder.glob("*.md"))]
    config["nav"].append({SECTION: pages})


def title_of(path: Path) -> str:
    found = TITLE.search(path.read_text())
    return path.stem if found is None else found[1]
