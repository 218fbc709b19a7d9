from datetime import datetime

import rowmq

app = rowmq.App("sqlite:///shop.db")


@app.worker("emails", concurrency=20)
def send(email: dict[str, str]) -> None:
    print(f"sent to {email['to']}", flush=True)


@app.cron("* * * * *", tz="Europe/Paris")
async def every_minute(fired: datetime, mq: rowmq.AsyncRowMQ) -> None:
    await mq.queue("emails").put({"to": f"ops@example.com at {fired:%H:%M}"})
