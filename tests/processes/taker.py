"""A process that claims jobs and keeps them until it is killed.

    python -m tests.processes.taker URL QUEUE COUNT LOCK_TIMEOUT

It says on its standard output how many it has.
"""

import sys
import time

import rowmq


def main() -> None:
    url, queue, count, lock_timeout = sys.argv[1:]
    with rowmq.connect(url) as mq:
        jobs = mq.queue(queue).try_poll_many(int(count), lock_timeout=float(lock_timeout))
        sys.stdout.write(f"{len(jobs)}\n")
        sys.stdout.flush()
        time.sleep(600)


if __name__ == "__main__":
    main()
