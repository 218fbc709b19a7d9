"""An order, its message and a job in one transaction, with SQLAlchemy's AsyncSession."""

import asyncio
import os

from sqlalchemy import String, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import rowmq

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String(200))
    total: Mapped[float]


async def place_order(session: AsyncSession, mq: rowmq.AsyncRowMQ, order: Order) -> None:
    """Nothing of this is there before the caller commits."""
    session.add(order)
    await session.flush()
    event = {"id": order.id, "total": order.total}
    await mq.queue("receipts").put(event, delay=60, connection=session)
    await mq.publish("orders", event, key=order.customer, connection=session)


async def main() -> None:
    engine = create_async_engine(async_url(URL))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    async with await rowmq.connect_async(URL) as mq:
        await mq.migrate()
        async with AsyncSession(engine) as session, session.begin():
            await place_order(session, mq, Order(customer="ann", total=12.5))

        async with AsyncSession(engine) as session:
            orders = await session.scalars(select(Order))
            print("orders:", [order.total for order in orders])
        messages = await mq.read("orders", key="ann")
        print("messages:", [message.payload["total"] for message in messages])
        print("receipts waiting:", (await mq.queue("receipts").counts())["pending"])
    await engine.dispose()


def async_url(url: str) -> str:
    """The same database, with the driver that SQLAlchemy is to use."""
    scheme, rest = url.split("://", 1)
    driver = {
        "postgresql": "asyncpg",
        "mysql": "asyncmy",
        "mariadb": "asyncmy",
        "sqlite": "aiosqlite",
    }
    return f"{scheme}+{driver[scheme]}://{rest}"


if __name__ == "__main__":
    asyncio.run(main())
