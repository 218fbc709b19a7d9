"""What a module of procrastinate tasks becomes. Start it with `rowmq worker app:app`."""

import rowmq

app = rowmq.App("sqlite:///shop.db")


@app.worker("sums", retry=rowmq.Constant(interval=5, max_attempts=5))
async def add(numbers: dict[str, int], job: rowmq.Job[dict[str, int]]) -> None:
    total = numbers["a"] + numbers["b"]
    print(f"{job.ordering_key}: {numbers['a']} + {numbers['b']} = {total}", flush=True)


@app.cron("*/5 * * * *")  # @app.periodic(cron="*/5 * * * *")
async def clean_up(mq: rowmq.AsyncRowMQ) -> None:
    await mq.queue("sums").prune(older_than=3600)
