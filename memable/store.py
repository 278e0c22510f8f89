"""Durable operations: one async method each, one script each. The only caller of `lua/`.

Every script recognises a call that is repeated because its reply was lost (`-- RETRY` in its header), so the connection
repeats calls without thinking, and nothing here does.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

from memable import lua
from memable.calls import AnyScript, Script
from memable.codec import same_plain
from memable.errors import (
    InputConflict,
    InstanceBusy,
    InstanceNotFound,
    RecordNotFound,
    SignalRejected,
    SignalSuperseded,
    StorageError,
    TypeMismatch,
)
from memable.holding import (
    AnyPoint,
    Claim,
    Copied,
    Held,
    HistoryLost,
    LeaseLost,
    Member,
    NextLife,
    Origin,
    Outcome,
    Payload,
    lines,
)
from memable.journal import FIRED, KINDS_WITH_DEADLINE, Draft, Record, late, pairs
from memable.keys import LAYOUT, InstanceKeys, Keys, Partition, is_child, split_instance_name
from memable.labels import NO_LABELS, Labels, lines_of, parse_lines
from memable.lua import Answer
from memable.moments import NOW, Due
from memable.state import Status, StepKind, WorkflowState


class Connection(Protocol):
    """What the store needs of a connection: see connection.py."""

    def call(self, script: AnyScript, arguments: Sequence[lua.Argument]) -> asyncio.Future[Any]: ...

    def command(self, *words: lua.Argument) -> asyncio.Future[Any]: ...


DELAYED_MS = 250
"""For so long an entry may wait for its claim before its idle time starts again: a lease may be so much shorter."""


def new_token() -> str:
    """A token that never comes again: a lease, a life, the mark of a call. No counter: Redis could be rolled back.

    Each instance keeps several, and its id is often one: 16 characters that hold 95 bits. Letters and digits only,
    since an id that begins with `-` is an option to every command line: two letters stand for base64's signs as well.
    """
    return base64.b64encode(os.urandom(12), altchars=b"xy").decode()


NOTHING_COPIED: Final = Copied({}, {})
"""What an instance begins with that is no fork."""


class Lead(NamedTuple):
    """Who leads a partition; times of Redis."""

    is_ours: bool
    now_ms: float
    next_ms: float | None
    """The earliest deadline; or, while another leads, when that ends unless it is renewed."""
    has_bereaved: bool = False
    """Whether an ended life has left living children."""


_INVOKE, _CLAIM, _RECORD, _OPEN, _PARK, _FINISH, _RELEASE, _ISOLATE, _SET_STATUS = map(
    lua.later, ("invoke", "claim", "record", "open", "park", "finish", "release", "isolate", "set_status")
)
_SIGNAL, _SEND, _RESUME, _FIRE_TIMER, _BEGIN, _RECOVER, _FORGET = map(
    lua.later, ("signal", "send", "resume", "fire_timer", "begin", "recover", "forget")
)
_CANCEL, _EXPIRE = map(lua.later, ("cancel", "expire"))
_LEAD, _RESIGN, _BEAT, _ENTER, _DROP_CONSUMER = map(lua.later, ("lead", "resign", "beat", "enter", "drop_consumer"))
_PAGE, _RECONCILE, _DELETE, _UNLABEL = map(lua.later, ("page", "reconcile", "delete", "unlabel"))
_CHOOSE = lua.later("choose")
_CONTINUE_AS, _COPY = map(lua.later, ("continue_as", "copy"))
_SETTLE = lua.later("settle")
_CONSOLE = lua.later("console")
RENEW = lua.later("renew")
"""Also called by the thread that renews leases, over a connection of its own: see `renewal`."""


@lru_cache(maxsize=1024)
def _with_keys(script: lua.Script, key_count: int) -> Script:
    """A script that takes any number of keys: how many is the caller's to say."""
    return Script(script.name, script.source, script.sha, key_count)


