"""Puts the files of examples/ into the pages, where they are read on any site.

A comment says which file, or which part of it, the code block after it shows:

    <!-- example: quickstart/app.py -->
    ```py title="app.py"
    ...
    ```

`python docs/extensions/examples.py` (part of `make format`) writes the blocks anew; with `--check`
it only says which differ. Parts are marked in the files by `# part name begins` and `ends`.
"""

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(
    r"(?P<head>^<!-- example: (?P<file>[\w./-]+)(?:#(?P<part>\w+))? -->\n```[^\n]*\n)"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"^ *# part \w+ (?:begins|ends)\n", re.MULTILINE)


def code_of(file: str, part: str | None) -> str:
    """A file of examples/, or a part of it, without the marks."""
    text = (ROOT / "examples" / file).read_text()
    if part is not None:
        wanted = rf"^ *# part {part} begins\n(.*?)^ *# part {part} ends$"
        found = re.search(wanted, text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise SystemExit(f"examples/{file} has no part {part!r}")
        text = textwrap.dedent(found[1])
    return MARK.sub("", text).strip("\n") + "\n"


def renewed(text: str) -> str:
    """A page with its examples as they are now."""
    return BLOCK.sub(
        lambda block: block["head"] + code_of(block["file"], block["part"]) + "```", text
    )


def main(*, check: bool) -> int:
    """Renew every page, or tell of those that differ."""
    stale = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text()
        new = renewed(text)
        if new != text:
            stale += 1
            if not check:
                page.write_text(new)
            print(page.relative_to(ROOT), "differs from its examples" if check else "renewed")  # noqa: T201
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
