"""What Prometheus reads: topics, groups, queues, and the site's own connections and statements."""

import asyncio

from starlette.responses import Response

from rowmq.client import AsyncRowMQ
from rowmq.rights import Role
from rowmq.telemetry.figures import Figures, look_async
from rowmq.telemetry.metrics import Metrics
from rowmq.web.asking import Ask
from rowmq.web.routing import METRICS, Route

__all__ = ["ROUTES", "Scrapes"]


class Scrapes:
    """What is measured of a site, from when somebody first asks."""

    def __init__(self) -> None:
        self._metrics = Metrics()
        self._figures: Figures | None = None

    async def text(self, mq: AsyncRowMQ) -> bytes:
        """Everything as it stands."""
        if self._figures is None:
            loop = asyncio.get_running_loop()
            self._figures = self._metrics.figures = Figures(
                lambda: asyncio.run_coroutine_threadsafe(look_async(mq), loop)
            )
            self._metrics.observe(mq)
        await self._figures.wait_async()
        return self._metrics.text()

    def close(self) -> None:
        """Look no more."""
        if self._figures is not None:
            self._figures.close()
            self._figures = self._metrics.figures = None

    @property
    def content_type(self) -> str:
        """What the format is called."""
        return self._metrics.content_type


async def metrics(ask: Ask) -> Response:
    """Everything that is measured: of all topics and queues, so not for who may see some."""
    scrapes = ask.site.scrapes
    text = await scrapes.text(ask.mq)
    return Response(text, headers={"Content-Type": scrapes.content_type})


ROUTES = (Route("GET", METRICS, metrics, needs=Role.READ, everywhere=True),)
