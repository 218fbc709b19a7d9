"""The whole, over HTTP: workers, and the doctor."""

from rowmq.rights import Role
from rowmq.web.api import models
from rowmq.web.api.calls import Calls
from rowmq.web.asking import Ask

__all__ = ["CALLS"]

CALLS = Calls("Operations", "Who is at work, and what is wrong.")


@CALLS.get("/workers", needs=Role.READ)
async def list_workers(ask: Ask) -> models.Workers:
    """The processes that run handlers, and what they are at, as far as this token may see it."""
    workers = await ask.mq.workers()
    return models.Workers(workers=[ask.caller.worker_seen(worker) for worker in workers])


@CALLS.get("/doctor", needs=Role.ADMIN, everywhere=True)
async def examine(ask: Ask) -> models.Findings:
    """The checks of `rowmq doctor`, and what they found."""
    checkup = await ask.mq.doctor()
    return models.Findings(
        level=checkup.level, healthy=checkup.healthy, findings=list(checkup.findings)
    )
