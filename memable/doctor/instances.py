"""Checks of instances: whether each can be taken, woken and found, and goes when its time is over."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from memable.connection import ServerRefused
from memable.doctor.findings import Finding, Mend, Severity, ok
from memable.doctor.patient import PAGE, Patient, is_closed
from memable.keys import InstanceKeys, Partition, is_child
from memable.runtime.intake import named_by
from memable.state import Status
from memable.store import Broken, new_token


@dataclass(frozen=True, slots=True)
class Place:
    """An instance, and the status under which it was looked for."""

    keys: InstanceKeys
    status: Status

    @property
    def of_children(self) -> bool:
        return is_child(self.keys.instance_id)


@dataclass(slots=True)
class Walk:
    """What was seen of the instances of a namespace."""

    broken: defaultdict[Broken, dict[str, Place]] = field(default_factory=lambda: defaultdict(dict))
    immortal: dict[str, Place] = field(default_factory=dict)
    refused: dict[str, ServerRefused] = field(default_factory=dict)
    children: list[InstanceKeys] = field(default_factory=list)
    """Those that were listed as alive."""


async def walk(patient: Patient) -> Walk:
    """Look at what is listed, the oldest first, and at what was found by its key; so much as the limit allows."""
    return await patient.once("walk", lambda: _walk(patient))


async def _walk(patient: Patient) -> Walk:
    seen, looked_at = Walk(), set[str]()
    wrong = await patient.known_wrong_types()
    lists = [
        (partition, workflow, status, partition.index(workflow, status, of_children=of_children))
        for partition, workflow, status, of_children in product(
            patient.keys.partitions, await patient.workflows(), Status, (False, True)
        )
        if partition.stream(workflow) not in wrong
    ]
    sizes = await asyncio.gather(*(patient.ask_or(0, "ZCARD", index) for *_, index in lists))
    share = max(PAGE, patient.limit // max(1, len([size for size in sizes if size])))
    count, left_out = 0, sum(max(0, size - share) for size in sizes)
    for (partition, workflow, status, index), size in zip(lists, sizes, strict=True):
        for first in range(0, min(size, share), PAGE):
            ids = _texts(await patient.ask_or([], "ZRANGE", index, first, min(first + PAGE, share) - 1))
            places = [Place(partition.of(workflow, id), status) for id in ids]
            looked_at.update(each.keys.instance for each in places)
            count += len(places)
            await _look_at(patient, seen, places)
    patient.covers("listed instances", count, count + left_out)
    # hashes that stand in no list: the status does not matter, they are looked for under their own
    hashes = [
        each for each in (await patient.scan_if_allowed()).instances("instance") if each.instance not in looked_at
    ]
    unlisted = [Place(keys, Status.QUEUED) for keys in hashes if keys.stream not in wrong][: patient.limit]
    groups = defaultdict[tuple[Partition, str, bool], list[Place]](list)
    for each in unlisted:
        groups[each.keys.partition, each.keys.workflow, each.of_children].append(each)
    for group in groups.values():
        for first in range(0, len(group), PAGE):
            await _look_at(patient, seen, group[first : first + PAGE], is_listed=False)
    return seen


def _texts(members: Iterable[bytes]) -> list[str]:
    return [each.decode() for each in members if each.isascii() or _is_utf8(each)]


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except ValueError:
        return False
    return True


async def _look_at(patient: Patient, seen: Walk, places: list[Place], *, is_listed: bool = True) -> None:
    """All of them of one workflow and partition, looked for under one status; children, or none."""
    if not places:
        return
    store, one = patient.store, places[0]
    by_id = {each.keys.instance_id: each for each in places}
    # before: who is gone and was on the leader's list is to be trimmed, though it may be off the list by now
    to_be_trimmed = await _to_be_trimmed(patient, places) if one.status.is_terminal else set[str]()
    found, refused = await store.reconcile_all(
        one.keys.partition,
        one.keys.workflow,
        one.status,
        list(by_id),
        of_children=one.of_children,
        mends=False,
    )
    for error in refused.values():
        if is_closed(error):
            raise error
    for id, error in refused.items():
        seen.refused[by_id[id].keys.name] = error
    for id, what in found:
        if what is Broken.GONE and id in to_be_trimmed:
            continue
        seen.broken[what][by_id[id].keys.name] = by_id[id]
    sound = [each for each in places if each.keys.instance_id not in refused]
    if one.status.is_terminal or not is_listed:
        immortal = await asyncio.gather(*(store.retain(each.keys, 1, mends=False) for each in sound))
        seen.immortal |= {each.keys.name: each for each, is_so in zip(sound, immortal, strict=True) if is_so}
    if one.of_children and not one.status.is_terminal:
        seen.children += [each.keys for each in sound]


async def _to_be_trimmed(patient: Patient, places: list[Place]) -> set[str]:
    """The ids of those that the leader takes out of the listing when their retention is over."""
    names = [each.keys.name for each in places]
    scores = await patient.ask_or([None] * len(names), "ZMSCORE", places[0].keys.expiry, *names)
    return {each.keys.instance_id for each, score in zip(places, scores, strict=True) if score is not None}


# ── one check for each thing that can be broken ──────────────────────────────────────────────────────────────────────

Checked = Coroutine[Any, Any, list[Finding]]


def _reconciling(patient: Patient, places: dict[str, Place]) -> Callable[[tuple[str, ...]], Coroutine[Any, Any, None]]:
    """Mends those that are named, as the leader does."""

    async def act(names: tuple[str, ...]) -> None:
        chosen = [places[name] for name in names]
        await asyncio.gather(
            *(
                patient.store.reconcile_all(
                    each.keys.partition,
                    each.keys.workflow,
                    each.status,
                    [each.keys.instance_id],
                    of_children=each.of_children,
                )
                for each in chosen
            )
        )

    return act


_BY_THE_LEADER: Final = "a leader mends it on its next round, which takes a minute or more"


async def entries(patient: Patient) -> list[Finding]:
    """Does each instance that is queued or running have an entry in its stream, which a worker will get or holds?

    Without one nobody would ever take it. Streams lose entries by eviction, `XTRIM`, `XDEL` or `DEL` by hand, or by a
    restore of some keys and not of others.
    """
    lost = (await walk(patient)).broken[Broken.ENTRY]
    if not lost:
        return ok("each has one")
    return [
        Finding(
            Severity.PROBLEM,
            "instances are queued or running without a stream entry",
            {name: place.status.value for name, place in lost.items()},
            means=f"no worker will take them; {_BY_THE_LEADER}",
            todo="memable doctor --fix",
            mend=Mend("it is queued again, with an entry", _reconciling(patient, lost)),
        )
    ]


async def leases(patient: Patient) -> list[Finding]:
    """Is each instance that is running in the hands of a run?

    A run holds its instance by a lease, a random token in the instance's hash. Without it every write of a run is
    refused.
    """
    lost = (await walk(patient)).broken[Broken.LEASE]
    if not lost:
        return ok("each has one")
    return [
        Finding(
            Severity.PROBLEM,
            "instances are running without a lease",
            dict.fromkeys(lost, ""),
            means=f"no run can carry them on; {_BY_THE_LEADER}",
            todo="memable doctor --fix",
            mend=Mend("it is queued again", _reconciling(patient, lost)),
        )
    ]


async def timers(patient: Patient) -> list[Finding]:
    """Is each timer that an instance waits for among the timers?

    A timer that is lost never fires: a wait has no timeout any more, a delayed instance never begins.
    """
    lost = (await walk(patient)).broken[Broken.TIMER]
    if not lost:
        return ok("each is set")
    return [
        Finding(
            Severity.PROBLEM,
            "instances wait for timers that are lost",
            dict.fromkeys(lost, ""),
            means=f"they are not woken when their time comes; {_BY_THE_LEADER}",
            todo="memable doctor --fix",
            mend=Mend("its timers are set again, as its records say", _reconciling(patient, lost)),
        )
    ]


async def asleep(patient: Patient) -> list[Finding]:
    """Does each instance that is suspended wait for something?

    One that does not is never woken. `resume` runs it again, and it waits where it has to; but when its records are
    lost, too, that calls all its steps again.
    """
    seen = await walk(patient)
    sleeping, forgetful = seen.broken[Broken.ASLEEP], seen.broken[Broken.FORGETFUL]
    found = list[Finding]()
    if unnoted := seen.broken[Broken.POINTS]:
        found.append(
            Finding(
                Severity.WARNING,
                "instances are suspended, and what they wait for is not noted",
                dict.fromkeys(unnoted, ""),
                means="a cancellation would not find their points, and nobody sees what they wait for",
                todo="memable doctor --fix",
                mend=Mend("it is noted, as its records say", _reconciling(patient, unnoted)),
            )
        )

    async def act(names: tuple[str, ...]) -> None:
        for name in names:
            keys = sleeping[name].keys
            await patient.store.resume(keys, new_token(), parent=await patient.store.parent_of(keys))

    if sleeping:
        found.append(
            Finding(
                Severity.PROBLEM,
                "instances are suspended, and wait for nothing",
                dict.fromkeys(sleeping, ""),
                means="nothing will ever wake them",
                todo="memable resume WORKFLOW/ID",
                mend=Mend("it is resumed: it runs to where it waits, and waits there again", act),
            )
        )
    if forgetful:
        found.append(
            Finding(
                Severity.PROBLEM,
                "instances are suspended, and their records are lost",
                dict.fromkeys(forgetful, ""),
                means="nothing will ever wake them, and what their steps have done is forgotten",
                todo="memable cancel WORKFLOW/ID; or memable resume WORKFLOW/ID, if its steps may all be called again",
            )
        )
    return found or ok("each waits for something")


async def listing(patient: Patient) -> list[Finding]:
    """Is each instance listed under its status, and is each that is listed there?

    Who lists instances, and the leader's own walk, see only what is in the indexes. An instance that is listed, and
    has no hash any more, is lost.
    """
    seen = await walk(patient)
    found = list[Finding]()
    if unlisted := seen.broken[Broken.LISTING]:
        found.append(
            Finding(
                Severity.WARNING,
                "instances are not listed under their status",
                dict.fromkeys(unlisted, ""),
                means="nobody finds them in a listing, nor does the leader when it looks for what is broken",
                todo="memable doctor --fix",
                mend=Mend("it is listed as it should be", _reconciling(patient, unlisted)),
            )
        )
    if gone := seen.broken[Broken.GONE]:
        found.append(
            Finding(
                Severity.PROBLEM,
                "instances are listed, and their hash is lost",
                {name: place.status.value for name, place in gone.items()},
                means="they are lost: evicted, or deleted by hand",
                todo="memable doctor --fix takes them out of the listing; whoever needs them invokes them again",
                mend=Mend("it is out of the listing", _reconciling(patient, gone)),
            )
        )
    if seen.refused:
        found.append(
            Finding(
                Severity.PROBLEM,
                "instances cannot be looked at",
                {name: error.text for name, error in seen.refused.items()},
                means="a key of theirs is of another type, or does not say what it should: see types",
                todo="memable show WORKFLOW/ID",
            )
        )
    return found or ok("all and only what is there")


async def lifetimes(patient: Patient) -> list[Finding]:
    """Will each instance that has ended be forgotten when its retention is over?

    One without a lifetime stays for ever: somebody has taken it away (`PERSIST`), or restored it from a backup.
    """
    immortal = (await walk(patient)).immortal
    if not immortal:
        return ok("each has one")

    async def act(names: tuple[str, ...]) -> None:
        for name in names:
            keys = immortal[name].keys
            await patient.store.retain(keys, await patient.retention_ms(keys.workflow))

    return [
        Finding(
            Severity.WARNING,
            "instances have ended, and would stay for ever",
            dict.fromkeys(immortal, ""),
            means="they take memory, and are listed for ever",
            todo="memable delete WORKFLOW/ID",
            mend=Mend("it is kept for the retention of its workflow, from now on", act),
        )
    ]


async def strays(patient: Patient) -> list[Finding]:
    """Does each entry of a stream belong to an instance?

    A worker drops one that does not when it gets it. Until then it counts as work, for whatever scales workers.
    """
    found, looked, left_out = dict[str, tuple[Partition, str, str, str]](), 0, 0
    for partition, workflow in product(patient.keys.partitions, await patient.workflows()):
        stream, before = partition.stream(workflow), looked
        async for page in patient.entries(stream, patient.limit - looked):
            looked += len(page)
            # what names no instance is given the name of one that cannot be
            named = {entry.decode(): named_by(fields) or "" for entry, fields in page}
            for entry in await patient.store.tidy(partition, workflow, list(named.items()), mends=False):
                found[f"{stream} {entry}"] = (partition, workflow, entry, named[entry])
        if looked >= patient.limit:
            left_out += max(0, await patient.ask_or(0, "XLEN", stream) - (looked - before))
    patient.covers("stream entries", looked, looked + left_out)
    if not found:
        return ok(f"all {looked} do" if looked else "there are none")

    async def act(names: tuple[str, ...]) -> None:
        for name in names:
            partition, workflow, entry, id = found[name]
            await patient.store.tidy(partition, workflow, [(entry, id)])

    return [
        Finding(
            Severity.WARNING,
            "stream entries belong to no instance",
            {name: f"names {workflow}/{id}" for name, (_, workflow, _, id) in found.items()},
            means="they count as work, and are none: a worker drops them when it gets them",
            todo="memable doctor --fix",
            mend=Mend("it is out of the stream", act),
        )
    ]
