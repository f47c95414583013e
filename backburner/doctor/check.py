"""What a check is, and running them in order: one that breaks has failed, and the others still run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from backburner.config import Device
from backburner.devices import Found, Probed, Survey
from backburner.errors import BackburnerError
from backburner.transport.link import Link


@dataclass(frozen=True, slots=True)
class Result:
    """How a check came out."""

    state: Literal["pass", "fail", "skip"]
    text: str  # what was found
    fix: str = ""  # what to do about a failure


def passed(text: str) -> Result:
    return Result("pass", text)


def failed(text: str, fix: str) -> Result:
    return Result("fail", text, fix)


def skipped(text: str) -> Result:
    return Result("skip", text)


@dataclass(slots=True)
class Patient:
    """What is examined, and what earlier checks have found out for later ones."""

    survey: Survey
    device: Found | None  # the one that is meant; None: there is none
    named: Device | None  # what a person has named, so that it ought to be there
    connect: Callable[[], Link] | None
    spill_folder: Path | None
    spill_bytes: int
    worker: Probed | None = None
    error: BackburnerError | None = field(default=None)  # why there is no worker


@dataclass(frozen=True, slots=True)
class Check:
    """One question."""

    title: str
    run: Callable[[Patient], Result]


@dataclass(frozen=True, slots=True)
class Finding:
    """A check with its number and its result."""

    number: int
    title: str
    result: Result


def examine(checks: Sequence[Check], patient: Patient) -> Iterator[Finding]:
    """Runs the checks one after another."""
    for number, check in enumerate(checks, 1):
        try:
            result = check.run(patient)
        except BackburnerError as e:
            result = failed(str(e), "do what the message says, and run this again")
        except Exception as e:  # whatever is broken on this machine is a finding, not an end
            result = failed(
                f"{type(e).__name__}: {e}", "this is a fault of ours or of the installation: report it"
            )
        yield Finding(number, check.title, result)
