"""Children of a run's instance: made in batches, waited for at a point, and how they ended recorded as one record.

`call` and `fan_out` go the same way. A script makes them, once, as long as the run holds its instance; what is not
recorded yet is looked up in the family, so that any later run goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Sequence
from typing import Any, Final, Protocol

from memable.children_call import COUNT, ChildrenCall, fan_out_record
from memable.codec import Codec, TypeCodec
from memable.definitions import Definitions
from memable.errors import ChildFailed, StorageError
from memable.family import ChildEnd, Family, NewChild, Standing, conflict_of
from memable.holding import ChildrenPoint, Held
from memable.journal import Draft, Record
from memable.runtime.rest import Rest, new_future
from memable.runtime.steps import StepEnd
from memable.state import Status, StepKind
from memable.store import Store, new_token

_SPAWNED_AT_ONCE: Final = 100
"""By one script: other calls wait meanwhile, for about a millisecond."""

_SPAWNED_BYTES: Final = 1_000_000
"""Of inputs, after which a script makes no more."""

_READ_AT_ONCE: Final = 200
"""Each end may be as large as a payload."""

_CANCELLED_AT_ONCE: Final = 200

_AS_BEFORE: Final = "-"
"""What is waited for at a point that an earlier run has opened."""


class ParentRun(Protocol):
    """What `Children` needs of its run."""

    name: str
    held: Held
    rest: Rest

    def record_end(self, key: str, end: StepEnd) -> Awaitable[bytes | None]: ...


class _ChildrenWait:
    """A call that waits for its children: it is told that they are decided, not how."""

    status: str | None = None
    is_back_off: bool = False
    is_choice: bool = False

    def __init__(self, key: str, waits_for: str) -> None:
        self.key, self._waits_for = key, waits_for
        self.future: asyncio.Future[bytes] = new_future()
        self._asked_s = time.monotonic()

    def point(self) -> ChildrenPoint:
        return ChildrenPoint(self.key, self._waits_for, int((time.monotonic() - self._asked_s) * 1000))


class Children:
    """Carries the calls of a run that make children."""

    def __init__(self, run: ParentRun, store: Store, codec: Codec, definitions: Definitions) -> None:
        self._run, self._codec, self._definitions = run, codec, definitions
        self._family = Family(store, run.held)

    def result_codec(self, call: ChildrenCall) -> TypeCodec:
        """How the result of a child is read."""
        own = self._definitions.own(call.workflow)
        return self._codec.of(Any) if own is None else self._codec.returned_by(own.fn)

    # ── from the first child to the record ───────────────────────────────────────────────────────────────────────

    async def settle(self, call: ChildrenCall, *, was_open: bool) -> Record:
        """Make what is not made yet, wait until it is decided, and record that. `was_open`: waited for before."""
        if was_open:
            await self._wait(call, _AS_BEFORE, was_open=True)
        if call.is_single:  # making its one child tells how it is, too
            standing = await self._make(call, Standing())
        else:
            standing = await self._spawn(call, 0, ())
        standing = await self._make(call, await self._resume(call, standing))
        while not self._is_decided(call, standing):
            await self._wait(call, self._awaited(call, standing))
            standing = await self._make(call, await self._spawn(call, standing.created, ()))
        return await self._record(call, standing)

    @staticmethod
    def _is_decided(call: ChildrenCall, standing: Standing) -> bool:
        return standing.ended >= call.total or (call.fail_fast and standing.failed > 0)

    async def _make(self, call: ChildrenCall, standing: Standing) -> Standing:
        """Make as many as may live at a time; no more once it is decided."""
        at_most = call.concurrency or call.total
        begin, inputs = standing.created, list[bytes]()
        if begin == 0:
            # all of them are checked before the first child is made
            inputs = await self._inputs(call, 0, call.total)
        while standing.created < call.total and standing.living < at_most and not self._is_decided(call, standing):
            first = standing.created
            count = min(_SPAWNED_AT_ONCE, call.total - first, at_most - standing.living)
            place = first - begin
            raws = _at_once(inputs[place : place + count] or await self._inputs(call, first, count))
            children = [NewChild(self._family.child(call, first + at), new_token(), raw) for at, raw in enumerate(raws)]
            standing = await self._spawn(call, first, children)
        return standing

    async def _inputs(self, call: ChildrenCall, first: int, count: int) -> list[bytes]:
        with self._run.rest.flying():
            known = await self._definitions.known(call.workflow)
            return [
                await self._definitions.encode(
                    known, call.items[number], f"the input of {call.subject(self._run.name, number)}"
                )
                for number in range(first, first + count)
            ]

    async def _spawn(self, call: ChildrenCall, first: int, children: Sequence[NewChild]) -> Standing:
        with self._run.rest.flying():
            deadline_ms = (await self._definitions.known(call.workflow)).deadline_ms if children else None
            return await self._family.spawn(call, first, children, deadline_ms)

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _awaited(call: ChildrenCall, standing: Standing) -> str:
        """How many must have ended: all, or enough of those that live for others to be made in their places."""
        wake_at = call.total if standing.created == call.total else standing.ended + max(1, standing.living // 2)
        return f"{wake_at} {standing.created} {int(call.fail_fast)}"

    async def _wait(self, call: ChildrenCall, waits_for: str, *, was_open: bool = False) -> None:
        await self._run.rest.wait_for(_ChildrenWait(call.key, waits_for), was_open=was_open)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _record(self, call: ChildrenCall, standing: Standing) -> Record:
        with self._run.rest.flying():
            if call.fail_fast and standing.failed:
                failure = await self._first_failure(call, standing)
                await self.cancel(call, f"another child of {call.what} {call.key!r} of {self._run.name} has failed")
                draft = Draft.failed(StepKind.CHILD, failure, 1)
            elif call.is_single:
                ends = await self._ends(call)
                draft = Draft.completed(StepKind.CHILD, self.result_codec(call).tag, ends[0].json)
            else:
                draft = Draft.completed(StepKind.CHILD, "", fan_out_record(call.total))
            there = await self._run.record_end(call.key, StepEnd(draft, standing.elapsed_ms))
            return Record(draft.head + draft.tail if there is None else there)

    async def _first_failure(self, call: ChildrenCall, standing: Standing) -> ChildFailed:
        numbers = range(standing.created)
        if standing.first_failed is not None:
            numbers = range(standing.first_failed, standing.first_failed + 1)
        for number in numbers:
            (end,) = await self._family.ends(call, number, 1)
            if end is not None and (failure := self._failure(call, number, end)) is not None:
                return failure
        raise StorageError(f"{call.what} {call.key!r} of {self._run.name}: the end of a child is gone")

    def _failure(self, call: ChildrenCall, number: int, end: ChildEnd) -> ChildFailed | None:
        return end.failure(call, self._run.name, self._family.child(call, number), number)

    async def results(self, call: ChildrenCall, record: Record) -> list[Any]:
        """What the children of a fan_out have returned, in order; where one failed, its `ChildFailed`."""
        if (there := record.plain_result[COUNT]) != call.total:
            raise conflict_of(call, self._run.name, f"{there} of them")
        if not call.total:
            return []
        codec, results = self.result_codec(call), list[Any]()
        with self._run.rest.flying():
            for number, end in enumerate(await self._ends(call)):
                failure = self._failure(call, number, end)
                subject = call.subject(self._run.name, number)
                results.append(codec.decode(end.json, f"the result of {subject}") if failure is None else failure)
        return results

    async def _ends(self, call: ChildrenCall) -> list[ChildEnd]:
        ends: list[ChildEnd] = []
        for first in range(0, call.total, _READ_AT_ONCE):
            chunk = await self._family.ends(call, first, min(_READ_AT_ONCE, call.total - first))
            ends += (end for end in chunk if end is not None)
        if len(ends) < call.total:
            raise StorageError(
                f"{call.what} {call.key!r} of {self._run.name}: {call.total - len(ends)} results are gone"
            )
        return ends

    async def cancel(self, call: ChildrenCall, reason: str) -> None:
        """End the children of the call that live; those of a call that has none cost one round trip."""
        with self._run.rest.flying():
            living = await self._family.living(call)
            retention_ms = await self._definitions.retention_ms(call.name) if living else 0
            for first in range(0, len(living), _CANCELLED_AT_ONCE):
                chunk = living[first : first + _CANCELLED_AT_ONCE]
                await asyncio.gather(*(self._family.cancel(child, reason, retention_ms) for child in chunk))

    # ── again ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _resume(self, call: ChildrenCall, standing: Standing) -> Standing:
        """After a resume of the parent, children that had ended by then are resumed by the same token, each once."""
        if standing.rerun and standing.ended:
            await self._resume_those(call, standing, standing.rerun, tuple(Status))
            standing = await self._spawn(call, standing.created, ())
        if standing.resumed and standing.failed:
            await self._resume_those(call, standing, standing.resumed, (Status.FAILED, Status.CANCELLED))
            standing = await self._spawn(call, standing.created, ())
        return standing

    async def _resume_those(
        self, call: ChildrenCall, standing: Standing, asked: str, ended_as: Collection[Status]
    ) -> None:
        with self._run.rest.flying():
            for first in range(0, standing.created, _READ_AT_ONCE):
                ends = await self._family.ends(call, first, min(_READ_AT_ONCE, standing.created - first))
                numbers = [first + at for at, end in enumerate(ends) if end is not None and end.status in ended_as]
                await asyncio.gather(*(self._family.resume(call, number, asked) for number in numbers))


def _at_once(inputs: Sequence[bytes]) -> Sequence[bytes]:
    """As many of these as one script is to carry; at least one."""
    size = 0
    for at, raw in enumerate(inputs):
        size += len(raw)
        if at and size > _SPAWNED_BYTES:
            return inputs[:at]
    return inputs
