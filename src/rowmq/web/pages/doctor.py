"""The doctor: the same checks as of the command line, made when somebody asks for them."""

from collections.abc import Sequence
from typing import NamedTuple

from starlette.responses import Response

from rowmq.doctor.checks import CHECKS
from rowmq.doctor.wording import figures_of
from rowmq.message import Checkup, Finding, Level
from rowmq.rights import Role
from rowmq.web.asking import Ask
from rowmq.web.headers import OWN_SITE
from rowmq.web.routing import Route

__all__ = ["ROUTES"]

WORDS = {
    Level.PROBLEM: "Problems",
    Level.WARNING: "Warnings",
    Level.NOTE: "Notes",
    Level.OK: "In order",
}


class Shown(NamedTuple):
    """A finding as it stands on the page."""

    finding: Finding
    figures: Sequence[tuple[str, str]]


class Trouble(NamedTuple):
    """A check, what it is about, and what it found."""

    check: str
    about: str
    findings: Sequence[Shown]


async def show_doctor(ask: Ask) -> Response:
    """What can be checked and, if it was asked for, what was found."""
    known = [check.name for check in CHECKS]
    chosen = [name for name in known if ask.query.get(name) == "on"]
    checkup = None
    # It takes a while: a link of another site does not have it done.
    is_ours = ask.request.headers.get("sec-fetch-site", "") in OWN_SITE
    if ask.query.get("examine") == "yes" and is_ours:
        checkup = await ask.mq.doctor(checks=chosen or None)
    return ask.render(
        "doctor.html",
        checks=CHECKS,
        chosen=chosen,
        checkup=checkup,
        words=WORDS,
        counts=[] if checkup is None else counts_of(checkup),
        troubles=[] if checkup is None else troubles_of(checkup),
        in_order=[one for one in checkup or () if one.level is Level.OK],
    )


def counts_of(checkup: Checkup) -> list[tuple[Level, int]]:
    """How many findings there are of each level, the worst first."""
    return [
        (level, sum(finding.level is level for finding in checkup)) for level in reversed(Level)
    ]


def troubles_of(checkup: Checkup) -> list[Trouble]:
    """The checks that found more than order, with that, the worst first."""
    found = []
    for check in CHECKS:
        findings = [one for one in checkup.of(check.name) if one.level is not Level.OK]
        if findings:
            findings.sort(key=badness, reverse=True)
            shown = [Shown(one, figures_of(one)) for one in findings]
            found.append(Trouble(check.name, check.about, shown))
    return sorted(found, key=lambda one: badness(one.findings[0].finding), reverse=True)


def badness(finding: Finding) -> int:
    """How bad it is, beside others."""
    return list(Level).index(finding.level)


ROUTES = [Route("GET", "/doctor", show_doctor, needs=Role.ADMIN, everywhere=True)]
