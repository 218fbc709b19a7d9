"""What a module of Celery tasks becomes. Start it with `rowmq worker app:app`."""

from dataclasses import dataclass

import rowmq

app = rowmq.App("sqlite:///shop.db")


@dataclass
class Receipt:
    order: int
    to: str


@app.worker(
    "receipts",
    concurrency=8,  # worker -c 8
    retry=rowmq.ExponentialBackoff(initial=0.1, max_delay=600, jitter=0.5, max_attempts=4),
    timeout=30,  # task_time_limit
)
def send_receipt(receipt: Receipt, context: rowmq.Context) -> None:  # sync: runs in a thread
    if receipt.to == "flaky" and context.attempt == 1:
        raise ConnectionError("the mail server does not answer")  # autoretry_for
    print(f"receipt of order {receipt.order} sent, attempt {context.attempt}", flush=True)


@app.cron("0 2 * * *", tz="Europe/Paris")  # beat_schedule
def nightly() -> None:
    print("the nightly report", flush=True)
