import rowmq

app = rowmq.App("sqlite:///shop.db")


@app.worker("clicks", ack_policy=rowmq.AckPolicy.ACK_FIRST)  # rather lost than counted twice
async def count(click: str) -> None:
    print(f"counted {click}", flush=True)


@app.worker("payments", ack_policy=rowmq.AckPolicy.REJECT_ON_ERROR)  # nobody is charged again
async def charge(amount: int) -> None:
    if amount < 0:
        raise ValueError("a negative amount")
    print(f"charged {amount}", flush=True)


@app.worker("uploads", ack_policy=rowmq.AckPolicy.MANUAL)
async def store(upload: dict[str, str], job: rowmq.Job[dict[str, str]]) -> None:
    if upload["state"] == "broken":
        job.reject(error="it cannot be read")
    elif upload["state"] == "arriving":
        upload_is_there = job.attempt > 1
        job.ack() if upload_is_there else job.nack(delay=0.2, error="not there yet")
    else:
        job.ack()
    print(f"{upload['state']}: attempt {job.attempt}", flush=True)
