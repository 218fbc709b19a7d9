"""What is published, and the client that does: one for each process, opened at its first use."""

from dataclasses import dataclass
from functools import cache

from django.conf import settings

import rowmq


@dataclass
class OrderPlaced:
    id: int
    total: float


@cache
def client() -> rowmq.RowMQ:
    return rowmq.connect(settings.ROWMQ_URL)
