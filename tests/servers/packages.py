"""Programs of database servers: those installed on the machine, or else unpacked Debian packages.

The one idea: a package is a folder tree, and a server runs from any folder if it is told where its
libraries are. So nothing gets installed: apt downloads into a state of its own, taking from the
machine only its sources and the list of what is already there, and dpkg-deb unpacks into a cache
that later test runs find again:

    <temporary files>/rowmq-servers-<uid>/
        lock                       held while packages are downloaded
        lists/                     apt's package lists
        debian-12-pgbouncer/       an unpacked root; appears by a rename, so it is never half there
"""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .account import server_account, temporary_folder
from .errors import ServerError

# Lists every unpacked file, because cleaners of temporary files take single files out of the tree.
MANIFEST = "rowmq-manifest"
STAGING = "unpacking-"


@dataclass(frozen=True, slots=True)
class Program:
    """A server's program, and the root it was unpacked to; no root if it is installed."""

    path: Path
    root: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """All that the program gets to see: a PGPORT or LC_ALL of the caller must not matter."""
        plain = {"PATH": f"{self.path.parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        if self.root is None:
            return plain
        return plain | {"LD_LIBRARY_PATH": ":".join(map(str, library_folders(self.root)))}


def locate(name: str, *, folders: Sequence[str], packages: Sequence[str]) -> Program:
    """Find a program on PATH or in `folders`, patterns below a root; else unpack `packages`."""
    found = shutil.which(name)
    if found and server_account().reaches(Path(found).resolve()):
        return Program(Path(found).resolve())
    installed = _newest(Path("/"), folders, name)
    if installed:
        return Program(installed)
    root = unpack(*packages)
    unpacked = _newest(root, folders, name)
    if not unpacked:
        raise ServerError(
            f"The Debian packages {', '.join(packages)} were unpacked to {root}, but there is no "
            f"{name} in {', '.join(folders)}. Remove that folder to download them again; if dpkg "
            f"counts them as installed, reinstall them, because then apt leaves them out."
        )
    return Program(unpacked, root)


def _newest(root: Path, folders: Sequence[str], name: str) -> Path | None:
    found = [path for folder in folders for path in root.glob(f"{folder}/{name}")]
    usable = [path for path in found if server_account().reaches(path)]
    # By number: PostgreSQL 9 comes before 15.
    return max(
        usable, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], default=None
    )


# PulseAudio's libraries name the folder of their private ones as it is on an installed system.
LIBRARY_FOLDERS = ("usr/lib/*-linux-*", "lib/*-linux-*", "usr/lib/*-linux-*/pulseaudio")


def library_folders(root: Path) -> list[Path]:
    """Where Debian packages put shared libraries, below an unpacked root."""
    return [path for pattern in LIBRARY_FOLDERS for path in root.glob(pattern)]


def unpack(*names: str) -> Path:
    """The root folder of these packages and of what they need beyond the machine's own packages.

    Safe to call from several test runs at once: the first downloads, the others wait for it.
    """
    cache = cache_folder()
    system = platform.freedesktop_os_release()
    # A cache of the release before would want libraries that an upgrade has taken away.
    release = f"{system['ID']}-{system.get('VERSION_ID', 'rolling')}"
    root = cache / "-".join([release, *names])
    with _locked(cache / "lock"):
        if not _is_whole(root):
            with _staging_folder(cache) as staging:
                _download(names, staging, lists=cache / "lists")
                _extract(staging)
                shutil.rmtree(root, ignore_errors=True)
                (staging / "root").rename(root)
    return root


def cache_folder() -> Path:
    """The folder that keeps unpacked packages: ours, and open to the account of the servers."""
    folder = temporary_folder() / f"rowmq-servers-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        # Temporary files are open to all: whoever was here first could have us run their programs.
        raise ServerError(f"{folder} belongs to someone else. Remove it, or set TMPDIR.")
    folder.chmod(0o755)
    return folder


def _is_whole(root: Path) -> bool:
    try:
        files = (root / MANIFEST).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    return all(os.path.lexists(root / file) for file in files)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _staging_folder(cache: Path) -> Iterator[Path]:
    for abandoned in cache.glob(f"{STAGING}*"):  # we hold the lock: nobody works there any more
        shutil.rmtree(abandoned, ignore_errors=True)  # but its apt may
    with tempfile.TemporaryDirectory(dir=cache, prefix=STAGING) as name:
        staging = Path(name)
        staging.chmod(0o755)  # apt downloads as a user of its own when we are root
        yield staging


def _download(names: Sequence[str], staging: Path, *, lists: Path) -> None:
    for folder in (lists / "partial", staging / "archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    settings = staging / "apt.conf"
    settings.write_text(_apt_settings(staging, lists), encoding="utf-8")
    # A source that is down or outdated is a mere warning here, and need not concern our packages.
    update = _run(["apt-get", f"-c={settings}", "-q", "update"])
    install = _run(["apt-get", f"-c={settings}", "-qy", "--download-only", "install", *names])
    if install.returncode != 0:
        raise ServerError(
            f"apt could not download {', '.join(names)}:\n{update.stdout[-2000:]}\n"
            f"{install.stdout[-2000:]}\nInstall the packages yourself, or run a server of your own "
            f"and name it in ROWMQ_TEST_POSTGRES_URL, ROWMQ_TEST_MARIADB_URL or "
            f"ROWMQ_TEST_PGBOUNCER_URL."
        )


def _apt_settings(staging: Path, lists: Path) -> str:
    """Settings that are read after the machine's own; options alone could not clear a list."""
    return f"""
Dir::State::lists "{lists}";
Dir::Cache "{staging}";
Dir::Cache::archives "{staging}/archives";
Debug::NoLocking "true";
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "true";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


def _extract(staging: Path) -> None:
    root = staging / "root"
    root.mkdir()
    root.chmod(0o755)
    for archive in sorted((staging / "archives").glob("*.deb")):
        unpacked = _run(["dpkg-deb", "--extract", str(archive), str(root)])
        if unpacked.returncode != 0:
            raise ServerError(f"{archive.name} could not be unpacked:\n{unpacked.stdout[-2000:]}")
    files = [str(path.relative_to(root)) for path in sorted(root.rglob("*"))]
    (root / MANIFEST).write_text("\n".join(files), encoding="utf-8")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            umask=0o022,
        )
    except FileNotFoundError as missing:
        raise ServerError(
            f"{missing.filename} is missing: the tests can provide servers only on Debian and its "
            f"kin. Install PostgreSQL, MariaDB and PgBouncer, so that they are on PATH."
        ) from missing
