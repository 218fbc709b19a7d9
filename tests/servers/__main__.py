"""Servers to work with by hand: `python -m tests.servers [postgres] [mariadb] [pgbouncer]`.

Prints how to reach them, in a form that a shell can evaluate, and runs them until Ctrl-C.
"""

import argparse
import contextlib
import signal
import sys

from .mariadb import MariaDBServer
from .pgbouncer import PgBouncer
from .postgres import PostgresServer
from .process import Server

NAMES = [PostgresServer.name, MariaDBServer.name, PgBouncer.name]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    # Without `choices`: argparse would check the empty default against them.
    parser.add_argument("names", nargs="*", metavar="|".join(NAMES), help="default: all of them")
    names = set(parser.parse_args().names or NAMES)
    if not names <= set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(names - set(NAMES)))}")
    # Until all run, Ctrl-C interrupts as usual; a plain kill then has to do the same.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as running:
        _start(names, running)
        signal.pause()


def _start(names: set[str], running: contextlib.ExitStack) -> None:
    if names & {PostgresServer.name, PgBouncer.name}:  # a pooler alone has nothing to pool
        postgres = _announce(running.enter_context(PostgresServer()))
        if PgBouncer.name in names:
            _announce(running.enter_context(PgBouncer(postgres.url)))
    if MariaDBServer.name in names:
        _announce(running.enter_context(MariaDBServer()))


def _announce(server: Server) -> Server:
    sys.stdout.write(f"export {server.variable}={server.url}\n")
    sys.stdout.flush()
    return server


if __name__ == "__main__":
    main()
