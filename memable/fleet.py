"""The fleet as Redis knows it: which workers live, who leads, how much work waits. Nothing here changes anything.

What is asked of Redis grows with the number of workers, workflows and partitions, and not with that of instances:
lengths of streams and sizes of indexes, none of them walked. The numbers of one view are asked for together, but other
clients' commands may come between: they need not add up while much is going on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from memable.damage import legible
from memable.endpoint import ServerRefused
from memable.journal import pairs
from memable.keys import GROUP, InstanceKeys, Partition
from memable.presence import STALE_MS, Presence
from memable.state import Status
from memable.store import Store


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process that lives, for all that Redis knows."""

    name: str
    silent_s: float
    """How long ago its last beat was; one comes every 5 s, and after 30 s it is taken to be gone."""
    leads: tuple[int, ...] = ()
    """The partitions that it leads."""
    presence: Presence | None = None
    """What it said of itself; nothing from one of another version."""
    ahead_s: float | None = None
    """How far its clock was before Redis's at its last beat, if it said so; behind it if negative."""


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one workflow."""

    workflow: str
    counts: Mapping[Status, int]
    """Instances by status, children too; those whose retention is over count until the leader's next round."""
    waiting: int
    """How many of the queued could be taken at once, if a slot were free: the backlog. The others wait for a time."""
    taken: Mapping[str, int] = field(default_factory=dict)
    """Worker -> how many instances it has been given and not brought to rest yet."""
    oldest_waiting_s: float | None = None
    """For how long the first of the backlog has been waiting."""
    lacks_group: bool = False
    """Whether a partition has no stream, or none with memable's consumer group: no worker has ever read it."""

    @property
    def running(self) -> int:
        """How many instances workers have been given."""
        return sum(self.taken.values())

    @property
    def postponed(self) -> int:
        """How many of the queued wait for a time: delayed, or backing off."""
        return max(0, self.counts[Status.QUEUED] - self.waiting)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of it at one moment."""

    at: datetime
    """By Redis's clock."""
    workers: Sequence[Worker]
    leaders: Sequence[str | None]
    """For each partition the name of the worker that leads it, if any does."""
    loads: Sequence[Load]

    def served_by(self, workflow: str) -> list[Worker]:
        """The workers that have said that they run this workflow."""
        return [each for each in self.workers if each.presence and workflow in each.presence.workflows]

    def in_use(self, worker: Worker) -> int:
        """How many instances the worker has been given now; its own beat may be some seconds old."""
        return sum(load.taken.get(worker.name, 0) for load in self.loads)


async def fleet(store: Store, workflows: Iterable[str] | None = None) -> Fleet:
    """Everything, of these workflows or of all: three round trips, whatever the number of instances."""
    (at_s, alive, led), names = await asyncio.gather(_heads(store), _named(store, workflows))
    said, all_loads = await asyncio.gather(_presences(store, alive), _loads(store, names, at_s))
    return Fleet(datetime.fromtimestamp(at_s, UTC), _workers(alive, said, led, at_s), led, all_loads)


async def workers(store: Store) -> list[Worker]:
    """The workers that live, by name: two round trips."""
    at_s, alive, led = await _heads(store)
    return _workers(alive, await _presences(store, alive), led, at_s)


async def leaders(store: Store) -> list[str | None]:
    """For each partition the name of the worker that leads it, if any does."""
    tokens = await asyncio.gather(*(store.connection.command("GET", each.leader) for each in store.keys.partitions))
    # one that may not sweep yet has `new` behind its name
    return [None if token is None else legible(token).partition(" ")[0] for token in tokens]


async def loads(store: Store, workflows: Iterable[str] | None = None) -> list[Load]:
    """The work of these workflows, or of all that were ever announced: two round trips, and one to know their names."""
    names, at_s = await asyncio.gather(_named(store, workflows), server_time_s(store))
    return await _loads(store, names, at_s)


async def workflow_names(store: Store) -> list[str]:
    """The names of all workflows that were ever announced."""
    return sorted(map(legible, await store.connection.command("HKEYS", store.keys.workflows)))


async def server_time(store: Store) -> datetime:
    """Redis's clock."""
    return datetime.fromtimestamp(await server_time_s(store), UTC)


async def server_time_s(store: Store) -> float:
    """Redis's clock, in seconds since 1970."""
    seconds, microseconds = await store.connection.command("TIME")
    return int(seconds) + int(microseconds) / 1e6


async def _named(store: Store, workflows: Iterable[str] | None) -> list[str]:
    return await workflow_names(store) if workflows is None else list(workflows)


async def failed_since(store: Store, workflows: Iterable[str], since: datetime) -> dict[str, int]:
    """How many of each workflow's instances that were made since then have failed; one round trip."""
    since_us = round(since.timestamp() * 1e6)
    indexes = [
        (workflow, index)
        for workflow in workflows
        for partition in store.keys.partitions
        for index in partition.indexes(workflow, Status.FAILED)
    ]
    counts = await asyncio.gather(
        *(store.connection.command("ZCOUNT", index, since_us, "+inf") for _, index in indexes)
    )
    failed = Counter[str]()
    for (workflow, _), count in zip(indexes, counts, strict=True):
        failed[workflow] += count
    return dict(failed)


