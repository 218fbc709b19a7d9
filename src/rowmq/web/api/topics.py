"""Topics over HTTP: publish, browse, settings, groups and lag."""

from typing import Any

import rowmq
from rowmq.rights import Role
from rowmq.web.api import members, models
from rowmq.web.api.calls import Calls
from rowmq.web.api.payloads import plain, raw_of
from rowmq.web.asking import Ask
from rowmq.web.existing import no_group, no_topic
from rowmq.web.problems import Problem

__all__ = ["CALLS", "place_of", "shown"]

CALLS = Calls("Topics", "Publish messages, look at them, and at the groups that consume them.")

NO_GROUP = "The topic has no such group, or it was dropped."


@CALLS.get("/topics", needs=Role.READ)
async def list_topics(ask: Ask) -> models.Topics:
    """The topics that this token may see."""
    found = [topic for topic in await ask.mq.topics() if ask.caller.sees_topic(topic.name)]
    return models.Topics(topics=[topic_of(topic) for topic in found])


@CALLS.get("/topics/{topic}", needs=Role.READ)
async def get_topic(ask: Ask) -> models.Topic:
    """A topic at a glance, and its settings."""
    topic = await ask.mq.topic(ask.path["topic"])
    if topic is None:
        raise no_topic(ask)
    return topic_of(topic)


@CALLS.patch("/topics/{topic}", needs=Role.ADMIN, action="topic.configure", may_be_new=True)
async def configure_topic(ask: Ask, body: models.TopicSettings) -> models.Done:
    """Change settings of a topic, which is made if it is new."""
    ask.note(retention_seconds=body.retention_seconds, max_payload_bytes=body.max_payload_bytes)
    await ask.mq.configure_topic(
        ask.path["topic"],
        retention=body.retention_seconds,
        max_payload_bytes=body.max_payload_bytes,
    )
    return models.Done(changed=True)


# --- publish --------------------------------------------------------------------------------------


@CALLS.post(
    "/topics/{topic}/messages",
    needs=Role.PRODUCE,
    action="message.publish",
    audited=False,
    may_be_new=True,
    raw=True,
)
async def publish(
    ask: Ask, body: models.NewMessage | None, query: models.RawMessage
) -> rowmq.PublishResult:
    """Append a message to a topic. It is durable when this answers. One with an `id` that is there
    already is not published again: the answer then says where it stands, and that it is a
    `duplicate`, so a call whose answer was lost can be repeated. A body that is no JSON is the
    payload itself: text, if its Content-Type says so, and else bytes.
    """
    if body is None:
        raw = await raw_of(ask)
        return await ask.mq.publish(
            ask.path["topic"], raw.payload, key=query.key, id=query.id, headers=raw.headers
        )
    if ask.query:
        raise Problem(422, "key and id are members of the body, if it is JSON")
    message = message_of(body)
    return await ask.mq.publish(
        ask.path["topic"],
        message.payload,
        key=message.key,
        id=message.id,
        headers=message.headers,
    )


@CALLS.post(
    "/topics/{topic}/messages/batch",
    needs=Role.PRODUCE,
    action="message.publish",
    audited=False,
    may_be_new=True,
)
async def publish_many(ask: Ask, body: models.NewMessages) -> models.Publication:
    """Append messages to a topic in one transaction: all of them, or none and an error."""
    messages = [message_of(message) for message in body.messages]
    return models.Publication(published=await ask.mq.publish_many(ask.path["topic"], messages))


def message_of(body: models.NewMessage) -> "rowmq.Message[Any]":
    """The message that a body asks for."""
    return rowmq.Message(
        payload=plain(body.payload, body.encoding),
        key=body.key,
        id=body.id,
        headers=body.headers,
    )


# --- look -----------------------------------------------------------------------------------------


