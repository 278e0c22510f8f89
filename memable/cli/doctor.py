"""`memable doctor`: what is wrong with a server and a namespace, and what to do about it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from memable.cli.options import Target, takes_target
from memable.cli.printing import add_row, console, one_line, print_json, print_rendered, table
from memable.cli.root import FINE
from memable.doctor import CHECKS, Diagnosis, Finding, Mended, Severity, examine, mend, visiting, worst
from memable.doctor.examination import bad
from memable.doctor.patient import Coverage, Patient
from memable.settings import load_settings

UNWELL: Final = 1
"""The exit code when there is a warning or a problem."""

_COLOURS: Final[Mapping[Severity, str]] = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "yellow",
    Severity.PROBLEM: "bold red",
}


@click.command(short_help="Look for what is wrong, and say what to do.")
@click.option("--fix", is_flag=True, help="Mend what is safe to mend, then look again.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="How many instances and stream entries are looked at, at most; the oldest first.",
)
@click.option(
    "--skip",
    metavar="CHECK",
    multiple=True,
    type=click.Choice([each.name for each in CHECKS]),
    help="Leave a check out, by its name in the first column; repeatable.",
)
@takes_target
def doctor(target: Target, *, fix: bool, limit: int, skip: tuple[str, ...]) -> int:
    """Look at the server, the workers and the instances for what is wrong, and say what to do.

    Without --fix nothing is changed. Exit codes: 0 nothing is wrong, 1 there are warnings or problems, 2 wrong usage,
    or Redis cannot be reached.
    """
    return asyncio.run(_examined(target, fix=fix, limit=limit, skip=skip))


async def _examined(target: Target, *, fix: bool, limit: int, skip: Collection[str]) -> int:
    settings = load_settings(redis_url=target.url, namespace=target.namespace)
    async with visiting(settings, limit) as patient:
        seen = await examine(patient, skip=skip)
        mended = await mend(seen) if fix else []
        if mended:
            seen = await examine(patient, skip=skip)
    if target.as_json:
        print_json(_document(seen, mended, patient.coverage))
    else:
        _print(console(), seen, mended, patient)
    return UNWELL if worst(seen).is_bad else FINE


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _print(out: Console, seen: Collection[Diagnosis], mended: Collection[Mended], patient: Patient) -> None:
    for each in mended:
        _print_mended(out, each)
    shown = table("CHECK", "RESULT", "FOUND")
    for diagnosis in seen:
        for finding in diagnosis.findings:
            add_row(shown, (diagnosis.check.name, _coloured(finding.severity), str(finding)))
    print_rendered(out, shown)
    for check, finding in bad(seen):
        if finding.severity.is_bad or finding.advice:
            out.print()
            _print_finding(out, check.name, finding)
    _print_end(out, seen, patient.coverage)


def _coloured(severity: Severity) -> Text:
    return Text(severity.value, style=_COLOURS[severity])


def _print_finding(out: Console, name: str, finding: Finding) -> None:
    out.print(Text.assemble(_coloured(finding.severity), f" {name}: {one_line(finding)}"), soft_wrap=True)
    if finding.means:
        out.print(Text(f"  {one_line(finding.means)}"), soft_wrap=True)
    if finding.advice:
        out.print(Text.assemble(("  do: ", "bold"), one_line(finding.advice)), soft_wrap=True)
    if finding.mend is not None:
        out.print(Text.assemble(("  --fix: ", "bold"), finding.mend.what), soft_wrap=True)


def _print_mended(out: Console, mended: Mended) -> None:
    assert mended.finding.mend is not None
    if mended.refused is None:
        head, tail = Text("mended", style="green"), mended.finding.mend.what
    else:
        head, tail = Text("not mended", style="bold red"), one_line(mended.refused)
    out.print(Text.assemble(head, f" {mended.check.name}: {one_line(mended.finding)}: {tail}"), soft_wrap=True)


def _print_end(out: Console, seen: Collection[Diagnosis], coverage: Mapping[str, Coverage]) -> None:
    out.print()
    for what, each in coverage.items():
        if each.is_partial:
            out.print(f"looked at {each.seen:,} of {each.total:,} {what}; --limit {each.total} looks at all")
    found = [finding for _, finding in bad(seen)]
    counts = [
        f"{count} {severity.value}{'s' if count > 1 else ''}"
        for severity in (Severity.PROBLEM, Severity.WARNING, Severity.NOTE)
        if (count := sum(each.severity is severity for each in found))
    ]
    mendable = sum(each.mend is not None for each in found)
    hint = f"; --fix mends {mendable} of them" if mendable else ""
    out.print(f"{', '.join(counts)}{hint}" if counts else "nothing is wrong")


# ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _document(
    seen: Collection[Diagnosis], mended: Collection[Mended], coverage: Mapping[str, Coverage]
) -> dict[str, Any]:
    return {
        "worst": worst(seen).value,
        "findings": [{"check": each.check.name, **_plain(finding)} for each in seen for finding in each.findings],
        "mended": [{"check": each.check.name, **_plain(each.finding), "refused": each.refused} for each in mended],
        "coverage": {what: {"seen": each.seen, "total": each.total} for what, each in coverage.items()},
    }


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "found": str(finding),
        "count": len(finding.subjects) or None,
        "examples": finding.examples,
        "means": finding.means or None,
        "todo": finding.advice or None,
        "fix": None if finding.mend is None else finding.mend.what,
    }
