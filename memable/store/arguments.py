"""What several scripts take alike, by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from memable import lua
from memable.calls import Script
from memable.damage import legible, reading
from memable.holding import AnyPoint, Held
from memable.keys import InstanceKeys, Partition, split_instance_name
from memable.state import Status


@lru_cache(maxsize=1024)
def with_keys(script: lua.Script, key_count: int) -> Script:
    """A script that takes any number of keys: how many is the caller's to say."""
    return Script(script.name, script.source, script.sha, key_count)


_NOBODY: dict[str, Any] = {"parent": (), "parent_id": "", "parent_name": "", "parent_events": ""}


def for_parent(parent: InstanceKeys | None) -> dict[str, Any]:
    """What every script takes that ends or resumes a child."""
    if parent is None:
        return _NOBODY
    return {
        "parent": (
            parent.instance,
            parent.steps,
            parent.inbox,
            parent.family,
            parent.stream,
            parent.index(Status.SUSPENDED),
            parent.index(Status.QUEUED),
        ),
        "parent_id": parent.instance_id,
        "parent_name": parent.name,
        "parent_events": parent.events,
    }


def with_parent(script: lua.Script, bound: dict[str, Any]) -> Script:
    """A script that takes the keys of a parent, as they were bound."""
    return with_keys(script, script.key_count - 1 + len(bound["parent"]))


def parent_named(partition: Partition, name: bytes | None) -> InstanceKeys | None:
    if not name:
        return None
    with reading(f"the parent {legible(name)!r} of an instance"):
        return partition.of(*split_instance_name(name.decode()))


def for_waking(keys: InstanceKeys) -> dict[str, Any]:
    """What every script that completes a point takes."""
    return {
        "instance": keys.instance,
        "steps": keys.steps,
        "stream": keys.stream,
        "timers": keys.timers,
        "suspended": keys.index(Status.SUSPENDED),
        "queued": keys.index(Status.QUEUED),
        "id": keys.instance_id,
        "name": keys.name,
        "events": keys.events,
    }


def for_leaving(keys: InstanceKeys) -> dict[str, Any]:
    """What every script that takes an instance out of the listing takes."""
    return {
        "instance": keys.instance,
        "expiry": keys.expiry,
        "completed": keys.index(Status.COMPLETED),
        "failed": keys.index(Status.FAILED),
        "cancelled": keys.index(Status.CANCELLED),
        "id": keys.instance_id,
        "name": keys.name,
    }


def for_ending(keys: InstanceKeys, parent: InstanceKeys | None) -> dict[str, Any]:
    """What every script that ends an instance takes; of a child, `parent` is whom it tells."""
    return {
        "family": keys.family,
        "bereaved": keys.partition.bereaved,
        "wake": keys.partition.wake,
        **for_parent(parent),
        "instance": keys.instance,
        "steps": keys.steps,
        "stream": keys.stream,
        "timers": keys.timers,
        "inbox": keys.inbox,
        "expiry": keys.expiry,
        "id": keys.instance_id,
        "name": keys.name,
        "events": keys.events,
    }


def for_opening(held: Held, points: Sequence[AnyPoint], withdrawn: Sequence[str]) -> dict[str, Any]:
    """What every script that opens points takes."""
    flat: list[lua.Argument] = list(withdrawn)
    for point in points:
        flat.extend(point.arguments(held.keys))
    return {
        "turn": held.next_turn(),
        "wake": held.keys.partition.wake,
        "withdrawn_count": len(withdrawn),
        "withdrawn_and_points": flat,
    }
