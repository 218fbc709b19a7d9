"""Gives a dead letter back with another payload, and is killed before every statement in turn.

    python -m tests.processes.editor URL

Each try is a process of its own. It tells how many were killed, and what the last one was answered.
"""

import os
import signal
import sys
from itertools import count

import rowmq
from rowmq.store.statement import Statement


def edit(url: str, statements: int) -> bool:
    """Redrive a letter; be killed before its next statement after so many."""
    left = statements

    def see(statement: Statement) -> None:
        nonlocal left
        if statement.name.startswith("schema."):
            return
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    with rowmq.connect(url, pool_size=1) as mq:
        mq._driver.observers.append(see)
        return mq.redrive_edited("t", group="g", id="x", payload="edited")


def main(url: str) -> None:
    for statements in count():
        child = os.fork()
        if child == 0:
            os._exit(10 + edit(url, statements))
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.stdout.write(f"{statements} {os.WEXITSTATUS(status) == 11}\n")
            return


if __name__ == "__main__":
    main(sys.argv[1])
