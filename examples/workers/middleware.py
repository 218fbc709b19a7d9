import time
from collections.abc import Awaitable, Callable
from typing import Any

import rowmq

app = rowmq.App("sqlite:///shop.db")


@app.middleware
async def timing(context: rowmq.Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
    began = time.perf_counter()
    try:
        return await call_next()
    finally:
        took = time.perf_counter() - began
        context.state["took"] = took
        print(f"{context.handler} on {context.source}: {took:.1f} s", flush=True)


@app.on_startup
async def warm_up() -> None:
    print("ready", flush=True)


@app.on_shutdown
def say_goodbye() -> None:
    print("bye", flush=True)


@app.worker("emails", timeout=10)
async def send(email: str) -> None:
    print(f"sent to {email}", flush=True)
