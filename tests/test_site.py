"""The documentation builds without a warning, is complete, and needs nothing from elsewhere."""

import fcntl
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import rowmq
import rowmq.spark
from docs.extensions import examples

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
FENCE = re.compile(r"^ *```(py(?:thon)?)\b", re.MULTILINE)
LOADING = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


class Page(HTMLParser):
    """What a page links to, what it loads, and where links can lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADING and LOADING[tag] in values:
            self.loads.append(values[LOADING[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, which the processes of a run share: the first to need it builds it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    built, done = folder / "site", folder / "site.built"
    with (folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            build(built)
            done.touch()
    return built


def build(folder: Path) -> None:
    """Only the theme's notice about a future MkDocs is turned off."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    built = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: Page(path.read_text()) for path in built}


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    start = site / "index.html"
    linked = {(site / urlsplit(link).path).resolve() for link in pages[start].links}
    unlinked = [page for page in PAGES if (site / page).with_suffix(".html") not in linked]
    assert unlinked == [], "add them to the nav of mkdocs.yml"


def test_every_page_is_built(site: Path) -> None:
    for page in PAGES:
        assert (site / page).with_suffix(".html").is_file()


def test_links_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = [
        f"{path.relative_to(site)} -> {link}"
        for path, page in pages.items()
        for link in page.links
        if is_broken(path, link, pages)
    ]
    assert broken == []


def is_broken(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False  # another site
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if target not in pages:
        return not target.is_file()
    return bool(parts.fragment) and unquote(parts.fragment) not in pages[target].anchors


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    loaded = {load for page in pages.values() for load in page.loads}
    assert loaded
    assert [load for load in loaded if urlsplit(load).netloc] == []
    own = [*(site / "assets").glob("*.css"), *(site / "assets").glob("*.js")]
    styles = [path.read_text() for path in [*own, *site.rglob("stylesheets/*.css")]]
    assert styles
    assert not any(re.search(r"(@import|url\()[\"']?(https?:)?//", style) for style in styles)


def test_search_works_from_a_server_and_from_files(site: Path, pages: dict[Path, Page]) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "StaleLease" in index
    assert (site / "search" / "search_index.js").read_text() == f"var __index = {index}"
    assert any(load.endswith("iframe-worker.js") for load in pages[site / "index.html"].loads)


def test_there_is_a_light_and_a_dark_palette(site: Path) -> None:
    index = (site / "index.html").read_text()
    assert 'data-md-color-scheme="default"' in index
    assert 'data-md-color-scheme="slate"' in index


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    reference = set[str]()
    for path, page in pages.items():
        if path.parent == site / "reference":
            reference |= page.anchors
    undocumented = {"rowmq.DEFAULT_PREFIX", "rowmq.errors"}
    wanted = {f"rowmq.{name}" for name in rowmq.__all__} - undocumented
    wanted |= {f"rowmq.errors.{name}" for name in rowmq.errors.__all__}
    for client in (rowmq.RowMQ, rowmq.AsyncRowMQ):
        names = [name for name in dir(client) if not name.startswith("_")]
        wanted |= {f"rowmq.{client.__name__}.{name}" for name in names}
    wanted |= {f"rowmq.spark.{name}" for name in rowmq.spark.__all__} - {"rowmq.spark.pipelines"}
    assert sorted(wanted - reference) == []
    told = {anchor.rsplit(".")[-1] for anchor in reference if ".spark.pipelines." in anchor}
    assert sorted(set(rowmq.spark.pipelines.__all__) - told) == []


def test_examples_stand_in_the_pages_as_they_are() -> None:
    assert examples.main(check=True) == 0, "run `make format`"


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_is_run(page: str) -> None:
    """Fences with `python` on the pages in docs/ are run by test_docs, and by tests/spark. All
    others are files of examples/, which are run there, too.
    """
    text = (DOCS / page).read_text()
    shown = len(examples.BLOCK.findall(text))
    for language in FENCE.findall(text):
        runs = language == "python" and "/" not in page
        assert runs or shown, "test_docs does not run this: show a file of examples/"
        shown -= not runs
