"""Checks of what workers and leaders should be doing: who is there, and what is left undone."""

from __future__ import annotations

import asyncio
from typing import Final

from memable.doctor.findings import Finding, Mend, Severity, ok
from memable.doctor.patient import PAGE, Patient
from memable.fleet import Load
from memable.keys import GROUP, Partition, split_expiry_member, split_timer_member
from memable.runtime.intake import make_group, named_by

_LATE_S: Final = 10.0
"""A leader that lives fires within 50 ms; the next one after its death within 5 s."""
_ABANDONED_S: Final = 30.0
"""What nobody has renewed for as long is held by nobody; the leader takes it back after one lease, by default 3 s."""
_UNTRIMMED_S: Final = 120.0
_WAITED_S: Final = 60.0

_START: Final = "memable worker MODULE:APP"


def _alive(load: Load) -> int:
    return sum(count for status, count in load.counts.items() if not status.is_terminal)


async def workers(patient: Patient) -> list[Finding]:
    """Are there workers, all of the same version?

    Without one nothing goes on: no instance is run, no timer fires.
    """
    seen = await patient.fleet()
    live = sum(_alive(load) for load in seen.loads)
    if not seen.workers:
        return [
            Finding(
                Severity.PROBLEM if live else Severity.NOTE,
                "no worker is running",
                means=f"{live} instances wait for one" if live else "there is nothing to do for one",
                todo=_START,
            )
        ]
    versions = {each.name: each.presence.version if each.presence else "unknown" for each in seen.workers}
    if len(set(versions.values())) > 1:
        return [
            Finding(
                Severity.NOTE,
                "workers of different versions are running",
                versions,
                means="in the middle of a deployment that is as it should be",
                todo="restart those of the older version",
            )
        ]
    return ok(f"{len(versions)} running, version {next(iter(versions.values()))}")


async def leaders(patient: Patient) -> list[Finding]:
    """Is each partition led?

    The leader fires timers, and takes back what dead workers held. Every worker competes for it, so that another one
    leads within a lease of its death.
    """
    seen = await patient.fleet()
    if not seen.workers:
        return ok("nobody is there to lead")
    missing = {f"partition {number}": "" for number, leader in enumerate(seen.leaders) if leader is None}
    if not missing:
        return ok(", ".join(dict.fromkeys(each for each in seen.leaders if each)))
    return [
        Finding(
            Severity.PROBLEM,
            "partitions that nobody leads",
            missing,
            means="their timers do not fire, and what dead workers held is not taken back, although workers live",
            todo="look for `memable.leader` in the log of a worker, then restart it",
        )
    ]


async def served(patient: Patient) -> list[Finding]:
    """Is there a worker for each workflow that has instances?

    Workers take work only for workflows that they have. After a deployment that has renamed or removed one, its
    instances wait for ever.
    """
    seen = await patient.fleet()
    if not seen.workers:
        return ok("see workers")
    if any(each.presence is None for each in seen.workers):
        return [Finding(Severity.NOTE, "not known: some workers are of a version that does not say what it serves")]
    alone = [load for load in seen.loads if _alive(load) and not seen.served_by(load.workflow)]
    waiting = {each.workflow: f"{each.waiting} waiting" for each in alone if each.waiting and not each.lacks_group}
    resting = {each.workflow: f"{_alive(each)} resting" for each in alone if not each.waiting}
    found = list[Finding]()
    if waiting:
        found.append(
            Finding(
                Severity.PROBLEM,
                "workflows have work that no worker takes",
                waiting,
                means="the workers that are running do not have them",
                todo=f"{_START}, of an app that has the workflow {next(iter(waiting))!r}; or memable cancel them",
            )
        )
    if resting:
        found.append(
            Finding(
                Severity.WARNING,
                "workflows have instances at rest, and no worker",
                resting,
                means="when they are signalled, or their time comes, nobody will take them",
                todo=f"{_START}, of an app that has the workflow {next(iter(resting))!r}; or memable cancel them",
            )
        )
    return found or ok("each workflow with instances has a worker")


async def groups(patient: Patient) -> list[Finding]:
    """Does each stream with work have its consumer group?

    A worker that has the workflow makes it at its start, or when it is lost. Until then nobody can read the stream, and
    what scales workers by its lag sees none.
    """
    seen = await patient.fleet()
    lacking = {load.workflow: f"{load.waiting} waiting" for load in seen.loads if load.lacks_group and load.waiting}
    if not lacking:
        return ok("each stream with work has one")

    async def act(workflows: tuple[str, ...]) -> None:
        streams = (each.stream(workflow) for workflow in workflows for each in patient.keys.partitions)
        await asyncio.gather(*(make_group(patient.connection, stream) for stream in streams))

    return [
        Finding(
            Severity.PROBLEM,
            "workflows have work in a stream without a consumer group",
            lacking,
            means="no worker that has the workflow has been running since it was invoked, or since the group was lost",
            todo=f"{_START}, of an app that has the workflow {next(iter(lacking))!r}",
            mend=Mend("its group is made; a worker is needed all the same", act),
        )
    ]


