"""What applications ask for: one method a durable operation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from memable import lua
from memable.codec import same_plain
from memable.damage import legible
from memable.errors import InputConflict, InstanceBusy, RecordNotFound
from memable.holding import Copied, LeaseLost, Origin, Payload
from memable.journal import FIRED, Draft, pairs
from memable.keys import InstanceKeys, is_child
from memable.labels import NO_LABELS, Labels, lines_of, parse_lines
from memable.lua import Answer
from memable.moments import NOW, Due
from memable.state import Status, StepKind, WorkflowState
from memable.store.arguments import (
    for_ending,
    for_leaving,
    for_parent,
    for_waking,
    parent_named,
    with_keys,
    with_parent,
)
from memable.store.base import StoreBase
from memable.store.refusals import refuse, text
from memable.trace_context import current_trace

_CANCEL = lua.later("cancel")
_COPY = lua.later("copy")
_DELETE = lua.later("delete")
_INVOKE = lua.later("invoke")
_PAGE = lua.later("page")
_RESUME = lua.later("resume")
_SEND = lua.later("send")
_SIGNAL = lua.later("signal")

NOTHING_COPIED: Final = Copied({}, {})
"""What an instance begins with that is no fork."""


def _is_new(keys: InstanceKeys, input: bytes, reply: list[Any]) -> bool:
    answer, *there = reply
    if answer == Answer.CONFLICT and same_plain(input, there[0]):
        return False
    if answer < 0:
        raise refuse(answer, keys)
    return bool(answer == Answer.DONE)


class ForApplications(StoreBase):
    """The operations of clients."""

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
            raise refuse(answer, keys)
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
            trace=current_trace(),
            forked_from=forked_from,
            record_words=2 * len(copied.steps),
            records_and_ends=copied.words() if copied is not NOTHING_COPIED else (),
        )
        return self.connection.call(with_keys(_INVOKE, _INVOKE.key_count - 1 + len(lines)), arguments)

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
                **for_waking(keys),
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
            raise refuse(answer, keys, key, text(detail[0]) if detail else "", payload.tag or payload.json_type)

    async def send(self, keys: InstanceKeys, mailbox: str, message_id: str, message: Payload) -> None:
        """Hand a message to a receive, or keep it for one; `SignalRejected` if there will be none."""
        draft = Draft.completed(StepKind.MESSAGE, message.tag, message.json)
        answer, *detail = await self.connection.call(
            _SEND,
            _SEND.bind(
                **for_waking(keys),
                inbox=keys.inbox,
                mailbox=mailbox,
                message_id=message_id,
                head=draft.head,
                tail=draft.tail,
            ),
        )
        if answer != Answer.DONE:
            raise refuse(answer, keys, mailbox, text(detail[0]) if detail else "", what="message for mailbox")

    async def parent_of(self, keys: InstanceKeys) -> InstanceKeys | None:
        """Of a child that exists its parent, which never changes; nothing to ask for any other instance."""
        if not is_child(keys.instance_id):
            return None
        return parent_named(keys.partition, await self.connection.command("HGET", keys.instance, "parent"))

    async def resume(
        self,
        keys: InstanceKeys,
        token: str,
        rerun: Sequence[str] = (),
        *,
        parent: InstanceKeys | None = None,
        parent_lease: str = "",
        asked_ms: str = "",
        missing_ok: bool = False,
    ) -> None:
        """Queue an instance at rest, without the records of `rerun`; one that is queued or running is joined.

        Of a child `parent` must be given (see `parent_of`), and its end is taken back there, unless the parent has
        recorded it. With `parent_lease`, only if the parent's run still holds it: else `LeaseLost`; with `asked_ms`,
        when the parent was resumed, only if it had ended by then.

        `InstanceNotFound`, `RecordNotFound`; `InstanceBusy` if there is something to rerun, and it cannot be joined.
        """
        kin = for_parent(parent)
        answer, *detail = await self.connection.call(
            with_parent(_RESUME, kin),
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
                asked_ms=asked_ms,
                rerun=rerun,
                **kin,
            ),
        )
        if missing_ok and answer == Answer.UNKNOWN:
            return
        if answer == Answer.BUSY:
            raise InstanceBusy(keys.workflow, keys.instance_id, text(detail[0]))
        if answer == Answer.NO_RECORD:
            raise RecordNotFound(keys.workflow, keys.instance_id, [text(key) for key in detail])
        if answer < 0:
            raise refuse(answer, keys)

    async def delete(
        self, keys: InstanceKeys, invoked_as: str, labels: Labels = NO_LABELS, life: str | None = None
    ) -> bool:
        """Forget an instance that has ended, if it is the one that was meant; its labels are these. `InstanceBusy`.

        `life` is the one that it has now, if that is not the one that invoke made: false if it has another meanwhile.
        """
        life = life or invoked_as
        indexes = keys.labels(lines_of(labels))
        arguments = _DELETE.bind(
            **for_leaving(keys),
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
        script = with_keys(_DELETE, _DELETE.key_count - 1 + len(indexes))
        answer, *status = await self.connection.call(script, arguments)
        if answer == Answer.BUSY:
            raise InstanceBusy(keys.workflow, keys.instance_id, text(status[0]), awaited="end")
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
            raise refuse(answer, keys)
        if answer == Answer.DONE:
            return WorkflowState.of(Status.CANCELLED, reason)
        status, message, waiting = map(text, there)
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
        ending = for_ending(keys, parent)
        answer, *there = await self.connection.call(
            with_parent(_CANCEL, ending),
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
        """Of each index of a partition, at one moment: the first ids not newer than `newest_us`, and their times.

        Of a damaged index too: what no instance of memable has for an id or a time leads to none.
        """
        script = with_keys(_PAGE, len(indexes))
        bound = "+inf" if newest_us is None else newest_us
        pages = await self.connection.call(script, [*indexes, bound, count])
        return [[(legible(id), _whole(score)) for id, score in pairs(page).items()] for page in pages]


def _whole(score: bytes) -> int:
    """Of an infinite score, too."""
    return int(max(-_FAR, min(float(score), _FAR)))


_FAR: Final = 1e300
