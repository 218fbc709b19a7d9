"""A server that has gone silent for good is noticed within half a minute.

A partition, a machine without power, a firewall that forgets: none of them ends a connection, and
whoever waits for an answer, waits for as long as the system does, which is two hours or for ever. A
limit of our own would be no cure, since a statement may take as long as it needs. So the system is
asked to look whether the other end is there: one that computes still acknowledges what is sent to
it, one that is gone does not. What cannot be asked for is left as it was.
"""

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

__all__ = ["PATIENCE", "Patience", "expect_signs", "expect_signs_of", "socket_of"]

Patience = Mapping[str, int]
"""How long a silence may last, in libpq's names. Of 0, or unnamed, is what the system does."""

PATIENCE: Patience = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds: for what was sent, which keepalive is no help for
}

# What the options are called here; each system has its choice of them.
OPTIONS = {
    "keepalives": (socket.SOL_SOCKET, ("SO_KEEPALIVE",)),
    "keepalives_idle": (socket.IPPROTO_TCP, ("TCP_KEEPIDLE", "TCP_KEEPALIVE")),  # macOS has the 2nd
    "keepalives_interval": (socket.IPPROTO_TCP, ("TCP_KEEPINTVL",)),
    "keepalives_count": (socket.IPPROTO_TCP, ("TCP_KEEPCNT",)),
    "tcp_user_timeout": (socket.IPPROTO_TCP, ("TCP_USER_TIMEOUT",)),
}


def expect_signs(connected: Any, patience: Patience = PATIENCE) -> None:
    """Have the system watch the other end of a socket, or of what asyncio has for one."""
    if getattr(connected, "family", None) not in (socket.AF_INET, socket.AF_INET6):
        return  # the other end is a process of this machine, whose end closes the socket
    for name, value in patience.items():
        level, spellings = OPTIONS[name]
        option = next((spelling for spelling in spellings if hasattr(socket, spelling)), None)
        if option is not None and value > 0:
            with contextlib.suppress(OSError):
                connected.setsockopt(level, getattr(socket, option), value)


def expect_signs_of(descriptor: int, patience: Patience = PATIENCE) -> None:
    """The same for a socket that a library keeps to itself, and does not wait on by blocking."""
    with contextlib.suppress(OSError, ValueError):
        borrowed = socket.socket(fileno=descriptor)
        try:
            expect_signs(borrowed, patience)
        finally:
            borrowed.detach()


def socket_of(connection: Any) -> Any:
    """The socket of a connection of asyncpg, or of asyncmy, which once had its transport behind a
    stream; None if there is no such thing.
    """
    transport = getattr(connection, "_transport", None) or getattr(connection, "_writer", None)
    return None if transport is None else transport.get_extra_info("socket")
