"""A handler whose annotations are text until somebody asks for them."""

from __future__ import annotations

from dataclasses import dataclass

import rowmq


@dataclass
class Letter:
    to: str


async def handler(job: rowmq.Job[Letter], email: Letter) -> None: ...
