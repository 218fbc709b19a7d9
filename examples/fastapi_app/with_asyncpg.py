"""The same with asyncpg and no ORM, for PostgreSQL; this process only publishes.

uvicorn with_asyncpg:api
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from fastapi import FastAPI, Request

import rowmq

URL = os.environ["DATABASE_URL"]


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(URL, min_size=1) as pool, await rowmq.connect_async(URL) as mq:
        await mq.migrate()
        await pool.execute(
            "CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, customer text, total float)"
        )
        api.state.pool, api.state.mq = pool, mq
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place_order(customer: str, total: float, request: Request) -> dict[str, int]:
    pool, mq = request.app.state.pool, request.app.state.mq
    async with pool.acquire() as connection, connection.transaction():
        id = await connection.fetchval(
            "INSERT INTO orders (customer, total) VALUES ($1, $2) RETURNING id", customer, total
        )
        sent = await mq.publish(
            "orders", {"id": id, "total": total}, key=customer, connection=connection
        )
    return {"id": id, "offset": sent.offset}
