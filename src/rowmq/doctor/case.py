"""A case: what a judge knows beside the figures, and how it says what it found.

A judge is a pure function: figures and a case in, findings out. It always says something, so that
somebody who reads the report sees what was looked at.
"""

from typing import Any

import msgspec

from rowmq.doctor.thresholds import Thresholds
from rowmq.message import Finding, Level
from rowmq.store.dialect import Dialect
from rowmq.store.doctor_facts import Identity

__all__ = ["Case"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What a check is about, and what it is measured by."""

    check: str
    thresholds: Thresholds
    dialect: Dialect
    identity: Identity
    driver: str
    """The driver and its version."""

    def ok(self, summary: str, **details: Any) -> Finding:
        return self._finding(Level.OK, summary, "", details)

    def note(self, summary: str, advice: str, **details: Any) -> Finding:
        return self._finding(Level.NOTE, summary, advice, details)

    def warning(self, summary: str, advice: str, **details: Any) -> Finding:
        return self._finding(Level.WARNING, summary, advice, details)

    def problem(self, summary: str, advice: str, **details: Any) -> Finding:
        return self._finding(Level.PROBLEM, summary, advice, details)

    def _finding(self, level: Level, summary: str, advice: str, details: dict[str, Any]) -> Finding:
        return Finding(
            check=self.check, level=level, summary=summary, details=details, advice=advice
        )