_NOBODY: dict[str, Any] = {"parent": (), "parent_id": "", "parent_name": "", "parent_events": ""}


def _parental(parent: InstanceKeys | None) -> dict[str, Any]:
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


def _with_parent(script: lua.Script, bound: dict[str, Any]) -> Script:
    """A script that takes the keys of a parent, as they were bound."""
    return _with_keys(script, script.key_count - 1 + len(bound["parent"]))


def renewal(worker: str, held: Sequence[Held]) -> list[lua.Argument]:
    """The arguments of `RENEW`, for instances of one stream; its keys are one more than these."""
    return RENEW.bind(
        stream=held[0].keys.stream,
        instances=[each.keys.instance for each in held],
        worker=worker,
        entries_and_leases=[word for each in held for word in (each.entry, each.lease)],
    )


def _parent(partition: Partition, name: bytes | None) -> InstanceKeys | None:
    return partition.of(*split_instance_name(name.decode())) if name else None


def _text(value: bytes | str | None) -> str:
    return "" if value is None else value.decode() if isinstance(value, bytes) else value


def _shown(held: Held, satisfied: list[bytes]) -> dict[str, bytes]:
    """The records of points that are completed: from now on the run knows of them."""
    records = {key.decode(): raw for key, raw in pairs(satisfied).items()}
    # of many the last are kept, and Redis loses what was completed last. Children that are decided have no record yet
    ended = {key: at_ms for key, raw in records.items() if raw and (at_ms := Record(raw).completed_ms) is not None}
    held.learn(sorted(ended, key=ended.__getitem__))
    return records


def _refuse(
    answer: int, keys: InstanceKeys, key: str = "", detail: str = "", found: str = "", what: str = "signal"
) -> Exception:
    """The exception that an answer stands for."""
    workflow, instance_id = keys.workflow, keys.instance_id
    match answer:
        case Answer.LEASE_LOST | Answer.STALE:
            return LeaseLost(keys.name)
        case Answer.FORGOTTEN:
            return HistoryLost(keys.name)
        case Answer.CONFLICT if not key:
            return InputConflict(workflow, instance_id)
        case Answer.UNKNOWN if not key:
            return InstanceNotFound(workflow, instance_id)
        case Answer.UNKNOWN | Answer.TERMINAL | Answer.NOT_REACHED | Answer.CONFLICT:
            return SignalRejected(workflow, instance_id, key, _reason(answer, detail), what=what)
        case Answer.SUPERSEDED:
            return SignalSuperseded(workflow, instance_id, key)
        case Answer.MISMATCH:
            return TypeMismatch(f"signal {key!r} to {keys.name}", expected=detail, found=found)
        case _:
            return StorageError(f"a script gave an answer that has no meaning for {keys.name}: {answer}")


def _reason(answer: int, detail: str) -> str:
    """Why a signal or a message is rejected."""
    match answer:
        case Answer.UNKNOWN:
            return "there is no such instance"
        case Answer.TERMINAL:
            return f"the instance is {detail}"
        case Answer.NOT_REACHED:
            return "the instance does not wait at this point (with buffer=True the signal is kept until it does)"
        case _ if detail:
            return f"this key waits for a {detail}, not for a signal"
        case _:
            return "this key is a step, not a point to wait at"


def _is_new(keys: InstanceKeys, input: bytes, reply: list[Any]) -> bool:
    answer, *there = reply
    if answer == Answer.CONFLICT and same_plain(input, there[0]):
        return False
    if answer < 0:
        raise _refuse(answer, keys)
    return bool(answer == Answer.DONE)


