"""SQLite's file: how it is kept, where it lies, and how much of it is empty."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rowmq.doctor.case import Case
from rowmq.doctor.wording import size
from rowmq.message import Finding
from rowmq.store.doctor_sqlite import SQLiteState

__all__ = [
    "FileFacts",
    "judge_file",
    "judge_free_pages",
    "judge_integrity",
    "judge_log",
    "look_at_file",
]

# On these, locks between machines cannot be relied upon.
NETWORKS = {"9p", "afs", "ceph", "cifs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4"} | {
    "ocfs2", "smb", "smb2", "smb3", "smbfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "davfs",
}  # fmt: skip

SIZE_MIN = 64 * 1024 * 1024
FULL = 2


class FileFacts(NamedTuple):
    """A file as the operating system sees it."""

    file_bytes: int
    log_bytes: int
    """The size of its write-ahead log."""
    file_system: str | None
    """What kind of file system it lies on, where that can be told."""


def look_at_file(path: str, mounts: str = "/proc/self/mounts") -> FileFacts:
    """What the operating system says of a database's file."""
    file, log = Path(path), Path(f"{path}-wal")
    return FileFacts(bytes_of(file), bytes_of(log), file_system_of(file, Path(mounts)))


def bytes_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def file_system_of(file: Path, mounts: Path) -> str | None:
    """The file system of the longest mount point above a file; None where it is not told."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
        above = {str(parent) for parent in file.resolve().parents}
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        _, point, found, *_ = [*line.split(), "", "", ""]
        point = point.replace("\\040", " ")
        if point in above and len(point) >= len(best):
            best, kind = point, found
    return kind


def judge_file(facts: tuple[SQLiteState, FileFacts | None], case: Case) -> Iterator[Finding]:
    state, file = facts
    details = {"journal_mode": state.journal_mode, "synchronous": state.synchronous}
    if file is None:
        yield case.ok("a database in memory: it is gone when the client is closed", **details)
        return
    details["file_system"] = file.file_system or "unknown"
    healthy = True
    if state.journal_mode != "wal":
        healthy = False
        yield case.warning(
            f"the journal mode is {state.journal_mode}: readers and the writer wait for each other",
            "close every program that has the file open, and connect again: RowMQ turns WAL on "
            "unless somebody else has the file locked, or its file system has no shared memory",
            **details,
        )
    if state.synchronous < FULL:
        healthy = False
        yield case.warning(
            f"synchronous is {state.synchronous}: a power cut may lose commits",
            "PRAGMA synchronous = FULL on every connection that writes",
            **details,
        )
    if file.file_system in NETWORKS:
        healthy = False
        yield case.problem(
            f"the file lies on a network file system ({file.file_system}): locks do not hold "
            f"between machines there, and the file may be destroyed",
            "move it to a local disk; to share a queue between machines, use PostgreSQL, MySQL or "
            "MariaDB",
            **details,
        )
    if healthy:
        yield case.ok("write-ahead log, synchronous, on a local disk", **details)


def judge_log(facts: tuple[FileFacts, tuple[int, int] | None], case: Case) -> Iterator[Finding]:
    """The write-ahead log; after a checkpoint was tried, if it is large."""
    file, checkpoint = facts
    if checkpoint is None:
        yield case.ok(f"the write-ahead log takes {size(file.log_bytes)}", log_bytes=file.log_bytes)
        return
    frames, moved = checkpoint
    details = {"log_bytes": file.log_bytes, "frames": frames, "frames_moved": moved}
    if moved < frames:
        yield case.warning(
            f"the write-ahead log has grown to {size(file.log_bytes)} and cannot be emptied: a "
            f"reader has been in a transaction since before",
            f"find who has the file open with: lsof '{case.identity.database}', and let long reads "
            f"end; every read gets slower with the log",
            **details,
        )
    else:
        yield case.note(
            f"the write-ahead log has grown to {size(file.log_bytes)}; all of it is in the file "
            f"by now",
            "to have the space back, when nobody writes: PRAGMA wal_checkpoint(TRUNCATE)",
            **details,
        )


def judge_integrity(facts: tuple[FileFacts, str | None], case: Case) -> Iterator[Finding]:
    file, said = facts
    if said is None:
        limit = size(case.thresholds.integrity_bytes)
        yield case.ok(
            f"the file, of {size(file.file_bytes)}, was not checked for damage: it is larger than "
            f"{limit}",
            file_bytes=file.file_bytes,
        )
    elif said == "ok":
        yield case.ok("the file is not damaged", file_bytes=file.file_bytes)
    else:
        yield case.problem(
            f"the file is damaged: {said}",
            "stop every program that uses it, keep a copy, and restore a backup, or save what can "
            "be saved with the sqlite3 shell's .recover",
            file_bytes=file.file_bytes,
            quick_check=said,
        )


def judge_free_pages(state: SQLiteState, case: Case) -> Iterator[Finding]:
    total, free = state.pages * state.page_bytes, state.free_pages * state.page_bytes
    details = {"file_bytes": total, "free_bytes": free}
    if free >= SIZE_MIN and free >= case.thresholds.free_space * total:
        yield case.note(
            f"{size(free)} of the file's {size(total)} are empty",
            "they will be used again; to give them back, when nobody else uses the file: VACUUM",
            **details,
        )
    else:
        yield case.ok(f"the file takes {size(total)}, of which {size(free)} are empty", **details)
