"""What is there: whoever looks at a topic or a queue, or steers it, is told if there is none.

A queue is there once it was configured or got a job, a topic once it was configured or got a
message or a group. What makes one says so in its route; for everything else this is asked when the
gate and the scopes have let somebody through, so that nobody learns what there is beyond them.
"""

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from rowmq.message import QueueInfo
from rowmq.web.problems import Problem

if TYPE_CHECKING:
    from rowmq.web.asking import Ask

__all__ = ["NO_QUEUE", "NO_TOPIC", "answer", "has_topic", "no_group", "no_topic", "queue_of"]

NO_TOPIC = "There is no such topic."
NO_QUEUE = "There is no such queue."


async def answer(ask: "Ask") -> Response:
    """What the endpoint answers, once what the path names is known to be there."""
    route = ask.route
    if not route.may_be_new:
        if route.topic is not None and not await has_topic(ask):
            raise no_topic(ask)
        if route.queue is not None:
            await queue_of(ask)
    return await route.endpoint(ask)


async def has_topic(ask: "Ask") -> bool:
    """Whether the topic of the path is there; nothing is counted for that."""
    name = ask.path["topic"]
    if await ask.mq.partitions(name, limit=1):
        return True
    look = partial(ask.mq._store.topics.find_settings, name)  # noqa: SLF001 - the library's own
    return await ask.mq._run(look) is not None  # noqa: SLF001


def no_topic(ask: "Ask") -> Problem:
    """There is no such topic."""
    name = ask.path["topic"]
    said = f"there is no topic {name!r}: the first message published to it makes it"
    return Problem(404, said, kind="unknown-topic")


def no_group(ask: "Ask") -> Problem:
    """The topic has no such group."""
    topic, group = ask.path["topic"], ask.path["group"]
    said = f"topic {topic!r} has no group {group!r}: it was dropped, or never created"
    return Problem(404, said, kind="unknown-group")


async def queue_of(ask: "Ask") -> QueueInfo:
    """The queue of the path with its settings, which are looked up once for a request."""
    if ask.queue is None:
        name = ask.path["queue"]
        ask.queue = await ask.mq.queue(name).info()
        if ask.queue is None:
            said = f"there is no queue {name!r}: the first job put into it makes it"
            raise Problem(404, said, kind="unknown-queue")
    return ask.queue