class Store:
    """The durable operations of one namespace over one connection."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self.connection = connection
        self.keys = keys

    # ── from applications ────────────────────────────────────────────────────────────────────────────────────────

    async def invoke(
        self,
        keys: InstanceKeys,
        life: str,
        input: bytes,
        due: Due = NOW,
        labels: Labels = NO_LABELS,
        deadline_ms: int | None = None,
    ) -> bool:
        """Make an instance; whether it is new. `InputConflict` if the id is taken with another input."""
        return _is_new(keys, input, await self._invoke(keys, life, input, due, labels, deadline_ms))

    async def copy(self, keys: InstanceKeys) -> Origin:
        """What a fork of the instance begins with; `InstanceNotFound`."""
        answer, *found = await self.connection.call(
            _COPY, _COPY.bind(instance=keys.instance, steps=keys.steps, family=keys.family)
        )
        if answer < 0:
            raise _refuse(answer, keys)
        life, input, labels, deadline_ms, *hashes = found
        lines = labels.decode().split("\n") if labels else []
        steps, family = ({field.decode(): value for field, value in pairs(each).items()} for each in hashes)
        return Origin(
            life.decode(), input, parse_lines(lines), int(deadline_ms) if deadline_ms else None, steps, family
        )

    async def fork(self, keys: InstanceKeys, life: str, origin: Origin, forked_from: str, copied: Copied) -> bool:
        """Make an instance that begins with what was copied; whether it is new. `InputConflict` if there is another.

        It is the same if it was made with the same `forked_from`.
        """
        (answer,) = await self._invoke(
            keys, life, origin.input, NOW, origin.labels, origin.deadline_ms, forked_from, copied
        )
        if answer == Answer.CONFLICT:
            raise InputConflict(keys.workflow, keys.instance_id, found="and is not this fork")
        return bool(answer == Answer.DONE)

    async def invoke_many(
        self,
        instances: Sequence[tuple[InstanceKeys, str, bytes]],
        labels: Labels = NO_LABELS,
        deadline_ms: int | None = None,
    ) -> list[bool | InputConflict]:
        """As `invoke` for each, all at once; a conflict stands in its place. Whatever fails, all are waited for."""
        calls = [self._invoke(*each, NOW, labels, deadline_ms) for each in instances]
        await asyncio.wait(calls)
        failures = [error for call in calls if (error := call.exception()) is not None]
        if failures:
            raise failures[0]
        answers: list[bool | InputConflict] = []
        for (keys, _, input), call in zip(instances, calls, strict=True):
            try:
                answers.append(_is_new(keys, input, call.result()))
            except InputConflict as conflict:
                answers.append(conflict)
        return answers

    def _invoke(
        self,
        keys: InstanceKeys,
        life: str,
        input: bytes,
        due: Due,
        labels: Labels,
        deadline_ms: int | None,
        forked_from: str = "",
        copied: Copied = NOTHING_COPIED,
    ) -> asyncio.Future[list[Any]]:
        after_ms, at_ms = due.arguments()
        lines = lines_of(labels) if labels else ()
        arguments = _INVOKE.bind(
            instance=keys.instance,
            steps=keys.steps,
            inbox=keys.inbox,
            family=keys.family,
            stream=keys.stream,
            timers=keys.timers,
            queued=keys.index(Status.QUEUED),
            expiry=keys.expiry,
            completed=keys.index(Status.COMPLETED),
            failed=keys.index(Status.FAILED),
            cancelled=keys.index(Status.CANCELLED),
            label_indexes=keys.labels(lines) if lines else (),
            id=keys.instance_id,
            name=keys.name,
            life=life,
            input=input,
            labels="\n".join(lines),
            after_ms=after_ms,
            at_ms=at_ms,
            deadline_ms="" if deadline_ms is None else deadline_ms,
            wake=keys.partition.wake,
            forked_from=forked_from,
            record_words=2 * len(copied.steps),
            records_and_ends=copied.words() if copied is not NOTHING_COPIED else (),
        )
        return self.connection.call(_with_keys(_INVOKE, _INVOKE.key_count - 1 + len(lines)), arguments)

    async def signal(
        self, keys: InstanceKeys, key: str, signal_id: str, payload: Payload, *, keeps: bool = False
    ) -> None:
        """Complete an open point; `SignalRejected`, `SignalSuperseded` or `TypeMismatch` if that is not possible.

        `keeps`: for a point that is not reached yet, keep the signal until it is.
        """
        draft = Draft.completed(StepKind.SIGNAL, payload.tag, payload.json)
        answer, *detail = await self.connection.call(
            _SIGNAL,
            _SIGNAL.bind(
                **self._waking(keys),
                inbox=keys.inbox,
                key=key,
                signal_id=signal_id,
                keeps=int(keeps),
                tag=payload.tag,
                json_type=payload.json_type,
                head=draft.head,
                tail=draft.tail,
                timer_head=FIRED.head,
                timer_tail=FIRED.tail,
            ),
        )
        if answer != Answer.DONE:
            raise _refuse(answer, keys, key, _text(detail[0]) if detail else "", payload.tag or payload.json_type)

    async def send(self, keys: InstanceKeys, mailbox: str, message_id: str, message: Payload) -> None:
        """Hand a message to a receive, or keep it for one; `SignalRejected` if there will be none."""
        draft = Draft.completed(StepKind.MESSAGE, message.tag, message.json)
        answer, *detail = await self.connection.call(
            _SEND,
            _SEND.bind(
                **self._waking(keys),
                inbox=keys.inbox,
                mailbox=mailbox,
                message_id=message_id,
                head=draft.head,
                tail=draft.tail,
            ),
        )
        if answer != Answer.DONE:
            raise _refuse(answer, keys, mailbox, _text(detail[0]) if detail else "", what="message for mailbox")

    async def parent_of(self, keys: InstanceKeys) -> InstanceKeys | None:
        """Of a child that exists its parent, which never changes; nothing to ask for any other instance."""
        if not is_child(keys.instance_id):
            return None
        return _parent(keys.partition, await self.connection.command("HGET", keys.instance, "parent"))

    async def resume(
        self,
        keys: InstanceKeys,
        token: str,
        rerun: Sequence[str] = (),
        *,
        parent: InstanceKeys | None = None,
        parent_lease: str = "",
        missing_ok: bool = False,
    ) -> None:
        """Queue an instance at rest, without the records of `rerun`; one that is queued or running is joined.

        Of a child `parent` must be given (see `parent_of`), and its end is taken back there, unless the parent has
        recorded it. With `parent_lease`, only if the parent's run still holds it: else `LeaseLost`.

        `InstanceNotFound`, `RecordNotFound`; `InstanceBusy` if there is something to rerun, and it cannot be joined.
        """
        kin = _parental(parent)
        answer, *detail = await self.connection.call(
            _with_parent(_RESUME, kin),
            _RESUME.bind(
                instance=keys.instance,
                steps=keys.steps,
                inbox=keys.inbox,
                stream=keys.stream,
                timers=keys.timers,
                expiry=keys.expiry,
                queued=keys.index(Status.QUEUED),
                suspended=keys.index(Status.SUSPENDED),
                completed=keys.index(Status.COMPLETED),
                failed=keys.index(Status.FAILED),
                cancelled=keys.index(Status.CANCELLED),
                id=keys.instance_id,
                name=keys.name,
                token=token,
                wake=keys.partition.wake,
                events=keys.events,
                family=keys.family,
                parent_lease=parent_lease,
                rerun=rerun,
                **kin,
            ),
        )
        if missing_ok and answer == Answer.UNKNOWN:
            return
        if answer == Answer.BUSY:
            raise InstanceBusy(keys.workflow, keys.instance_id, _text(detail[0]))
        if answer == Answer.NO_RECORD:
            raise RecordNotFound(keys.workflow, keys.instance_id, [_text(key) for key in detail])
        if answer < 0:
            raise _refuse(answer, keys)

    async def delete(
        self, keys: InstanceKeys, invoked_as: str, labels: Labels = NO_LABELS, life: str | None = None
    ) -> bool:
        """Forget an instance that has ended, if it is the one that was meant; its labels are these. `InstanceBusy`.

        `life` is the one that it has now, if that is not the one that invoke made: false if it has another meanwhile.
        """
        life = life or invoked_as
        indexes = keys.labels(lines_of(labels))
        arguments = _DELETE.bind(
            **self._leaving(keys),
            steps=keys.steps,
            inbox=keys.inbox,
            family=keys.family,
            orphans=keys.partition.orphans(life),
            bereaved=keys.partition.bereaved,
            wake=keys.partition.wake,
            label_indexes=indexes,
            invoked_as=invoked_as,
            life=life,
        )
        script = _with_keys(_DELETE, _DELETE.key_count - 1 + len(indexes))
        answer, *status = await self.connection.call(script, arguments)
        if answer == Answer.BUSY:
            raise InstanceBusy(keys.workflow, keys.instance_id, _text(status[0]), awaited="end")
        return bool(answer != Answer.STALE)

    async def cancel(
        self,
        keys: InstanceKeys,
        invoked_as: str,
        token: str,
        reason: str,
        retention_ms: int,
        *,
        parent: InstanceKeys | None = None,
    ) -> WorkflowState:
        """End an instance wherever it is; its state now, which is another if it had ended. `InstanceNotFound`.

        `invoked_as` is the life with which it was invoked, read before; of a child, so is its parent.
        """
        answer, there = await self._cancel(keys, invoked_as, token, reason, retention_ms, parent, "")
        if answer < 0:
            raise _refuse(answer, keys)
        if answer == Answer.DONE:
            return WorkflowState.of(Status.CANCELLED, reason)
        status, message, waiting = map(_text, there)
        return WorkflowState.of(Status(status), message, waiting)

    async def cancel_child(
        self, keys: InstanceKeys, parent: InstanceKeys, token: str, reason: str, retention_ms: int, *, by: str
    ) -> None:
        """End a child, if it has not ended, on behalf of its parent's run, `by` its lease: `LeaseLost` if that is over.

        `by` may be `keys.BEREFT` instead: only if its parent's life is over; else nothing is done.
        """
        answer, _ = await self._cancel(keys, "", token, reason, retention_ms, parent, by)
        if answer == Answer.LEASE_LOST:
            raise LeaseLost(parent.name)

    async def _cancel(
        self,
        keys: InstanceKeys,
        invoked_as: str,
        token: str,
        reason: str,
        retention_ms: int,
        parent: InstanceKeys | None,
        on_behalf: str,
    ) -> tuple[int, list[bytes]]:
        ending = self._ending(keys, parent)
        answer, *there = await self.connection.call(
            _with_parent(_CANCEL, ending),
            _CANCEL.bind(
                **ending,
                queued=keys.index(Status.QUEUED),
                running=keys.index(Status.RUNNING),
                suspended=keys.index(Status.SUSPENDED),
                cancelled=keys.index(Status.CANCELLED),
                invoked_as=invoked_as,
                token=token,
                reason=reason,
                retention_ms=retention_ms,
                on_behalf=on_behalf,
            ),
        )
        return answer, there

    async def newest(self, indexes: Sequence[str], newest_us: int | None, count: int) -> list[list[tuple[str, int]]]:
        """Of each index of a partition, at one moment: the first ids not newer than `newest_us`, and their times."""
        script = _with_keys(_PAGE, len(indexes))
        bound = "+inf" if newest_us is None else newest_us
        pages = await self.connection.call(script, [*indexes, bound, count])
        return [[(id.decode(), int(score)) for id, score in pairs(page).items()] for page in pages]

    # ── from a run ───────────────────────────────────────────────────────────────────────────────────────────────

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
            raise _refuse(answer, keys)
        life, input, progress, attempt, started_ms, recoveries, parent, steps = rest
        held.life, held.parent = life.decode(), _parent(keys.partition, parent)
        return Claim(
            life.decode(), input, progress.decode(), int(attempt), int(started_ms), int(recoveries), pairs(steps)
        )

    async def record(self, held: Held, key: str, draft: Draft, elapsed_ms: float) -> bytes | None:
        """Write a step's record once; the record that is there already, else nothing. `LeaseLost`."""
        known = held.known
        recorded = self.connection.call(_RECORD, _RECORD.bind(**self._recording(held, key, draft, elapsed_ms)))
        return self._recorded(held, key, known, await recorded)

    async def settle(self, held: Held, key: str, draft: Draft, elapsed_ms: float) -> bytes | None:
        """As `record`, for a step that has waited for an attempt: it took as long as since the first one."""
        keys, known = held.keys, held.known
        recording = self._recording(held, key, draft, elapsed_ms)
        settled = self.connection.call(_SETTLE, _SETTLE.bind(timers=keys.timers, name=keys.name, **recording))
        return self._recorded(held, key, known, await settled)

    @staticmethod
    def _recording(held: Held, key: str, draft: Draft, elapsed_ms: float) -> dict[str, Any]:
        return {
            "instance": held.keys.instance,
            "steps": held.keys.steps,
            "lease": held.lease,
            "known": "\n".join(held.known),
            "key": key,
            "head": draft.head,
            "tail": draft.tail,
            "elapsed_ms": int(elapsed_ms),
        }

    @staticmethod
    def _recorded(held: Held, key: str, known: tuple[str, ...], reply: list[Any]) -> bytes | None:
        answer, *there = reply
        if answer < 0:
            raise _refuse(answer, held.keys)
        # an open point may be withdrawn, and that is no loss of history
        if not there or not Record(there[0]).is_open:
            # one that was there already may be older than what is known
            held.learn((key,), () if there else known)
        return there[0] if there else None

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
            raise _refuse(answer, keys)
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
                **self._opening(held, points, withdrawn),
            ),
        )
        if answer < 0:
            raise _refuse(answer, keys)
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
                **self._opening(held, points, withdrawn),
            ),
        )
        if answer < 0:
            raise _refuse(answer, keys)
        return _shown(held, satisfied)

    async def finish(self, held: Held, outcome: Outcome, retention_ms: int) -> None:
        """End the instance. `LeaseLost`."""
        keys = held.keys
        ending = self._ending(keys, held.parent)
        answer = await self.connection.call(
            _with_parent(_FINISH, ending),
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
            raise _refuse(answer, keys)

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
            raise _refuse(answer, keys)

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
            raise _refuse(answer, keys)

    async def renew(self, held: Held, worker: str) -> None:
        """Keep the instance from looking abandoned for another lease. `LeaseLost`, `HistoryLost`."""
        (answer,) = await self.connection.call(_with_keys(RENEW, 2), renewal(worker, [held]))
        if answer < 0:
            raise _refuse(answer, held.keys)
        await self.open(held, (), ())

    async def isolate(self, held: Held, *, alone: bool) -> None:
        """Say whether the run has its worker process for itself. `LeaseLost`."""
        keys = held.keys
        answer = await self.connection.call(
            _ISOLATE, _ISOLATE.bind(instance=keys.instance, lease=held.lease, alone=int(alone))
        )
        if answer < 0:
            raise _refuse(answer, keys)

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
            raise _refuse(answer, keys)

    # ── from the leader, and at the start and end of a worker ────────────────────────────────────────────────────

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
                _FIRE_TIMER.bind(**self._waking(keys), inbox=keys.inbox, key=key, kinds_heads_tails=endings),
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
        ending = self._ending(keys, parent)
        return Answer(
            await self.connection.call(
                _with_parent(_EXPIRE, ending),
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
        ending = self._ending(keys, parent)
        return Answer(
            await self.connection.call(
                _with_parent(_RECOVER, ending),
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
        answer = await self.connection.call(_FORGET, _FORGET.bind(**self._leaving(keys)))
        return bool(answer == Answer.DONE)

    async def unlabel(self, keys: InstanceKeys, place: str, created_us: str, lines: Sequence[str]) -> bool:
        """Remove an instance whose retention is over from the indexes of its labels; whether it is out of them."""
        indexes = keys.labels(lines)
        answer = await self.connection.call(
            _with_keys(_UNLABEL, _UNLABEL.key_count - 1 + len(indexes)),
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

    async def reconcile(
        self, partition: Partition, workflow: str, status: Status, ids: Sequence[str], *, of_children: bool = False
    ) -> list[tuple[str, str]]:
        """Mend instances that were listed under `status`; what was done to which (see the script).

        All of them must be children, or none.
        """
        all_keys = [partition.of(workflow, id) for id in ids]
        arguments = _RECONCILE.bind(
            stream=partition.stream(workflow),
            timers=partition.timers,
            found=partition.index(workflow, status, of_children=of_children),
            **{each.value: partition.index(workflow, each, of_children=of_children) for each in Status},
            instances_and_steps=[key for keys in all_keys for key in (keys.instance, keys.steps)],
            ids_names_events=[word for keys in all_keys for word in (keys.instance_id, keys.name, keys.events)],
        )
        script = _with_keys(_RECONCILE, len(arguments) - 3 * len(ids))
        mended = [each.decode() for each in await self.connection.call(script, arguments)]
        return list(zip(mended[::2], mended[1::2], strict=True))

    async def resign(self, partition: Partition, token: str) -> None:
        """Let another worker lead at once."""
        await self.connection.call(_RESIGN, _RESIGN.bind(leader=partition.leader, token=token, wake=partition.wake))

    async def beat(self, worker: str, stale_ms: int) -> None:
        """Show that a worker lives."""
        await self.connection.call(_BEAT, _BEAT.bind(workers=self.keys.workers, worker=worker, stale_ms=stale_ms))

    async def drop_consumer(self, stream: str, worker: str) -> bool:
        """Remove a worker that is gone from a stream's group; whether it held nothing and could be."""
        answer = await self.connection.call(_DROP_CONSUMER, _DROP_CONSUMER.bind(stream=stream, worker=worker))
        return bool(answer == Answer.DONE)

    def _waking(self, keys: InstanceKeys) -> dict[str, Any]:
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

    @staticmethod
    def _leaving(keys: InstanceKeys) -> dict[str, Any]:
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

    @staticmethod
    def _ending(keys: InstanceKeys, parent: InstanceKeys | None) -> dict[str, Any]:
        """What every script that ends an instance takes; of a child, `parent` is whom it tells."""
        return {
            "family": keys.family,
            "bereaved": keys.partition.bereaved,
            "wake": keys.partition.wake,
            **_parental(parent),
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

    @staticmethod
    def _opening(held: Held, points: Sequence[AnyPoint], withdrawn: Sequence[str]) -> dict[str, Any]:
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


async def enter(connection: Connection, namespace: str, partitions: int | None) -> Keys:
    """Agree on the layout of a namespace, and learn or set its number of partitions; `StorageError` if they differ."""
    layout, agreed = await connection.call(
        _ENTER, _ENTER.bind(meta=Keys.meta(namespace), layout=LAYOUT, partitions=partitions or 1)
    )
    if layout.decode() != LAYOUT:
        raise StorageError(
            f"namespace {namespace!r} has layout version {layout.decode()}, and this memable speaks {LAYOUT}: "
            f"use a memable of that version, or another namespace (MEMABLE_NAMESPACE)"
        )
    if partitions is not None and int(agreed) != partitions:
        raise StorageError(
            f"namespace {namespace!r} has {int(agreed)} partitions, not {partitions}: their number is fixed when a "
            f"namespace is first used; unset MEMABLE_PARTITIONS, or use another namespace"
        )
    return Keys(namespace, partitions=int(agreed))
