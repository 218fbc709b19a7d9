"""A handler that writes through SQLAlchemy, and acks in the same transaction."""

import os

from async_orders import Order, async_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import rowmq

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")

engine = create_async_engine(async_url(URL))
app = rowmq.App(URL)


@app.subscriber("orders", group="discounts")
async def discount(
    event: dict[str, float], delivery: rowmq.AsyncDelivery[dict[str, float]]
) -> None:
    async with AsyncSession(engine) as session, session.begin():
        order = await session.get_one(Order, event["id"])
        order.total *= 0.9
        await session.flush()
        await delivery.ack(connection=session)  # the last thing before the commit
    print(f"discounted order {event['id']}", flush=True)


@app.on_shutdown
async def close() -> None:
    await engine.dispose()
