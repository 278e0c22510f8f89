"""Checks of parents and children: whether each waits for somebody who is there."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from memable.doctor.findings import Finding, Mend, Severity, ok
from memable.doctor.instances import walk
from memable.doctor.patient import PAGE, Patient
from memable.family import cancel_bereft, living_in
from memable.holding import Outcome
from memable.keys import InstanceKeys, bereaved_member, split_child_id, split_instance_name
from memable.runtime.failing import failure_outcome
from memable.state import Status

_TERMINAL: Final = frozenset(each.value.encode() for each in Status if each.is_terminal)


async def lost_children(patient: Patient) -> list[Finding]:
    """Is each child that a parent waits for there?

    A child whose hash was lost tells its parent nothing, and the parent waits for ever.
    """
    parents = (await patient.scan()).instances("family")[: patient.limit]
    lost = dict[str, tuple[InstanceKeys, InstanceKeys]]()
    for parent in parents:
        status, life = await patient.ask_or((None, None), "HMGET", parent.instance, "status", "life")
        if life is None or status in _TERMINAL:
            continue
        living = await living_in(patient.store, parent, life.decode(), parent.family)
        for first in range(0, min(len(living), patient.limit), PAGE):
            page = living[first : first + PAGE]
            there = await asyncio.gather(*(patient.ask("EXISTS", child.instance) for child in page))
            missing = [child for child, exists in zip(page, there, strict=True) if not exists]
            for child in missing:
                # at one moment, now: it may have ended since
                if await patient.store.bury(child, parent, _lost(child), mends=False):
                    lost[child.name] = (child, parent)
    if not lost:
        return ok("each is there")

    async def act(names: tuple[str, ...]) -> None:
        for name in names:
            child, parent = lost[name]
            await patient.store.bury(child, parent, _lost(child))

    return [
        Finding(
            Severity.PROBLEM,
            "children are lost that their parents wait for",
            {name: f"child of {parent.name}" for name, (_, parent) in lost.items()},
            means="their hashes were evicted or deleted by hand; their parents wait for ever",
            todo="memable doctor --fix; or memable cancel the parent",
            mend=Mend("its parent is told that it has failed (ChildFailed, of type InstanceLost)", act),
        )
    ]


def _lost(child: InstanceKeys) -> Outcome:
    return failure_outcome("InstanceLost", f"{child.name} was lost: Redis does not have it any more")


async def bereft_children(patient: Patient) -> list[Finding]:
    """Is the parent of each living child there, too, in the life that has made it?

    The leader cancels the children of parents that have ended. It does not know of those whose parent was lost, or
    forgotten before any leader could work.
    """
    by_parent = defaultdict[InstanceKeys, list[InstanceKeys]](list)
    children = (await walk(patient)).children
    names = await asyncio.gather(*(patient.ask_or(None, "HGET", child.instance, "parent") for child in children))
    kin = dict[bytes, InstanceKeys]()
    for child, name in zip(children, names, strict=True):
        if name is not None:
            if name not in kin:
                kin[name] = child.partition.of(*split_instance_name(name.decode()))
            by_parent[kin[name]].append(child)
    bereft = dict[str, tuple[InstanceKeys, InstanceKeys]]()
    for parent, theirs in by_parent.items():
        status, life = await patient.ask_or((None, None), "HMGET", parent.instance, "status", "life")
        for child in theirs:
            of_life = split_child_id(child.instance_id)[1]
            if status is not None and status not in _TERMINAL and life.decode() == of_life:
                continue
            member = bereaved_member(parent, of_life)
            if await patient.ask_or(None, "ZSCORE", parent.partition.bereaved, member) is None:
                bereft[child.name] = (child, parent)
    if not bereft:
        return ok("each is there")

    async def act(names: tuple[str, ...]) -> None:
        for name in names:
            child, parent = bereft[name]
            await cancel_bereft(patient.store, child, parent, await patient.retention_ms(child.workflow))

    return [
        Finding(
            Severity.WARNING,
            "children live whose parent is over",
            {name: f"child of {parent.name}" for name, (_, parent) in bereft.items()},
            means="nobody waits for them, and nobody cancels them",
            todo="memable cancel WORKFLOW/ID",
            mend=Mend("it is cancelled, as the leader cancels what ended parents leave", act),
        )
    ]
