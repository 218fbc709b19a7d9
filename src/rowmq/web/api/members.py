"""What the members of requests and answers may be. Durations are in seconds, times in RFC 3339 with
a zone.

Whoever sends a member that is not known is told so: most often it is one that was misspelt.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rowmq.web.api.payloads import written

__all__ = [
    "BATCH_MAX",
    "CENTURY",
    "CLAIM_MAX",
    "IDS_MAX",
    "PAGE_MAX",
    "POLL_MAX",
    "SETTLE_MAX",
    "WAIT_SECONDS_MAX",
    "Given",
    "Handle",
    "Headers",
    "JobId",
    "Key",
    "Lasting",
    "Moment",
    "Name",
    "Offset",
    "Page",
    "Priority",
    "ReceiptText",
    "Receipts",
    "Seconds",
    "Shard",
    "Shown",
    "Wait",
    "payload_members",
    "seconds_of",
]

WAIT_SECONDS_MAX = 60.0
"""How long a request may wait for something to come."""

SETTLE_MAX = 1_000
BATCH_MAX = 1_000
POLL_MAX = 1_000
CLAIM_MAX = 100
PAGE_MAX = 500
IDS_MAX = 1_000

CENTURY = 3_155_760_000.0

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Key = Annotated[str, Meta(min_length=1, max_length=255)]
Moment = Annotated[datetime, Meta(tz=True)]
Seconds = Annotated[float, Meta(ge=0, le=CENTURY)]
Lasting = Annotated[float, Meta(ge=0.001, le=CENTURY)]
Wait = Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)]
Priority = Annotated[int, Meta(ge=-32_767, le=32_767)]
JobId = Annotated[int, Meta(ge=0, lt=2**62)]
Offset = Annotated[int, Meta(ge=1, lt=2**62)]
Handle = Annotated[str, Meta(pattern=r"^[0-9]{1,18}\.[0-9]{1,18}\.[0-9]{1,18}$")]
Page = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Headers = dict[str, str]
ReceiptText = Annotated[str, Meta(min_length=1, max_length=200)]
Receipts = Annotated[list[ReceiptText], Meta(min_length=1, max_length=SETTLE_MAX)]
Shard = Annotated[int, Meta(ge=0, le=1_000)]


class Given(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a request says."""


class Shown(msgspec.Struct, kw_only=True):
    """What an answer says."""


def seconds_of(duration: timedelta | None) -> float | None:
    """A duration in seconds."""
    return None if duration is None else duration.total_seconds()


def payload_members(payload: Any) -> dict[str, Any]:
    """The members of a payload."""
    value, encoding = written(payload)
    return {"payload": value, "encoding": encoding}
