"""What leaders ask for, and workers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from memable import lua
from memable.holding import Outcome
from memable.journal import KINDS_WITH_DEADLINE, late
from memable.keys import InstanceKeys, Partition
from memable.lua import Answer
from memable.state import Status
from memable.store.arguments import (
    for_ending,
    for_leaving,
    for_waking,
    with_keys,
    with_parent,
)
from memable.store.base import StoreBase

_BEAT = lua.later("beat")
_BEGIN = lua.later("begin")
_CONSOLE = lua.later("console")
_DROP_CONSUMER = lua.later("drop_consumer")
_EXPIRE = lua.later("expire")
_FIRE_TIMER = lua.later("fire_timer")
_FORGET = lua.later("forget")
_LEAD = lua.later("lead")
_RECOVER = lua.later("recover")
_RESIGN = lua.later("resign")
_UNLABEL = lua.later("unlabel")


class Lead(NamedTuple):
    """Who leads a partition; times of Redis."""

    is_ours: bool
    now_ms: float
    next_ms: float | None
    """The earliest deadline; or, while another leads, when that ends unless it is renewed."""
    has_bereaved: bool = False
    """Whether an ended life has left living children."""


class ForLeaders(StoreBase):
    """The operations of leaders, and of workers at their start and end."""

    async def fire_timer(self, keys: InstanceKeys, key: str) -> Answer:
        """Complete the point of a timer that is due: DONE, or why there was nothing to do."""
        endings = [
            word
            for kind in KINDS_WITH_DEADLINE
            for word in (kind.value, *late(kind, keys.workflow, keys.instance_id, key))
        ]
        return Answer(
            await self.connection.call(
                _FIRE_TIMER,
                _FIRE_TIMER.bind(**for_waking(keys), inbox=keys.inbox, key=key, kinds_heads_tails=endings),
            )
        )

    async def begin(self, keys: InstanceKeys) -> Answer:
        """Queue a delayed instance that is due: DONE, or why there was nothing to do."""
        return Answer(
            await self.connection.call(
                _BEGIN,
                _BEGIN.bind(
                    instance=keys.instance,
                    stream=keys.stream,
                    timers=keys.timers,
                    queued=keys.index(Status.QUEUED),
                    id=keys.instance_id,
                    name=keys.name,
                    events=keys.events,
                ),
            )
        )

    async def expire(
        self, keys: InstanceKeys, failure: Outcome, retention_ms: int, *, parent: InstanceKeys | None = None
    ) -> Answer:
        """Fail an instance whose deadline has come: DONE, or why there was nothing to do.

        Of a child `parent` must be given (see `parent_of`).
        """
        ending = for_ending(keys, parent)
        return Answer(
            await self.connection.call(
                with_parent(_EXPIRE, ending),
                _EXPIRE.bind(
                    **ending,
                    queued=keys.index(Status.QUEUED),
                    running=keys.index(Status.RUNNING),
                    suspended=keys.index(Status.SUSPENDED),
                    failed=keys.index(Status.FAILED),
                    error=failure.value,
                    message=failure.message,
                    retention_ms=retention_ms,
                ),
            )
        )

    async def recover(
        self,
        keys: InstanceKeys,
        entry: str,
        *,
        lease_ms: int,
        latest_ms: float,
        max_recoveries: int,
        failure: Outcome,
        retention_ms: int,
        parent: InstanceKeys | None = None,
    ) -> Answer:
        """Take an instance from a worker that has not renewed for a lease: DONE, or why there was nothing to do.

        After `latest_ms`, a time of Redis, nothing is done. Of a child `parent` must be given (see `parent_of`).
        """
        ending = for_ending(keys, parent)
        return Answer(
            await self.connection.call(
                with_parent(_RECOVER, ending),
                _RECOVER.bind(
                    **ending,
                    running=keys.index(Status.RUNNING),
                    queued=keys.index(Status.QUEUED),
                    failed=keys.index(Status.FAILED),
                    entry=entry,
                    lease_ms=lease_ms,
                    latest_ms=round(latest_ms),
                    max_recoveries=max_recoveries,
                    error=failure.value,
                    message=failure.message,
                    retention_ms=retention_ms,
                ),
            )
        )

    async def forget(self, keys: InstanceKeys) -> bool:
        """Remove an instance whose retention is over from the listing; whether it is out of it."""
        answer = await self.connection.call(_FORGET, _FORGET.bind(**for_leaving(keys)))
        return bool(answer == Answer.DONE)

    async def unlabel(self, keys: InstanceKeys, place: str, created_us: str, lines: Sequence[str]) -> bool:
        """Remove an instance whose retention is over from the indexes of its labels; whether it is out of them."""
        indexes = keys.labels(lines)
        answer = await self.connection.call(
            with_keys(_UNLABEL, _UNLABEL.key_count - 1 + len(indexes)),
            _UNLABEL.bind(
                instance=keys.instance,
                expiry=keys.expiry,
                label_indexes=indexes,
                id=keys.instance_id,
                place=place,
                created_us=created_us,
            ),
        )
        return bool(answer == Answer.DONE)

    async def lead(self, partition: Partition, token: str, ttl_ms: int, *, is_new: bool = False) -> Lead:
        """Become or stay leader; one that is new gives way to one that is not."""
        answer, now_ms, next_ms, *bereaved = await self.connection.call(
            _LEAD,
            _LEAD.bind(
                leader=partition.leader,
                timers=partition.timers,
                bereaved=partition.bereaved,
                token=token,
                ttl_ms=ttl_ms,
                is_new=int(is_new),
            ),
        )
        return Lead(answer == Answer.DONE, float(now_ms), None if next_ms is None else float(next_ms), any(bereaved))

    async def console(self, keys: InstanceKeys, life: str, member: str, score: str) -> None:
        """Take an ended life off the list of those that left living children, unless it is there anew."""
        await self.connection.call(
            _CONSOLE,
            _CONSOLE.bind(
                bereaved=keys.partition.bereaved,
                instance=keys.instance,
                orphans=keys.partition.orphans(life),
                member=member,
                score=score,
                life=life,
            ),
        )

    async def resign(self, partition: Partition, token: str) -> None:
        """Let another worker lead at once."""
        await self.connection.call(_RESIGN, _RESIGN.bind(leader=partition.leader, token=token, wake=partition.wake))

    async def beat(self, worker: str, presence: bytes, stale_ms: int) -> None:
        """Show that a worker lives, and what it says of itself; a worker that is silent for `stale_ms` is gone."""
        # not in the script: neither key is a partition's, and a cluster may have them in two places
        await asyncio.gather(
            self.connection.call(_BEAT, _BEAT.bind(workers=self.keys.workers, worker=worker, stale_ms=stale_ms)),
            self.connection.command("SET", self.keys.worker(worker), presence, "PX", stale_ms),
        )

    async def leave(self, worker: str) -> None:
        """Take a worker off the list of those that live."""
        await asyncio.gather(
            self.connection.command("ZREM", self.keys.workers, worker),
            self.connection.command("DEL", self.keys.worker(worker)),
        )

    async def drop_consumer(self, stream: str, worker: str) -> bool:
        """Remove a worker that is gone from a stream's group; whether it held nothing and could be."""
        answer = await self.connection.call(_DROP_CONSUMER, _DROP_CONSUMER.bind(stream=stream, worker=worker))
        return bool(answer == Answer.DONE)
