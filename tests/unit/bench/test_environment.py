"""The environment of the peers: made once, made anew for other versions, and nobody else's."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rowmq.bench import environment
from rowmq.errors import ConfigurationError

METADATA = "Metadata-Version: 2.1\nName: peer\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def peer_wheel(folder: Path, version: str) -> Path:
    """A package that an environment can be given without a package index."""
    path = folder / f"peer-{version}-py3-none-any.whl"
    info = f"peer-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("peer.py", f"version = '{version}'\n")
        wheel.writestr(f"{info}/METADATA", METADATA.format(version=version))
        wheel.writestr(f"{info}/WHEEL", WHEEL)
        wheel.writestr(f"{info}/RECORD", f"peer.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return path


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text(f"peer @ {peer_wheel(tmp_path, '1.0').as_uri()}\n")
    return path


def finished(home: Path, requirements: Path) -> None:
    """What a complete environment looks like from outside."""
    environment.interpreter_of(home).parent.mkdir(parents=True)
    environment.interpreter_of(home).symlink_to(sys.executable)
    (home / environment.STAMP).write_text(environment.stamp_of(requirements))


def test_the_environment_has_the_peers_and_an_unfinished_one_is_begun_again(
    tmp_path: Path, requirements: Path
) -> None:
    home, told = tmp_path / "cache" / "peers", list[str]()
    home.mkdir(parents=True)
    (home / environment.STAMP).write_text(environment.UNFINISHED)
    (home / "half").write_text("of an interrupted run")

    python = environment.ensure(home, requirements=requirements, tell=told.append)

    shown = subprocess.run(
        [python, "-c", "import peer; print(peer.version)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "1.0\n"
    assert len(told) == 1
    assert str(home) in told[0]
    assert not (home / "half").exists()
    assert environment.is_made(home, environment.stamp_of(requirements))


def test_an_environment_that_is_there_is_used_as_it_is(tmp_path: Path, requirements: Path) -> None:
    home, told = tmp_path / "peers", list[str]()
    finished(home, requirements)

    python = environment.ensure(home, requirements=requirements, tell=told.append)

    assert python == home / "bin" / "python"
    assert told == []


def test_other_versions_ask_for_another_environment(tmp_path: Path, requirements: Path) -> None:
    home = tmp_path / "peers"
    finished(home, requirements)
    assert environment.is_made(home, environment.stamp_of(requirements))

    requirements.write_text(f"peer @ {peer_wheel(tmp_path, '2.0').as_uri()}\n")

    assert not environment.is_made(home, environment.stamp_of(requirements))


def test_an_interpreter_that_has_been_removed_asks_for_another_environment(
    tmp_path: Path, requirements: Path
) -> None:
    home = tmp_path / "peers"
    finished(home, requirements)
    python = environment.interpreter_of(home)
    python.unlink()
    python.symlink_to(tmp_path / "removed")

    assert not environment.is_made(home, environment.stamp_of(requirements))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, requirements: Path) -> None:
    home = tmp_path / "photos"
    home.mkdir()
    (home / "cat.png").write_bytes(b"cat")

    with pytest.raises(ConfigurationError, match="Name a folder that is empty"):
        environment.ensure(home, requirements=requirements)

    assert [path.name for path in home.iterdir()] == ["cat.png"]


def test_a_place_where_nothing_can_be_made_is_told(tmp_path: Path, requirements: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(ConfigurationError, match="Name a folder that can be written to"):
        environment.ensure(tmp_path / "file" / "peers", requirements=requirements)


def test_what_pip_cannot_install_is_told_with_what_pip_said(tmp_path: Path) -> None:
    missing = tmp_path / "requirements.txt"
    missing.write_text(f"peer @ {(tmp_path / 'peer-9-py3-none-any.whl').as_uri()}\n")

    with pytest.raises(ConfigurationError, match="pip could not install the peers") as caught:
        environment.install(Path(sys.executable), missing)

    assert "without --peers" in str(caught.value)
    assert "peer-9-py3-none-any.whl" in str(caught.value)


@pytest.mark.parametrize("cache", ["/somewhere/cache", ""], ids=["set", "empty"])
def test_it_is_kept_in_the_cache_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("HOME", "/home/somebody")

    expected = Path(cache or "/home/somebody/.cache") / "rowmq" / "bench-peers"
    assert environment.default_folder() == expected
