"""The leader of a partition: fires timers, recovers what dead workers held, cancels orphans, trims the listing, mends.

Leadership saves work; it protects nothing. Every script that a leader calls is safe to be called by two at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

from memable.announcement import parse
from memable.connection import ScriptConnection, ServerRefused
from memable.damage import Damaged, legible, reading
from memable.errors import StorageError
from memable.keys import (
    DEADLINE_KEY,
    DELAY_KEY,
    GROUP,
    InstanceKeys,
    Partition,
    split_expiry_member,
    split_timer_member,
)
from memable.lua import Answer
from memable.pubsub import Subscription, Subscriptions
from memable.runtime.bereavement import Bereavement
from memable.runtime.failing import failure_outcome
from memable.runtime.intake import named_by
from memable.runtime.logs import about
from memable.runtime.observing import NOBODY, Observer
from memable.runtime.reconciler import Reconciler
from memable.store import Lead, Store

_log = logging.getLogger("memable.leader")

_BATCH = 200
_TRIM_EVERY_S = 30.0
_POSTPONED_MS = 10_000
"""How long a timer that cannot be fired waits for the next try: due for ever, it would keep the leader spinning."""
_RETRY_S = 1.0


class Leader:
    """Competes for the lead of one partition, and does the leader's work while it has it."""

    def __init__(
        self,
        store: Store,
        connection: ScriptConnection,
        partition: Partition,
        worker: str,
        *,
        lease_s: float,
        max_recoveries: int,
        default_retention_ms: int,
        observer: Observer = NOBODY,
    ) -> None:
        self._store = store
        self._connection = connection
        self._partition = partition
        self._lease_s = lease_s
        self._max_recoveries = max_recoveries
        self._default_retention_ms = default_retention_ms
        self._reconciler = Reconciler(store, connection, partition, workflows=self._workflows, page_every_s=lease_s / 3)
        self._bereavement = Bereavement(store, connection, partition, retention_ms=self._retention_ms)
        self._observer = observer
        self.is_leading = False
        self._token = worker  # no other worker has that name, now or later
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._swept_s = self._trimmed_s = 0.0
        self._rested_s = self._there_since_s = -math.inf
        self._complaints: set[str] = set()
        """What was refused since the last trim: one instance must not stop the rest, nor fill the log."""

    async def start(self, subscriptions: Subscriptions) -> None:
        self._subscription = await subscriptions.open(self._partition.wake, lambda _: self._woken.set())
        self._task = asyncio.ensure_future(self._lead())

    async def stop(self) -> None:
        """Resign, so that another can lead at once."""
        self._is_stopping = True
        self._woken.set()
        if self._subscription is not None:
            self._subscription.close()
        if self._task is not None:
            await self._task
            await self._bereavement.stop()
            await self._store.resign(self._partition, self._token)

    async def _lead(self) -> None:
        while not self._is_stopping:
            try:
                pause_s = await self._once()
            except StorageError as error:
                _log.warning("leading %s: %s", self._partition.prefix, error)
                self.is_leading, pause_s = False, _RETRY_S
            except Exception:
                _log.exception("leading %s failed, and goes on", self._partition.prefix)
                self.is_leading, pause_s = False, _RETRY_S
            await self._pause(pause_s)
        self.is_leading = False

    async def _pause(self, pause_s: float) -> None:
        if pause_s <= 0 or self._is_stopping:
            return
        handle = asyncio.get_running_loop().call_later(pause_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            handle.cancel()
        self._woken.clear()

    async def _once(self) -> float:
        """One round; how long to sleep until the next."""
        now_s = time.monotonic()
        if math.isfinite(self._rested_s) and now_s - self._rested_s > self._lease_s:
            # this process was stopped, perhaps the whole machine: then those who hold instances could not renew
            self._there_since_s = now_s
        try:
            return await self._round()
        finally:
            self._rested_s = time.monotonic()

    async def _round(self) -> float:
        round_s = self._lease_s / 3
        is_new = not self._may_sweep(time.monotonic())
        lead = await self._store.lead(self._partition, self._token, round(self._lease_s * 1000), is_new=is_new)
        self.is_leading = lead.is_ours
        if lead.is_ours:
            # asked again: the call may have waited out an outage
            may_sweep = self._may_sweep(time.monotonic())
            await self._do_the_work(lead, round_s * 0.9 if may_sweep else None)
            round_s = min(round_s, self._reconciler.pause_s)
        return round_s if lead.next_ms is None else min(round_s, max(0, lead.next_ms - lead.now_ms) / 1000)

    async def _do_the_work(self, lead: Lead, sweep_every_s: float | None) -> None:
        now_ms, now_s = lead.now_ms, time.monotonic()
        if lead.next_ms is not None and lead.next_ms <= now_ms:
            await self._fire_due(now_ms)
        if lead.has_bereaved:
            self._bereavement.begin()
        if sweep_every_s is not None and now_s - self._swept_s >= sweep_every_s:
            self._swept_s = now_s
            await self._sweep(latest_ms=now_ms + self._lease_s / 3 * 1000)
        if now_s - self._trimmed_s >= _TRIM_EVERY_S:
            self._trimmed_s = now_s
            self._complaints.clear()
            await self._trim(now_ms)
        await self._reconcile()

    async def _reconcile(self) -> None:
        try:
            await self._reconciler.go_on()
        except ServerRefused as error:
            self._complain("the listing cannot be walked", error)

    def _complain(self, what: str, error: Exception, name: str | None = None) -> None:
        """`name`: of the instance that it concerns."""
        if what not in self._complaints:
            self._complaints.add(what)
            _log.error("%s: %s", what, error, extra=None if name is None else about(name))

    # ── timers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fire_due(self, now_ms: float) -> None:
        command, now_s = self._connection.command, time.monotonic()
        due = await command(
            "ZRANGE", self._partition.timers, "-inf", now_ms, "BYSCORE", "LIMIT", 0, _BATCH, "WITHSCORES"
        )
        await asyncio.gather(
            *(
                self._fire(member, now_ms, now_s - (now_ms - float(due_ms)) / 1000)
                for member, due_ms in zip(due[::2], due[1::2], strict=True)
            )
        )

    async def _fire(self, member: bytes, now_ms: float, due_s: float) -> None:
        """`due_s`: when it was due, by this process's clock."""
        timers, command = self._partition.timers, self._connection.command
        try:
            workflow, instance_id, key = split_timer_member(member.decode())
        except ValueError:
            # left in place it would be due for ever, and keep the leader spinning
            _log.error("removed what is no timer: %r in %s", member, timers)
            await command("ZREM", timers, member)
            return
        keys = self._partition.of(workflow, instance_id)
        try:
            if key == DELAY_KEY:
                answer = await self._store.begin(keys)
            elif key == DEADLINE_KEY:
                answer = await self._expire(keys)
            else:
                answer = await self._store.fire_timer(keys, key)
            if answer == Answer.DONE:
                self._observer.timer_fired(workflow, time.monotonic() - due_s)
        except (Damaged, ServerRefused) as error:
            self._complain(f"timer {key!r} of {keys.name} cannot be fired", error, keys.name)
            await command("ZADD", timers, "XX", now_ms + _POSTPONED_MS, member)

    async def _expire(self, keys: InstanceKeys) -> Answer:
        """The deadline of a whole instance has come."""
        deadline_ms = await self._connection.command("HGET", keys.instance, "deadline_ms")
        with reading(f"instance {keys.name}"):
            lived = f"{int(deadline_ms or 0) / 1000:g} s"
        failure = failure_outcome("DeadlineExceeded", f"{keys.name} has not ended within its deadline of {lived}")
        retention_ms, parent = await self._retention_ms(keys.workflow), await self._store.parent_of(keys)
        answer = await self._store.expire(keys, failure, retention_ms, parent=parent)
        if answer == Answer.DONE:
            _log.warning("%s", failure.message, extra=about(keys.name))
            self._observer.expired(keys.workflow)
        return answer

    # ── what workers left behind ─────────────────────────────────────────────────────────────────────────────────

    def _may_sweep(self, now_s: float) -> bool:
        """After an outage everything looks idle: those who hold instances must have had the time to renew."""
        since_s = self._connection.connected_at_s
        return since_s is not None and now_s - max(since_s, self._there_since_s) >= self._lease_s

    async def _workflows(self) -> list[str]:
        names = await self._connection.command("HKEYS", self._store.keys.workflows)
        return list(map(legible, names))

    async def _sweep(self, *, latest_ms: float) -> None:
        for workflow in await self._workflows():
            try:
                while await self._sweep_stream(workflow, latest_ms) and not self._is_stopping:
                    pass
            except (Damaged, ServerRefused) as error:
                self._complain(f"the stream of {workflow!r} cannot be swept", error)

    async def _sweep_stream(self, workflow: str, latest_ms: float) -> bool:
        """Queue again what nobody has renewed for a lease; whether there may be more."""
        stream, command = self._partition.stream(workflow), self._connection.command
        lease_ms = round(self._lease_s * 1000)
        try:
            idle = await command("XPENDING", stream, GROUP, "IDLE", lease_ms, "-", "+", _BATCH)
        except ServerRefused as error:
            if error.code != "NOGROUP":
                raise
            return False
        entries = [entry for entry, *_ in idle]
        found = await asyncio.gather(*(command("XRANGE", stream, entry, entry) for entry in entries))
        moved = await asyncio.gather(
            *(self._try_recover(workflow, entry, each, latest_ms) for entry, each in zip(entries, found, strict=True))
        )
        return len(entries) == _BATCH and any(moved)

    async def _try_recover(self, workflow: str, entry: bytes, found: list[Any], latest_ms: float) -> bool:
        """Whether the entry could be dealt with: one that cannot must not keep the others waiting."""
        try:
            return await self._recover(workflow, entry, found, latest_ms)
        except (Damaged, ServerRefused) as error:
            self._complain(f"entry {entry.decode()} of workflow {workflow!r} cannot be recovered", error)
            return False

    async def _recover(self, workflow: str, entry: bytes, found: list[Any], latest_ms: float) -> bool:
        stream = self._partition.stream(workflow)
        if not found:  # deleted without having been acknowledged: a ghost
            await self._connection.command("XACK", stream, GROUP, entry)
            return True
        instance_id = named_by(found[0][1])
        if instance_id is None:
            _log.error("removed what is no entry of memable: %s in %s", entry.decode(), stream)
            await self._connection.command("XACK", stream, GROUP, entry)
            await self._connection.command("XDEL", stream, entry)
            return True
        keys = self._partition.of(workflow, instance_id)
        failure = failure_outcome(
            "WorkerLost",
            f"{keys.name} has lost its worker {self._max_recoveries} times in a row or more without progress, the last "
            f"time while it ran alone: it crashes its process (out of memory, os._exit, a fault in native code)",
        )
        answer = await self._store.recover(
            keys,
            entry.decode(),
            lease_ms=round(self._lease_s * 1000),
            latest_ms=latest_ms,
            max_recoveries=self._max_recoveries,
            failure=failure,
            retention_ms=await self._retention_ms(workflow),
            parent=await self._store.parent_of(keys),
        )
        if answer == Answer.DONE:
            _log.warning("%s was abandoned by its worker, and is queued again", keys.name, extra=about(keys.name))
            self._observer.recovered(workflow, has_failed=False)
        elif answer == Answer.TERMINAL:
            _log.error("%s", failure.message, extra=about(keys.name))
            self._observer.recovered(workflow, has_failed=True)
        return answer != Answer.NOT_REACHED

    async def _retention_ms(self, workflow: str) -> int:
        raw = await self._connection.command("HGET", self._store.keys.workflows, workflow)
        try:
            said = None if raw is None else parse(workflow, raw).retention_ms
        except StorageError as error:  # of another version, say: what its workers held is recovered all the same
            self._complain(f"workflow {workflow!r}", error)
            said = None
        return self._default_retention_ms if said is None else said

    # ── what retention is over for, and workers that are gone ────────────────────────────────────────────────────

    async def _trim(self, now_ms: float) -> None:
        command = self._connection.command
        while not self._is_stopping:
            over = await command("ZRANGE", self._partition.expiry, "-inf", now_ms, "BYSCORE", "LIMIT", 0, _BATCH)
            forgotten = await asyncio.gather(*(self._forget(name) for name in over))
            if len(over) < _BATCH or not any(forgotten):
                break
        await self._drop_consumers()

    async def _forget(self, member: bytes) -> bool:
        """Whether the instance is out of the listing, or out of the indexes of its labels."""
        try:
            workflow, instance_id, created_us, labels = split_expiry_member(place := member.decode())
        except ValueError:
            _log.error("removed what is no instance: %r in %s", member, self._partition.expiry)
            await self._connection.command("ZREM", self._partition.expiry, member)
            return True
        keys = self._partition.of(workflow, instance_id)
        try:
            if labels:
                return await self._store.unlabel(keys, place, created_us, labels)
            return await self._store.forget(keys)
        except ServerRefused as error:
            self._complain(f"{keys.name} cannot be forgotten", error, keys.name)
            return False

    async def _drop_consumers(self) -> None:
        """Remove consumers of workers that are gone; one that still has pending entries waits for their recovery.

        One that lives after all (it was stopped for long, or has not shown itself yet) is made again by its next read.
        """
        command = self._connection.command
        alive = set(await command("ZRANGE", self._store.keys.workers, 0, -1))
        for workflow in await self._workflows():
            stream = self._partition.stream(workflow)
            try:
                consumers = await command("XINFO", "CONSUMERS", stream, GROUP)
            except ServerRefused:
                continue  # no stream or no group yet
            for consumer in consumers:
                facts = dict(zip(consumer[::2], consumer[1::2], strict=True))
                if facts[b"name"] not in alive and not facts[b"pending"]:
                    await self._store.drop_consumer(stream, legible(facts[b"name"]))
