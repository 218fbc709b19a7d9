"""What the old loop of SELECT ... FOR UPDATE SKIP LOCKED becomes."""

import os

import rowmq

URL = os.environ.get("DATABASE_URL", "sqlite:///old.db")


def main() -> None:
    with rowmq.connect(URL) as mq:
        emails = mq.queue("emails")
        # As before: the job is locked by this transaction, and done when it commits.
        while True:
            with emails.hold(max_failures=3) as job:
                if job is None:
                    break
                job.tx.execute("INSERT INTO sent (address) VALUES (?)", [job.payload["to"]])
                print(f"{job.key}: sent to {job.payload['to']}")


if __name__ == "__main__":
    main()