async def backlog(patient: Patient) -> list[Finding]:
    """Are there enough workers for what waits?

    An instance that is ready waits until some worker has a free slot.
    """
    seen = await patient.fleet()
    slow = {
        load.workflow: f"{load.waiting} waiting, the first for {load.oldest_waiting_s:.0f} s"
        for load in seen.loads
        if (load.oldest_waiting_s or 0) > _WAITED_S and seen.served_by(load.workflow)
    }
    if not slow:
        return ok(f"{sum(load.waiting for load in seen.loads)} waiting")
    return [
        Finding(
            Severity.NOTE,
            "workflows have more work than their workers take",
            slow,
            todo="start more workers, or raise MEMABLE_CONCURRENCY",
        )
    ]


async def abandoned(patient: Patient) -> list[Finding]:
    """Is everything that runs in the hands of a worker that lives?

    A worker renews what it holds every third of a lease. The leader takes back what is not, for others to run on.
    """
    held = dict[str, str]()
    for workflow in await patient.workflows():
        for partition in patient.keys.partitions:
            held |= await _abandoned_in(patient, partition, workflow)
    if not held:
        return ok("nothing is left lying")
    return [
        Finding(
            Severity.PROBLEM,
            "instances are held by workers that have not renewed them",
            held,
            means="their workers have died, and no leader takes them back",
            todo=f"{_START}: it takes them back within some seconds",
        )
    ]


async def _abandoned_in(patient: Patient, partition: Partition, workflow: str) -> dict[str, str]:
    stream, idle_ms = partition.stream(workflow), round(_ABANDONED_S * 1000)
    pending = await patient.ask_or([], "XPENDING", stream, GROUP, "IDLE", idle_ms, "-", "+", PAGE)
    found = await asyncio.gather(*(patient.ask("XRANGE", stream, each[0], each[0]) for each in pending))
    return {
        f"{workflow}/{named_by(entries[0][1])}": f"{consumer.decode()}, for {idle / 1000:.0f} s"
        for (_, consumer, idle, _), entries in zip(pending, found, strict=True)
        if entries
    }


async def overdue(patient: Patient) -> list[Finding]:
    """Do timers fire?

    The leader of their partition fires them: within 50 ms while it lives, within 5 s of its death.
    """
    now_s, late, total = await patient.now_s(), dict[str, str](), 0
    for partition in patient.keys.partitions:
        bounds = ("-inf", round((now_s - _LATE_S) * 1000))
        due = await patient.ask_or(
            [], "ZRANGE", partition.timers, *bounds, "BYSCORE", "LIMIT", 0, patient.limit, "WITHSCORES"
        )
        total += await patient.ask_or(0, "ZCARD", partition.timers)
        for member, due_ms in zip(due[::2], due[1::2], strict=True):
            late[_timer(member)] = f"due {now_s - float(due_ms) / 1000:.0f} s ago"
    if not late:
        return ok(f"{total} set, none overdue")
    return [
        Finding(
            Severity.PROBLEM,
            "timers are overdue",
            late,
            means="nobody leads their partition, or its leader cannot fire them",
            todo=f"{_START}; if one is running, look for `memable.leader` in its log",
        )
    ]


def _timer(member: bytes) -> str:
    try:
        return "/".join(split_timer_member(member.decode()))
    except ValueError:
        return repr(member)


async def trimming(patient: Patient) -> list[Finding]:
    """Are instances taken out of the listing when their retention is over, and children ended when their parents are?

    The leader does both, every half minute or at once.
    """
    now_s, listed, bereaved = await patient.now_s(), dict[str, str](), dict[str, str]()
    bounds = ("-inf", round((now_s - _UNTRIMMED_S) * 1000), "BYSCORE", "LIMIT", 0, patient.limit)
    for partition in patient.keys.partitions:
        for member in await patient.ask_or([], "ZRANGE", partition.expiry, *bounds):
            listed[_expired(member)] = ""
        for member in await patient.ask_or([], "ZRANGE", partition.bereaved, *bounds):
            bereaved[member.decode(errors="replace").rpartition("/")[0]] = ""
    found = list[Finding]()
    if listed:
        found.append(
            Finding(
                Severity.WARNING,
                "instances are still listed although their retention is over",
                listed,
                means="nobody leads their partition",
                todo=_START,
            )
        )
    if bereaved:
        found.append(
            Finding(
                Severity.WARNING,
                "parents have ended, and their children are not cancelled",
                bereaved,
                means="nobody leads their partition",
                todo=_START,
            )
        )
    return found or ok("nothing is left to trim")


def _expired(member: bytes) -> str:
    try:
        workflow, id, *_ = split_expiry_member(member.decode())
    except ValueError:
        return repr(member)
    return f"{workflow}/{id}"
