"""Work off what is due, then end: for cron, CI and notebooks, where no worker runs all day."""

import rowmq


def welcome(to: str) -> None:
    if "@" not in to:
        raise ValueError(f"{to!r} is no address")
    print(f"welcome, {to}")


def main() -> None:
    with rowmq.connect("sqlite:///jobs.db") as mq:
        queue = mq.queue("welcome", retry=rowmq.Constant(interval=0.1, max_attempts=2))
        while job := queue.poll(timeout=1):  # None: nothing became due for a second
            try:
                welcome(job.payload["to"])
            except ValueError as error:
                job.nack(error=error)  # again later; after the second attempt it has failed
            else:
                job.ack()
        counts = queue.counts()
        print(f"{counts['completed']} done, {counts['failed']} failed")
        for job in queue.failed():
            print(f"job {job.id} failed {job.attempts} times: {job.error}")


if __name__ == "__main__":
    main()