@CALLS.get("/topics/{topic}/messages", needs=Role.READ)
async def browse(ask: Ask, query: models.MessagesWanted) -> models.Messages:
    """Messages of a topic, newest first, without consuming them. Payloads and headers are masked as
    the settings of the server say.
    """
    chosen: dict[str, Any] = {}
    if query.key is not None or query.shard is not None:
        chosen["key"] = place_of(query.key, query.shard)
    page = await ask.mq.browse(
        ask.path["topic"],
        at=query.at,
        id=query.id,
        before=query.before,
        after=query.after,
        limit=query.limit,
        **chosen,
    )
    return models.Messages(
        messages=[shown(ask, message) for message in page.messages],
        newer=page.newer,
        older=page.older,
        partial=page.partial,
    )


@CALLS.get("/topics/{topic}/partitions", needs=Role.READ)
async def list_partitions(ask: Ask, query: models.PartitionsWanted) -> models.Partitions:
    """The keys of a topic and the offsets that each holds. `after`, or `after_shard` where that one
    has no key, are those of the last one of a page.
    """
    after = None
    if query.after is not None or query.after_shard is not None:
        after = (query.after, query.after_shard or 0)
    found = await ask.mq.partitions(
        ask.path["topic"], prefix=query.prefix, after=after, limit=query.limit
    )
    return models.Partitions(partitions=found)


def shown(ask: Ask, message: "rowmq.Message[Any]") -> models.Message:
    """A message without what is to be hidden from those who only look."""
    return models.Message(
        topic=message.topic,
        key=message.key,
        shard=message.shard,
        offset=message.offset,
        id=message.id,
        headers=ask.mask_headers(message.headers),
        published_at=message.published_at,
        **members.payload_members(ask.mask(message.payload)),
    )


def place_of(key: str | None, shard: int | None) -> Any:
    """A partition: that of a key, or a shard of the messages without one."""
    if key is not None and shard is not None:
        raise Problem(422, "messages with a key have no shard: give key or shard, but not both")
    return key if shard is None else (None, shard)


# --- groups ---------------------------------------------------------------------------------------


@CALLS.get("/topics/{topic}/groups", needs=Role.READ)
async def list_groups(ask: Ask) -> models.Groups:
    """The consumer groups of a topic."""
    return models.Groups(groups=await ask.mq.groups(ask.path["topic"]))


@CALLS.put(
    "/topics/{topic}/groups/{group}", needs=Role.CONSUME, action="group.create", may_be_new=True
)
async def create_group(ask: Ask, body: models.NewGroup) -> models.Done:
    """Have a group, so that nothing is collected before it has acked it. One that is there stays as
    it is. A poll creates its group, too.
    """
    ask.note(start=body.start)
    path = ask.path
    made = await ask.mq.create_group(path["topic"], path["group"], start=body.start)
    return models.Done(changed=made)


@CALLS.delete(
    "/topics/{topic}/groups/{group}", needs=Role.ADMIN, action="group.drop", missing=NO_GROUP
)
async def drop_group(ask: Ask) -> models.Done:
    """Forget a group and its place. Its dead letters stay."""
    if not await ask.mq.drop_group(ask.path["topic"], ask.path["group"]):
        raise no_group(ask)
    return models.Done(changed=True)


@CALLS.get("/topics/{topic}/groups/{group}/lag", needs=Role.READ, missing=NO_GROUP)
async def get_lag(ask: Ask, query: models.LagWanted) -> models.Lag:
    """How far a group is behind, partition by partition, those most behind first."""
    lag = await ask.mq.lag(ask.path["topic"], ask.path["group"], limit=query.limit)
    return models.Lag(lag=lag)


def topic_of(info: rowmq.TopicInfo) -> models.Topic:
    """The topic, for an answer."""
    return models.Topic(
        name=info.name,
        partitions=info.partitions,
        messages=info.messages,
        max_payload_bytes=info.max_payload_bytes,
        retention_seconds=members.seconds_of(info.retention),
        holds_letters=info.holds_letters,
    )
