from shop import Order, app

from rowmq.testing import AsyncTestApp


# part async begins
async def test_an_order_is_billed() -> None:  # with pytest-asyncio, or anyio
    async with AsyncTestApp(app) as t:
        await t.publish("orders", Order(id=7, total=12.5))

        await t.drain()

        t.assert_enqueued("receipts", Order(id=7, total=12.5))
        # part async ends
