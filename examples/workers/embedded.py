import asyncio

import rowmq

app = rowmq.App("sqlite:///shop.db")
done = asyncio.Event()


@app.worker("emails")
async def send(email: str) -> None:
    print(f"sent to {email}")
    done.set()


async def main() -> None:
    async with app:  # handlers run in this event loop; leaving the block stops them gracefully
        await app.mq.queue("emails").put("ann@example.com")
        await done.wait()


asyncio.run(main())
