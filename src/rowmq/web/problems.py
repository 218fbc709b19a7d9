"""What went wrong, as an answer: the status of every error, in one place.

An endpoint raises `Problem`, or lets an error of the library through; the core makes an answer of
it: problem+json (RFC 9457) for programs, a page for people. What nobody expected is logged, and
told to nobody.
"""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from rowmq import errors
from rowmq.quoting import in_line

__all__ = ["Problem", "detail_of", "problem_of", "statuses"]

RETRY_AFTER_SECONDS = 1

STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.UnknownGroup, 404),
    (errors.UnknownSchedule, 404),
    (errors.KeyTaken, 409),
    (errors.TokenTaken, 409),
    (errors.NotClaimed, 409),
    (errors.PayloadTooLarge, 413),
    (errors.PayloadMismatch, 422),
    (errors.InvalidInput, 400),
    (errors.StaleLease, 409),
    (errors.AlreadySettled, 409),
    (errors.DataLoss, 410),
    (errors.UniqueViolation, 409),
    (errors.StatementTooLarge, 413),
    (errors.TransientError, 503),
    (errors.SchemaError, 503),
    (errors.AuthenticationFailed, 503),
    (errors.Closed, 503),
    (errors.MissingExtra, 501),
    (errors.RowMQError, 500),
)
"""The status of each error: the first that fits."""

TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""What Python calls otherwise, depending on its version."""

HIDDEN = {
    errors.SchemaError: "the database is not as this version needs it: rowmq migrate, or the log "
    "of this server, says more",
    errors.DatabaseError: "the database could not do it; the log of this server says more",
    errors.ConfigurationError: "this server is not set up as it should be; its log says more",
}
"""Errors that may say where the database is, name its tables or quote its statements: nobody's
business here. What is told instead is that of the first that fits.
"""

TOLD = (errors.StatementTooLarge, errors.MissingExtra, errors.Closed)
"""Those of them that say nothing of the kind."""


ADVICE = tuple(
    (re.compile(python + r"\Z", re.DOTALL), told)
    for python, told in (
        (
            r"; create it with create_group\(\) or subscribe\(\), or see groups\(.*\)",
            ": a PUT of it makes it, and so does its first poll; a GET of the groups lists all",
        ),
        (r"; subscribe again to create it anew", "; poll again to create it anew"),
        (r"; cron\.list\(\) shows all", "; a GET of the schedules lists those there are"),
        (
            r": offer_or_update\(\) replaces it, offer_if_not_exists\(\) leaves it alone \(.*\)",
            ": an offer updates it, or leaves it alone if it says so by can_update",
        ),
        (
            r"; raise it with (?:configure_topic|queue)\(.*max_payload_bytes=\.\.\.\), or (.*)",
            r"; raise it by max_payload_bytes of its settings, or \1",
        ),
        (
            r"give jobs a longer lock_timeout, or extend(?:\(\) it| them) in time",
            "claim jobs with longer lock_seconds, or extend them in time",
        ),
        (r"; queue\.receipt\(job\) gives one, and (.*)", r"; a claim gives one, and \1"),
        (r"give delay= or at=, but not both", "give delay_seconds or at, but not both"),
        (
            r"give one of at=, id=, before= and after=, or none of them",
            "give one of at, id, before and after, or none of them",
        ),
        (
            r"say which letter is meant: letter=, or group= and id=",
            "say which letter is meant: by letter, or by group and id",
        ),
        (
            r"say by letter= which letter is meant, or by key= of which key: (.*)",
            r"say by letter which one is meant, or by key of which key: \1",
        ),
    )
)
"""How errors of the library end that advise to call its methods, and what callers of the API are
told instead.
"""


class Problem(Exception):
    """An answer that is not what was asked for. `kind` is a stable name for programs; `extra` are
    more members for them. `hides` is what the audit trail says instead, where the answer must not
    tell what is there from what is not: then somebody was refused.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
        hides: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.title = TITLES.get(status) or HTTPStatus(status).phrase
        self.kind = kind or self.title.lower().replace(" ", "-")
        self.headers = dict(headers or {})
        self.hides = hides
        self.extra = extra

    def body(self) -> dict[str, Any]:
        """The members of problem+json."""
        told = {"type": f"urn:rowmq:{self.kind}", "title": self.title, "status": self.status}
        return told | {"detail": self.detail} | self.extra


def problem_of(error: BaseException) -> Problem | None:
    """The answer to an error; None if it is nobody's fault but ours."""
    if isinstance(error, Problem):
        return error
    for kind, status in STATUSES:
        if isinstance(error, kind):
            detail = detail_of(error)
            wait = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
            doubt: dict[str, Any] = {"in_doubt": True} if getattr(error, "in_doubt", False) else {}
            return Problem(status, detail, kind=kebab(type(error).__name__), headers=wait, **doubt)
    return None


def detail_of(error: BaseException) -> str:
    """What is told of an error."""
    if not isinstance(error, TOLD):
        for kind, told in HIDDEN.items():
            if isinstance(error, kind):
                return told
    return in_line(in_terms_of_http(str(error)))


def in_terms_of_http(text: str) -> str:
    """An error of the library without the names of its methods and their arguments."""
    for advice, told in ADVICE:
        text = advice.sub(told, text)
    return text


def statuses() -> dict[str, int]:
    """The kinds of problems that errors of the library become, for the API's description."""
    return {kebab(kind.__name__): status for kind, status in STATUSES}


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
