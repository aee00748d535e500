"""What a doctor says: checks, each with what was found and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from plait.errors import PlaitError


class Verdict(StrEnum):
    """How a check ended. WARN: it serves, but less well than it could."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what was found, under a stable word, and what to do about it."""

    name: str
    verdict: Verdict
    code: str
    found: str
    help: str = ""


def passed(name: str, found: str, *, code: str = "ok") -> Check:
    return Check(name=name, verdict=Verdict.OK, code=code, found=found)


def skipped(name: str, why: str = "needs what failed above") -> Check:
    return Check(name=name, verdict=Verdict.SKIPPED, code="skipped", found=why)


def failed(name: str, error: PlaitError) -> Check:
    """Errors of plait say what failed and what helps, in this order."""
    what, colon, help_ = error.message.partition(": ")
    return Check(
        name=name,
        verdict=Verdict.FAIL,
        code=error.code,
        found=what if colon else error.message,
        help=help_ or _HELP.get(error.code, "`plait node status` and the operator know more"),
    )


_HELP: Final = {
    "not_tls": "give the coordinator's public port, 7420 unless its operator says otherwise",
    "wrong_ca": "check the address, or ask that network's operator for a token",
    "dns_failed": "check the name's spelling and this machine's network",
    "deadline_exceeded": "try again; if it stays so, tell the operator",
}
