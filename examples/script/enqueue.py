"""Put a job for each line of a file, all of them or none: python enqueue.py addresses.txt"""

import sys
from pathlib import Path

import rowmq


def main(path: str) -> None:
    addresses = Path(path).read_text().split()
    with rowmq.connect("sqlite:///jobs.db") as mq:
        jobs = mq.queue("welcome").put_many([{"to": address} for address in addresses])
    print(f"{len(jobs)} jobs are waiting")


if __name__ == "__main__":
    main(sys.argv[1])
