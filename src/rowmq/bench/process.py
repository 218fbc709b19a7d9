"""What processes of this machine have used up, as far as the system tells."""

import os
from pathlib import Path

__all__ = ["cpu_of_family"]

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_of_family(pid: int | None, *, called: str) -> float | None:
    """What the processes of a server have taken of the processor, in seconds: the family of one
    of them, if its name begins so. None if that is not a process of this machine.
    """
    if pid is None or (member := stat_of(pid)) is None or not member.name.startswith(called):
        return None
    parent = stat_of(member.parent)
    head = member if parent is None or not parent.name.startswith(called) else parent
    total = head.own + head.ended_children
    for folder in Path("/proc").glob("[0-9]*"):
        child = stat_of(int(folder.name))
        if child is not None and child.parent == head.pid:
            total += child.own
    return total / TICKS_A_SECOND


class Stat:
    """A process, as /proc/PID/stat tells of it; times in ticks."""

    def __init__(self, text: str) -> None:
        before, _, after = text.rpartition(")")
        number, _, self.name = before.partition(" (")
        self.pid = int(number)
        fields = after.split()
        self.parent = int(fields[1])
        self.own = int(fields[11]) + int(fields[12])
        self.ended_children = int(fields[13]) + int(fields[14])


def stat_of(pid: int) -> Stat | None:
    try:
        return Stat(Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace"))
    except OSError:
        return None
