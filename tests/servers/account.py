"""Who the servers run as: the account of the test run, or `nobody` when that is root.

PostgreSQL and PgBouncer refuse root for good reasons, so under root every server gives up its
rights. It follows that programs and data must lie where that account can reach them.
"""

import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import ServerError


@dataclass(frozen=True, slots=True)
class Account:
    """A user and its group, by number."""

    uid: int
    gid: int

    def owns(self, path: Path) -> None:
        """Hand a file or folder to this account."""
        if os.getuid() != self.uid:
            os.chown(path, self.uid, self.gid)

    def reaches(self, path: Path) -> bool:
        """Whether this account may enter every folder on the way to `path`, and enter or run it."""
        if os.getuid() == self.uid:
            return os.access(path, os.X_OK)
        # We are root, for whom every access check says yes: read the permissions instead.
        return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


def server_account() -> Account:
    """The account that servers run as."""
    if os.getuid() != 0:
        return Account(os.getuid(), os.getgid())
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid)


def temporary_folder() -> Path:
    """Where temporary files go, provided that the servers can reach it."""
    folder = Path(tempfile.gettempdir()).resolve()
    if not server_account().reaches(folder):
        raise ServerError(
            f"{folder} is closed to other users, but under root the servers run as nobody. "
            f"Set TMPDIR to an open folder such as /tmp."
        )
    return folder
