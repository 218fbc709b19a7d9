"""Visit the service without a server: python try_it.py"""

import asyncio

import httpx
from main import api


async def main() -> None:
    transport = httpx.ASGITransport(app=api)
    async with (
        api.router.lifespan_context(api),  # what a server does: starts and stops the handlers
        httpx.AsyncClient(transport=transport, base_url="http://shop") as http,
    ):
        placed = await http.post("/orders", json={"customer": "ann", "total": 9.5})
        refused = await http.post("/orders", json={"customer": "ann", "total": -1})
        print("placed:", placed.json(), "refused:", refused.status_code)
        while not (await http.get("/orders/1")).json()["billed"]:  # noqa: ASYNC110 - a client can only ask
            await asyncio.sleep(0.01)
        print("order 1 is billed; order 2:", (await http.get("/orders/2")).status_code)


asyncio.run(main())
