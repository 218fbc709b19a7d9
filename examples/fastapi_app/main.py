"""A web service that writes an order and its message in one transaction, and handles messages too.

uvicorn main:api
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import rowmq

engine = create_async_engine("sqlite+aiosqlite:///shop.db")
sessions = async_sessionmaker(engine, expire_on_commit=False)
app = rowmq.App("sqlite:///shop.db")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[float]
    billed: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    customer: str
    total: float


class OrderPlaced(BaseModel):
    id: int
    total: float


@app.subscriber("orders", group="billing")
async def bill(placed: OrderPlaced) -> None:
    async with sessions.begin() as session:
        await session.execute(update(Order).where(Order.id == placed.id).values(billed=True))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with app:  # handlers run until the service stops, and then finish what they began
        yield
    await engine.dispose()


api = FastAPI(lifespan=lifespan)


async def transaction() -> AsyncIterator[AsyncSession]:
    """The transaction of a request: committed before the answer is sent."""
    async with sessions.begin() as session:
        yield session


# `scope="function"`: the transaction ends before the answer is sent, not after it.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@api.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: Transaction) -> dict[str, int]:
    order = Order(customer=new.customer, total=new.total)
    session.add(order)
    await session.flush()
    placed = OrderPlaced(id=order.id, total=order.total)
    await app.mq.publish("orders", placed, key=order.customer, connection=session)
    if new.total < 0:  # neither the order nor its message was ever there
        raise HTTPException(422, "a negative total")
    return {"id": order.id}


@api.get("/orders/{id}")
async def show_order(id: int, session: Transaction) -> dict[str, bool]:
    order = await session.get(Order, id)
    if order is None:
        raise HTTPException(404, "no such order")
    return {"billed": order.billed}
