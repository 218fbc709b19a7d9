"""What is known of an action before it begins: what was asked for in its form or its JSON.

It stands in the audit trail from the beginning, so that an action that is cut off does not leave a
row which says only that something was begun. By name, since what a later form may hold is not known
here: no payloads, no headers, no secrets, and no texts that are made of them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rowmq.web.asking import FORM, JSON

if TYPE_CHECKING:
    from rowmq.web.asking import Ask

__all__ = ["foretold"]

TOLD = frozenset(
    [
        *("name", "roles", "topics", "queues", "expires_in"),
        *("group", "start", "to", "at", "offset", "offsets", "key", "shard"),
        *("id", "ids", "job", "chosen", "all", "state", "older_than", "older_than_seconds"),
        *("delay", "delay_seconds", "priority", "ordering_key"),
        *("queue", "topic", "cron", "daily", "period_seconds", "tz", "catch_up", "grace_seconds"),
        *("retention", "retention_seconds", "failed_retention", "failed_retention_seconds"),
        *("keep_completed", "keep_failed", "max_payload_bytes", "max_in_flight", "durability"),
        *("rate", "rate_period", "rate_period_seconds"),
    ]
)

VALUES_MAX = 20
CHARS_MAX = 200
"""How many values of a name are told, and how much of each."""

ALL_CHARS_MAX = 8_000


async def foretold(ask: "Ask") -> Mapping[str, Any]:
    """What the trail says of an action until it has ended. Raises what reading the body raises."""
    body = await ask.body()
    if not body or ask.content_type not in (FORM, JSON):
        return {}
    asked = await of_form(ask) if ask.content_type == FORM else of_json(body)
    told: dict[str, Any] = {}
    left = ALL_CHARS_MAX
    for name, value in asked.items():
        short = shortened(value)
        left -= len(str(short))
        if left < 0:
            return told | {"more": True}
        told[name] = short
    return told


async def of_form(ask: "Ask") -> dict[str, Any]:
    """The fields of a form that were not left empty; of several of a name a list."""
    fields = {name: await ask.form_list(name) for name in await ask.form() if name in TOLD}
    lists = {name: [value for value in values if value] for name, values in fields.items()}
    return {name: one[0] if len(one) == 1 else one for name, one in lists.items() if one}


def of_json(body: bytes) -> dict[str, Any]:
    """The members of an object; nothing, if it is none: that is for the endpoint to say."""
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        found = {name: msgspec.json.decode(members[name]) for name in members.keys() & TOLD}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: found[name] for name in sorted(found) if found[name] is not None}


def shortened(value: Any) -> Any:
    """As much of a value as the trail has room for."""
    if isinstance(value, str):
        return value if len(value) <= CHARS_MAX else f"{value[:CHARS_MAX]}…"
    if isinstance(value, Sequence):
        cut = [shortened(one) for one in value[:VALUES_MAX]]
        return cut if len(value) <= VALUES_MAX else [*cut, "…"]
    return shortened(str(value)) if isinstance(value, Mapping) else value
