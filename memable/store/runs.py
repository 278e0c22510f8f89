"""What a run asks for, from its claim to its rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memable import lua
from memable.holding import AnyPoint, Claim, Held, Member, NextLife, Outcome, lines
from memable.journal import Draft, Record, pairs
from memable.keys import Partition
from memable.lua import Answer
from memable.state import Status
from memable.store.arguments import (
    for_ending,
    for_opening,
    parent_named,
    with_keys,
    with_parent,
)
from memable.store.base import StoreBase
from memable.store.refusals import refuse

_CHOOSE = lua.later("choose")
_CLAIM = lua.later("claim")
_CONTINUE_AS = lua.later("continue_as")
_FINISH = lua.later("finish")
_ISOLATE = lua.later("isolate")
_OPEN = lua.later("open")
_PARK = lua.later("park")
_RECORD = lua.later("record")
_RELEASE = lua.later("release")
_SET_STATUS = lua.later("set_status")
_SETTLE = lua.later("settle")
RENEW = lua.later("renew")
"""Also called by the thread that renews leases, over a connection of its own: see `renewal`."""


_DONE = Answer.DONE  # of each record: an enum's member takes longer to find than to compare
DELAYED_MS = 250
"""For so long an entry may wait for its claim before its idle time starts again: a lease may be so much shorter."""


def renewal(worker: str, held: Sequence[Held]) -> list[lua.Argument]:
    """The arguments of `RENEW`, for instances of one stream; its keys are one more than these."""
    return RENEW.bind(
        stream=held[0].keys.stream,
        instances=[each.keys.instance for each in held],
        worker=worker,
        entries_and_leases=[word for each in held for word in (each.entry, each.lease)],
    )


def _shown(held: Held, satisfied: list[bytes]) -> dict[str, bytes]:
    """The records of points that are completed: from now on the run knows of them."""
    records = {key.decode(): raw for key, raw in pairs(satisfied).items()}
    # of many the last are kept, and Redis loses what was completed last. Children that are decided have no record yet
    ended = {key: at_ms for key, raw in records.items() if raw and (at_ms := Record(raw).completed_ms) is not None}
    held.learn(sorted(ended, key=ended.__getitem__))
    return records


class ForRuns(StoreBase):
    """The operations of the run that holds an instance."""

    async def claim(self, held: Held, worker: str) -> Claim:
        """Take a delivered instance. `LeaseLost` if the delivery is of the past, or another run has it."""
        keys = held.keys
        answer, *rest = await self.connection.call(
            _CLAIM,
            _CLAIM.bind(
                instance=keys.instance,
                steps=keys.steps,
                stream=keys.stream,
                queued=keys.index(Status.QUEUED),
                running=keys.index(Status.RUNNING),
                id=keys.instance_id,
                entry=held.entry,
                lease=held.lease,
                worker=worker,
                control=keys.partition.control(worker),
                delayed_ms=DELAYED_MS,
                events=keys.events,
            ),
        )
        if answer != Answer.DONE:
            raise refuse(answer, keys)
        life, input, progress, attempt, started_ms, recoveries, parent, trace, now_ms, steps = rest
        held.life, held.parent, held.trace = life.decode(), parent_named(keys.partition, parent), trace.decode()
        return Claim(
            held.life,
            input,
            progress.decode(),
            int(attempt),
            int(started_ms),
            int(recoveries),
            int(now_ms),
            pairs(steps),
        )

    async def record(self, held: Held, key: str, draft: Draft, elapsed_ms: float) -> bytes | None:
        """Write a step's record once; the record that is there already, else nothing. `LeaseLost`."""
        keys, known = held.keys, held.known
        recorded = await self.connection.call(
            _RECORD,
            _RECORD.bind(
                instance=keys.instance,
                steps=keys.steps,
                lease=held.lease,
                known="\n".join(known),
                key=key,
                head=draft.head,
                tail=draft.tail,
                elapsed_ms=int(elapsed_ms),
            ),
        )
        return self._recorded(held, key, known, recorded)

    async def settle(self, held: Held, key: str, draft: Draft, elapsed_ms: float) -> bytes | None:
        """As `record`, for a step that has waited for an attempt: it took as long as since the first one."""
        keys, known = held.keys, held.known
        settled = await self.connection.call(
            _SETTLE,
            _SETTLE.bind(
                instance=keys.instance,
                steps=keys.steps,
                timers=keys.timers,
                name=keys.name,
                lease=held.lease,
                known="\n".join(known),
                key=key,
                head=draft.head,
                tail=draft.tail,
                elapsed_ms=int(elapsed_ms),
            ),
        )
        return self._recorded(held, key, known, settled)

    @staticmethod
    def _recorded(held: Held, key: str, known: tuple[str, ...], reply: list[Any]) -> bytes | None:
        answer = reply[0]
        if answer == _DONE:
            held.learn((key,), known)
            return None
        if answer < 0:
            raise refuse(answer, held.keys)
        there: bytes = reply[1]
        # an open point may be withdrawn, and that is no loss of history
        if not Record(there).is_open:
            # it may be older than what is known
            held.learn((key,))
        return there

    async def choose(self, held: Held, key: str, members: Sequence[Member], chosen: str, elapsed_ms: float) -> bytes:
        """Record that the member whose key is `chosen` came first, unless another did. The choice. `LeaseLost`."""
        keys, known = held.keys, held.known
        answer, *there = await self.connection.call(
            _CHOOSE,
            _CHOOSE.bind(
                instance=keys.instance,
                steps=keys.steps,
                timers=keys.timers,
                inbox=keys.inbox,
                name=keys.name,
                lease=held.lease,
                known="\n".join(known),
                key=key,
                members=lines(members),
                chosen=chosen,
                elapsed_ms=int(elapsed_ms),
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)
        held.learn((key,), known if answer == Answer.DONE else ())
        record: bytes = there[0]
        return record

    async def open(self, held: Held, points: Sequence[AnyPoint], withdrawn: Sequence[str]) -> dict[str, bytes]:
        """Let signals and timers find `points`; the records of those that are completed already. `LeaseLost`."""
        keys = held.keys
        answer, *satisfied = await self.connection.call(
            _OPEN,
            _OPEN.bind(
                instance=keys.instance,
                steps=keys.steps,
                timers=keys.timers,
                inbox=keys.inbox,
                family=keys.family,
                name=keys.name,
                lease=held.lease,
                known="\n".join(held.known),
                **for_opening(held, points, withdrawn),
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)
        return _shown(held, satisfied)

    async def park(
        self, held: Held, points: Sequence[AnyPoint], withdrawn: Sequence[str], message: str
    ) -> dict[str, bytes]:
        """Come to rest at `points`: nothing; or no rest, and the records of those that are completed. `LeaseLost`."""
        keys = held.keys
        answer, *satisfied = await self.connection.call(
            _PARK,
            _PARK.bind(
                instance=keys.instance,
                steps=keys.steps,
                stream=keys.stream,
                timers=keys.timers,
                inbox=keys.inbox,
                family=keys.family,
                running=keys.index(Status.RUNNING),
                suspended=keys.index(Status.SUSPENDED),
                queued=keys.index(Status.QUEUED),
                id=keys.instance_id,
                name=keys.name,
                lease=held.lease,
                known="\n".join(held.known),
                entry=held.entry,
                message=message,
                events=keys.events,
                **for_opening(held, points, withdrawn),
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)
        return _shown(held, satisfied)

    async def finish(self, held: Held, outcome: Outcome, retention_ms: int) -> None:
        """End the instance. `LeaseLost`."""
        keys = held.keys
        ending = for_ending(keys, held.parent)
        answer = await self.connection.call(
            with_parent(_FINISH, ending),
            _FINISH.bind(
                **ending,
                running=keys.index(Status.RUNNING),
                final=keys.index(outcome.status),
                lease=held.lease,
                known="\n".join(held.known),
                status=outcome.status.value,
                field="output" if outcome.status is Status.COMPLETED else "error",
                value=outcome.value,
                message=outcome.message,
                failed_keys="\n".join(outcome.failed_keys),
                retention_ms=retention_ms,
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)

    async def continue_as(self, held: Held, next_life: NextLife) -> None:
        """End the instance's life, and begin the next. `LeaseLost`."""
        keys = held.keys
        answer = await self.connection.call(
            _CONTINUE_AS,
            _CONTINUE_AS.bind(
                instance=keys.instance,
                steps=keys.steps,
                stream=keys.stream,
                timers=keys.timers,
                inbox=keys.inbox,
                running=keys.index(Status.RUNNING),
                queued=keys.index(Status.QUEUED),
                id=keys.instance_id,
                name=keys.name,
                lease=held.lease,
                known="\n".join(held.known),
                entry=held.entry,
                family=keys.family,
                orphans=keys.partition.orphans(held.life),
                bereaved=keys.partition.bereaved,
                life=next_life.life,
                input=next_life.input,
                events=keys.events,
                wake=keys.partition.wake,
                read=next_life.read,
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)

    async def release(self, held: Held, *, has_begun: bool = True) -> None:
        """Hand the instance back, to be taken at once by any worker. `LeaseLost`.

        A run that never began is not counted.
        """
        keys = held.keys
        answer = await self.connection.call(
            _RELEASE,
            _RELEASE.bind(
                instance=keys.instance,
                stream=keys.stream,
                running=keys.index(Status.RUNNING),
                queued=keys.index(Status.QUEUED),
                id=keys.instance_id,
                lease=held.lease,
                entry=held.entry,
                has_begun=int(has_begun),
                events=keys.events,
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)

    async def renew(self, held: Held, worker: str) -> None:
        """Keep the instance from looking abandoned for another lease. `LeaseLost`, `HistoryLost`."""
        (answer,) = await self.connection.call(with_keys(RENEW, 2), renewal(worker, [held]))
        if answer < 0:
            raise refuse(answer, held.keys)
        await self.open(held, (), ())

    async def isolate(self, held: Held, *, alone: bool) -> None:
        """Say whether the run has its worker process for itself. `LeaseLost`."""
        keys = held.keys
        answer = await self.connection.call(
            _ISOLATE, _ISOLATE.bind(instance=keys.instance, lease=held.lease, alone=int(alone))
        )
        if answer < 0:
            raise refuse(answer, keys)

    async def enter_solitude(self, partition: Partition, within_s: float) -> bool:
        """Whether no other worker has its process for one suspect; for at most `within_s`, or until `leave_solitude`.

        A courtesy, not a lock: after a lost reply nobody may have it for a while, or two.
        """
        word = await self.connection.command(
            "SET", partition.solitude, "taken", "NX", "PX", max(1, round(within_s * 1000))
        )
        return word is not None

    async def leave_solitude(self, partition: Partition) -> None:
        """Let another worker have its process for one suspect."""
        await self.connection.command("DEL", partition.solitude)

    async def set_status(self, held: Held, progress: str) -> None:
        """Say what the instance is doing. `LeaseLost`."""
        keys = held.keys
        answer = await self.connection.call(
            _SET_STATUS,
            _SET_STATUS.bind(
                instance=keys.instance,
                lease=held.lease,
                turn=held.next_turn(),
                progress=progress,
                events=keys.events,
            ),
        )
        if answer < 0:
            raise refuse(answer, keys)
