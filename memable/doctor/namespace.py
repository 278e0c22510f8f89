"""Checks of the keys of a namespace, whatever they hold."""

from __future__ import annotations

import asyncio

from memable.doctor.findings import Finding, Severity, ok
from memable.doctor.patient import PAGE, Patient, is_closed
from memable.keys import LAYOUT, InstanceKeys, Keys

_OF_INSTANCES = ("steps", "inbox", "family")


async def layout(patient: Patient) -> list[Finding]:
    """Is there such a namespace, of the layout that this memable reads?

    Workers and clients refuse one of another layout, or with another number of partitions than `MEMABLE_PARTITIONS`.
    """
    meta, namespace = patient.meta, patient.keys.namespace
    name = Keys.meta(namespace)
    if meta.refused is not None:
        if is_closed(meta.refused):
            raise meta.refused
        return [Finding(Severity.PROBLEM, f"{name} cannot be read: {meta.refused.text}", todo=f"redis-cli TYPE {name}")]
    if not meta.is_legible:
        return [
            Finding(
                Severity.PROBLEM,
                f"{name} says layout {meta.layout} and {meta.partitions} partitions",
                means=f"this memable reads layout {LAYOUT}; nothing else of the namespace is looked at",
                todo="use a memable of that version; or another namespace (MEMABLE_NAMESPACE)",
            )
        ]
    if meta.layout is None:
        scan = await patient.scan()
        if scan.found:
            return [
                Finding(
                    Severity.PROBLEM,
                    f"{name} is lost, and the namespace has keys",
                    means="with several partitions, what follows looks at the first only; workers write it anew",
                    todo=f"redis-cli HSET {name} layout {LAYOUT} partitions N, with their number as it was",
                )
            ]
        return [
            Finding(
                Severity.NOTE,
                f"nobody has used the namespace {namespace!r} yet",
                todo="is it the right one? MEMABLE_NAMESPACE, or --namespace, says which",
            )
        ]
    count = len(patient.keys.partitions)
    return ok(f"namespace {namespace}, {count} partition{'s' if count > 1 else ''}")


async def types(patient: Patient) -> list[Finding]:
    """Is each key of the type that it should have?

    From a stream that is none no work is taken, and what is in an index that is none is not listed. Somebody else
    writes under the same names, or has written there by hand.
    """
    wrong = await patient.wrong_types()
    if not wrong:
        return ok("all as they should be")
    first = next(iter(wrong))
    return [
        Finding(
            Severity.PROBLEM,
            "keys are of another type than memable's",
            {name: f"a {kind}" for name, kind in wrong.items()},
            means="workers and clients are refused (WRONGTYPE): what should be there cannot be taken, woken or listed",
            todo=f"redis-cli RENAMENX '{first}' '{first}.foreign'",
        )
    ]


async def leftovers(patient: Patient) -> list[Finding]:
    """Are there records without their instance, which nothing would ever remove?

    The instance's own hash was evicted or deleted by hand. A new instance of the same id removes them; else they stay.
    """
    scan, left = await patient.scan(), dict[str, str]()
    for kind in _OF_INSTANCES:
        found = scan.instances(kind)[: patient.limit]
        for first in range(0, len(found), PAGE):
            page = found[first : first + PAGE]
            names = [_name(kind, each) for each in page]
            lifetimes, there = await asyncio.gather(
                asyncio.gather(*(patient.ask("PTTL", name) for name in names)),
                asyncio.gather(*(patient.ask("EXISTS", each.instance) for each in page)),
            )
            for name, ttl_ms, exists in zip(names, lifetimes, there, strict=True):
                if ttl_ms == -1 and not exists:
                    left[name] = ""
    if not left:
        return ok("none")
    return [
        Finding(
            Severity.WARNING,
            "keys are left of instances whose hash is lost",
            left,
            means="they take memory for ever; and what they belonged to is gone",
            todo=f"redis-cli UNLINK '{next(iter(left))}'",
        )
    ]


def _name(kind: str, keys: InstanceKeys) -> str:
    return {"steps": keys.steps, "inbox": keys.inbox, "family": keys.family}[kind]
