"""Asks all questions; asks again where something looks bad, since it may only have been on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from memable.connection import ServerRefused
from memable.damage import Damaged, reading
from memable.doctor.findings import Finding, Severity
from memable.doctor.patient import Patient, is_closed, missing_right
from memable.doctor.registry import CHECKS, Check

LOOKS: Final = 3
"""How often something must be seen before it is told: a leader may just have died, an entry just have been taken."""

PAUSES_S: Final = (0.5, 1.5)
"""Between the looks: together more than two thirds of a lease."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a check has found: at least one thing, if only that all is well."""

    check: Check
    findings: tuple[Finding, ...]

    @property
    def is_bad(self) -> bool:
        """Whether something should be done."""
        return any(each.severity.is_bad for each in self.findings)


@dataclass(frozen=True, slots=True)
class Mended:
    """What was mended, or could not be."""

    check: Check
    finding: Finding
    refused: str | None = None


async def examine(patient: Patient, *, skip: Collection[str] = ()) -> list[Diagnosis]:
    """All checks but those whose names are to be skipped. Nothing is changed."""
    patient.forget()
    asked = [check for check in CHECKS if check.name not in skip and _applies(patient, check)]
    seen = await asyncio.gather(*(_look(patient, check) for check in asked))
    for pause_s in PAUSES_S[: LOOKS - 1]:
        if not any(_may_pass(each) for each in seen):
            break
        await asyncio.sleep(pause_s)
        patient.forget()
        passing = [each for each in seen if _may_pass(each)]
        later = await asyncio.gather(*(_look_again(patient, each) for each in passing))
        now = {each.check.name: each for each in later}
        seen = [now.get(each.check.name, each) for each in seen]
    return seen


async def mend(diagnoses: Collection[Diagnosis]) -> list[Mended]:
    """Do what is safe about what was found; what it was done about. Examine again to see what is left."""
    mended = list[Mended]()
    for each in diagnoses:
        for finding in each.findings:
            if finding.mend is not None:
                try:
                    with reading(f"what {each.check.name} mends"):
                        await finding.mend.act(tuple(finding.subjects))
                except (ServerRefused, Damaged) as error:
                    said = error.text if isinstance(error, ServerRefused) else str(error)
                    mended.append(Mended(each.check, finding, said))
                else:
                    mended.append(Mended(each.check, finding))
    return mended


def worst(diagnoses: Collection[Diagnosis]) -> Severity:
    """The severity of the worst finding."""
    return max((finding.severity for each in diagnoses for finding in each.findings), key=lambda each: each.rank)


def bad(diagnoses: Collection[Diagnosis]) -> list[tuple[Check, Finding]]:
    """What is worth more words than its line: all but what is well, the worst first."""
    found = [(each.check, finding) for each in diagnoses for finding in each.findings]
    unwell = [pair for pair in found if pair[1].severity is not Severity.OK]
    return sorted(unwell, key=lambda pair: -pair[1].severity.rank)


def _applies(patient: Patient, check: Check) -> bool:
    return check.is_of_server or check.name == "layout" or patient.meta.is_legible


def _may_pass(diagnosis: Diagnosis) -> bool:
    return diagnosis.is_bad and not diagnosis.check.is_of_server


async def _look_again(patient: Patient, before: Diagnosis) -> Diagnosis:
    now = await _look(patient, before.check)
    if not now.is_bad:
        return now
    still = tuple(again for finding in before.findings if (again := finding.still(list(now.findings))) is not None)
    return Diagnosis(before.check, still or (Finding(Severity.OK, "what was seen has passed"),))


async def _look(patient: Patient, check: Check) -> Diagnosis:
    try:
        with reading(f"what {check.name} looks at"):
            return Diagnosis(check, tuple(await check.ask(patient)))
    except ServerRefused as error:
        return Diagnosis(check, (_unseen(patient, check, error),))
    except Damaged as error:
        return Diagnosis(check, (Finding(Severity.PROBLEM, str(error), means=_STOPPED, topic="damaged"),))


_STOPPED: Final = "this check went no further: what else it would find is not known until that is mended or deleted"


def _unseen(patient: Patient, check: Check, error: ServerRefused) -> Finding:
    if not is_closed(error):
        return Finding(
            Severity.PROBLEM,
            f"Redis refuses to show it: {error.text}",
            means="a key is of another type, or does not hold what it should: see types",
            topic="refused",
        )
    user, right = patient.user, missing_right(error)
    return Finding(
        Severity.NOTE if check.is_of_server else Severity.WARNING,
        f"not looked at, user {user!r} has no right to {right or 'do so'}",
        means=error.text,
        todo=f"redis-cli ACL SETUSER {user} +{right}" if right else "redis-cli ACL LOG, which says what it was refused",
        topic="closed",
    )
