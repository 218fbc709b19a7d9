"""The life of a server: fresh data, a free port, and an end under every circumstance.

    nothing --start--> running --stop--> nothing
                       |    ^
                  kill |    | start or restart, after recovery
                       v    |
                  dead, data kept

A restart of a running server ends it in an orderly way; data and port stay.

The one idea: what differs between servers is how data is made, the command line, and a login; all
else is here.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote

from . import guard
from .account import server_account, temporary_folder
from .errors import ServerError
from .packages import Program

HOST = "127.0.0.1"
START_SECONDS_MAX = 60.0
HALT_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02


class Server(ABC):
    """A real server on loopback that ends with the test run."""

    name: ClassVar[str]
    scheme: ClassVar[str]
    # Where a URL of the same kind of server can be given, so that none is started.
    variable: ClassVar[str]
    # The quickest end: for data that is thrown away.
    discard_signal: ClassVar[signal.Signals] = signal.SIGKILL
    # The quickest end that leaves data which needs no recovery.
    halt_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.user = self.password = self.database = "rowmq"
        self._folder: Path | None = None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """How to reach the database that every server begins with."""
        return self.url_for(self.database)

    def url_for(self, database: str) -> str:
        """How to reach a database of this server; it need not exist."""
        credentials = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        return f"{self.scheme}://{credentials}@{HOST}:{self.port}/{quote(database, safe='')}"

    @property
    def port(self) -> int:
        """Chosen at the first start; stays the same over kill and restart."""
        if self._port is None:
            raise ServerError(f"{self.name} has no port before it is started")
        return self._port

    @property
    def folder(self) -> Path:
        """Data, log and settings, until stop."""
        if self._folder is None:
            raise ServerError(f"{self.name} has no data before it is started, nor after stop")
        return self._folder

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Return when logins succeed: on fresh data, or on what kill left behind."""
        if self.running:
            return self
        fresh = self._folder is None
        try:
            if fresh:
                self._create_folder()
                self._prepare()
            self._launch()
            self._await_login()
            if fresh:
                self._populate()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server and remove its data."""
        self._halt(self.discard_signal)
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def kill(self) -> None:
        """End the server and all its children by SIGKILL, and keep the data for the next start."""
        if self._process is None:
            return
        if self.running:  # once it was waited for, its number may be someone else's
            guard.destroy(self._process.pid)
            self._process.wait()
        self._process = None

    def restart(self) -> Self:
        """End the server in an orderly way, and start it on the same data and port."""
        self._halt(self.halt_signal)
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    @abstractmethod
    def _program(self) -> Program:
        """The server's program."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data and settings, in the folder."""

    @abstractmethod
    def _arguments(self) -> list[str]:
        """The command line that runs the server in the foreground, after the program."""

    @abstractmethod
    def _log_in(self) -> None:
        """Raise if the server takes no logins yet."""

    def _populate(self) -> None:
        """What is left to create once the server runs for the first time."""
        return

    def _create_folder(self) -> None:
        prefix = f"rowmq-{self.name}-"
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_folder()))
        self._port = free_port()
        server_account().owns(self._folder)

    def _launch(self) -> None:
        account = server_account()
        launch = guard.Launch(
            owner_pid=os.getpid(),
            command=[str(self._program.path), *self._arguments()],
            environment=self._program.environment,
            uid=account.uid,
            gid=account.gid,
            folder=str(self.folder),
            farewell_signal=self.discard_signal,
        )
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, launch.as_argument()],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the test run, which then ends its servers
            )

    def _await_login(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                return self._log_in()
            except Exception as refused:  # noqa: BLE001 - each driver has errors of its own
                reason = refused
            if not self.running:
                raise self._failure("ended right after its start") from reason
            if time.monotonic() > deadline:
                raise self._failure(f"takes no logins after {START_SECONDS_MAX:.0f} s") from reason
            time.sleep(POLL_SECONDS)

    def _failure(self, what: str) -> ServerError:
        program = self._program
        remedy = (
            f"remove {program.root} to have it unpacked again" if program.root else "reinstall it"
        )
        return ServerError(
            f"{self.name} ({program.path}) {what}. The end of its log:\n\n{self._log_tail()}\n\n"
            f"If that names no cause, {remedy}, or name a server of your own in {self.variable}."
        )

    @property
    def _log_path(self) -> Path:
        return self.folder / "log"

    def _log_tail(self, lines: int = 40) -> str:
        with self._log_path.open(encoding="utf-8", errors="replace") as log:
            return "".join(deque(log, lines)).rstrip()

    def _run(self, command: list[str], *, input_text: str = "") -> None:
        """Run a program to its end as the server's account, with its output in the log."""
        account = server_account()
        as_root = os.getuid() == 0
        with self._log_path.open("ab") as log:
            completed = subprocess.run(
                command,
                check=False,
                cwd=self.folder,
                env=self._program.environment,
                input=input_text.encode(),
                stdout=log,
                stderr=subprocess.STDOUT,
                user=account.uid if as_root else None,
                group=account.gid if as_root else None,
                extra_groups=[] if as_root else None,
            )
        if completed.returncode != 0:
            raise self._failure(f"could not be prepared: {command[0]} failed")

    def _write(self, name: str, text: str) -> Path:
        """A file in the folder that the server can read, and no other account."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        server_account().owns(path)
        return path

    def _halt(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(HALT_SECONDS_MAX)
        self.kill()


def free_port() -> int:
    """A port that nobody listens on, and that the kernel gives to no outgoing connection.

    A client that keeps dialling a dead server from that range would sooner or later be given the
    server's own port, connect to itself, and keep the server from coming back.
    """
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    ephemeral_min = int(limits.split()[0])
    port_max = ephemeral_min if ephemeral_min > 20_000 else 65_536
    for port in random.sample(range(10_000, port_max), k=1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise ServerError("No free port on loopback: is this sandbox without a network?")