async def memory_bytes(store: Store, keys: InstanceKeys) -> int | None:
    """How much of the server's memory an instance takes; nothing for a user who has no right to ask."""
    names = (keys.instance, keys.steps, keys.inbox, keys.family)
    try:
        used = await asyncio.gather(*(store.connection.command("MEMORY", "USAGE", name) for name in names))
    except ServerRefused as error:
        if error.code != "NOPERM":
            raise
        return None
    return sum(each or 0 for each in used)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Alive = dict[str, float]
"""Worker -> the time in s of its last sign."""


async def _heads(store: Store) -> tuple[float, Alive, list[str | None]]:
    at_s, signs, led = await asyncio.gather(
        server_time_s(store),
        store.connection.command("ZRANGE", store.keys.workers, 0, -1, "WITHSCORES"),
        leaders(store),
    )
    alive = {legible(name): float(sign_ms) / 1000 for name, sign_ms in pairs(signs).items()}
    # the others' beats take it off the list: the last of all stays there
    return at_s, {name: sign_s for name, sign_s in alive.items() if at_s - sign_s <= STALE_MS / 1000}, led


async def _presences(store: Store, names: Iterable[str]) -> list[Presence | None]:
    said = await asyncio.gather(*(store.connection.command("GET", store.keys.worker(name)) for name in names))
    return [Presence.parse(raw) for raw in said]


def _workers(alive: Alive, said: Iterable[Presence | None], led: list[str | None], at_s: float) -> list[Worker]:
    found = [
        Worker(
            name=name,
            silent_s=max(0.0, at_s - sign_s),
            leads=tuple(number for number, leader in enumerate(led) if leader == name),
            presence=presence,
            ahead_s=None if presence is None or presence.clock_s is None else presence.clock_s - sign_s,
        )
        for (name, sign_s), presence in zip(alive.items(), said, strict=True)
    ]
    return sorted(found, key=lambda worker: worker.name)


# ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Stream:
    """What one stream holds."""

    length: int
    taken: Counter[str]
    oldest_ms: int | None
    """Since when the first entry that no worker has been given waits."""
    lacks_group: bool


async def _loads(store: Store, names: Sequence[str], at_s: float) -> list[Load]:
    return await asyncio.gather(*(_load(store, name, at_s) for name in names))


async def _load(store: Store, workflow: str, at_s: float) -> Load:
    counts, streams = await asyncio.gather(
        _counts(store, workflow),
        asyncio.gather(*(_stream(store, partition, workflow) for partition in store.keys.partitions)),
    )
    taken = sum((each.taken for each in streams), Counter[str]())
    oldest_ms = min((each.oldest_ms for each in streams if each.oldest_ms is not None), default=None)
    return Load(
        workflow=workflow,
        counts=counts,
        waiting=sum(max(0, each.length - each.taken.total()) for each in streams),
        taken=taken,
        oldest_waiting_s=None if oldest_ms is None else max(0.0, at_s - oldest_ms / 1000),
        lacks_group=any(each.lacks_group for each in streams),
    )


async def _counts(store: Store, workflow: str) -> dict[Status, int]:
    indexes = [
        (status, index)
        for partition in store.keys.partitions
        for status in Status
        for index in partition.indexes(workflow, status)
    ]
    sizes = await asyncio.gather(*(store.connection.command("ZCARD", index) for _, index in indexes))
    counts = dict.fromkeys(Status, 0)
    for (status, _), size in zip(indexes, sizes, strict=True):
        counts[status] += size
    return counts


async def _stream(store: Store, partition: Partition, workflow: str) -> _Stream:
    stream, command = partition.stream(workflow), store.connection.command
    length, groups, pending = await asyncio.gather(
        command("XLEN", stream),
        _if_any(command("XINFO", "GROUPS", stream)),
        _if_any(command("XPENDING", stream, GROUP)),
    )
    group = next((each for each in map(pairs, groups or ()) if each[b"name"] == GROUP.encode()), None)
    if group is None or pending is None:
        first = await command("XRANGE", stream, "-", "+", "COUNT", 1) if length else []
        return _Stream(length, Counter(), _entry_ms(first), lacks_group=True)
    taken = Counter({legible(consumer): int(count) for consumer, count in pending[3] or ()})
    # the read is asked for only where something waits: most streams are empty
    after = b"(" + group[b"last-delivered-id"]
    first = await command("XRANGE", stream, after, "+", "COUNT", 1) if length > taken.total() else []
    return _Stream(length, taken, _entry_ms(first), lacks_group=False)


async def _if_any(reply: asyncio.Future[Any]) -> Any:
    """The reply; nothing where there is no stream, or no group of it."""
    try:
        return await reply
    except ServerRefused as error:
        if error.code not in ("NOGROUP", "ERR"):
            raise
        return None


def _entry_ms(entries: list[Any]) -> int | None:
    return int(entries[0][0].partition(b"-")[0]) if entries else None
