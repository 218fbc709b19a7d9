from collections.abc import AsyncIterator

import pytest_asyncio
from shop import Order, app

from rowmq.testing import AsyncTestApp


# part fixture begins
@pytest_asyncio.fixture
async def t() -> AsyncIterator[AsyncTestApp]:
    async with AsyncTestApp(app) as t:
        yield t
        # part fixture ends


async def test_an_order_is_billed(t: AsyncTestApp) -> None:
    await t.publish("orders", Order(id=7, total=12.5))
    await t.drain()
    t.assert_enqueued("receipts", count=1)
