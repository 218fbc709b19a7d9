"""Where a lake's files are: a folder, or an object store that `deltalake` knows the way to.

A folder is written to directly, and what was written is on the disk before it counts: garbage
collection deletes from the database what the lake has.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
from deltalake.fs import DeltaStorageHandler

from rowmq.errors import InvalidOption

__all__ = ["Lake", "Root", "lake_of"]

REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
PIECE_BYTES = 8 * 1024 * 1024


class Root(msgspec.Struct, frozen=True):
    """The place of one table. It travels to tasks, and never shows its options: keys are secret."""

    uri: str
    options: dict[str, str]

    @property
    def folder(self) -> Path | None:
        """The folder on this machine, if it is one."""
        return None if REMOTE.match(self.uri) else Path(self.uri)

    @property
    def _handler(self) -> Any:
        return DeltaStorageHandler(self.uri, self.options)._handler  # noqa: SLF001 - see `Upload`

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """A new file, which is there for good at the end of the block."""
        if self.folder is None:
            with Upload(self._handler.open_output_stream(path, None)) as upload:
                yield upload  # type: ignore[misc]  # as much of a file as Parquet needs
            return
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        for folder in (target.parent, *target.parent.parents):
            sync_folder(folder)
            if folder == self.folder:
                break

    def read(self, path: str) -> bytes | None:
        """What a file holds; None if it is not there."""
        try:
            if self.folder is not None:
                return (self.folder / path).read_bytes()
            return bytes(self._handler.open_input_file(path).read())
        except FileNotFoundError:
            return None

    def opened(self, path: str) -> Any:
        """A file to read from here and there."""
        if self.folder is not None:
            return str(self.folder / path)
        return DeltaStorageHandler(self.uri, self.options).open_input_file(path)

    def size_of(self, path: str) -> int | None:
        """How many bytes a file has; None if there is none."""
        try:
            if self.folder is not None:
                return (self.folder / path).stat().st_size
            return int(self._handler.open_input_file(path).size())
        except FileNotFoundError:
            return None

    def delete(self, path: str) -> None:
        """Delete a file, if it is there and can be deleted: nobody counts on it."""
        with contextlib.suppress(OSError):
            if self.folder is not None:
                (self.folder / path).unlink()
            else:
                self._handler.delete_file(path)

    def settle_log(self, first: int, last: int) -> None:
        """See that versions of the log are on the disk: deltalake leaves that to the system."""
        if self.folder is None:
            return
        log = self.folder / "_delta_log"
        for version in range(first, last + 1):
            for path in log.glob(f"{version:020}.*"):
                sync_file(path)
        sync_file(log / "_last_checkpoint")
        sync_folder(log)

    def __repr__(self) -> str:
        return f"Root({self.uri!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("uri", self.uri)]  # options may be secrets


class Upload:
    """A stream to an object store: what pyarrow writes to it are not always bytes."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.written = 0
        self.closed = False

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            for start in range(0, view.nbytes, PIECE_BYTES):
                self.stream.write(bytes(view[start : start + PIECE_BYTES]))
            self.written += view.nbytes
            return view.nbytes

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else it never becomes a file
            self.stream.close()


class Lake(msgspec.Struct, frozen=True):
    """A lake: a place with a folder for each table."""

    uri: str
    options: dict[str, str]

    def root(self, table: str) -> Root:
        return Root(f"{self.uri}/{table}", self.options)

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("uri", self.uri)]  # options may be secrets


def lake_of(lake: "str | Path | Lake", storage_options: Mapping[str, str] | None = None) -> Lake:
    """The lake at a path, or at a URI such as s3://bucket/lake; its options are deltalake's."""
    if isinstance(lake, Lake):
        return lake
    if not isinstance(lake, str | Path) or not str(lake).strip():
        raise InvalidOption(
            f"lake must be a folder or a URI such as s3://bucket/lake, not {lake!r}"
        )
    options = {str(name): str(value) for name, value in (storage_options or {}).items()}
    text = re.sub(r"^file://(localhost)?(?=/)", "", str(lake))
    if REMOTE.match(text):
        return Lake(text.rstrip("/"), options)
    path = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 - links stay as they are
    strange = sorted(set(path) & set("%#?*[]{}\\"))
    if strange:
        raise InvalidOption(
            f"the lake's path has the character {strange[0]!r} in it, which readers of Delta "
            f"tables do not agree about: name a folder without it, not {path}"
        )
    return Lake(path.rstrip("/") or "/", options)


def sync_file(path: Path) -> None:
    """See that what a file holds is on the disk, if it is there."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """See that the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
