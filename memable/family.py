"""Children as they stand in their parent's family; the scripts of families are called here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from memable import lua
from memable.calls import Script
from memable.children_call import ChildrenCall
from memable.codec import from_json
from memable.damage import reading
from memable.errors import ChildFailed, StepConflict, WorkflowCancelled
from memable.holding import Held, HistoryLost, LeaseLost
from memable.keys import BEREFT, CHILD_MARK, INTERNAL_PREFIX, InstanceKeys, child_id
from memable.lua import Answer
from memable.state import Status
from memable.store import Store, new_token
from memable.trace_context import current_trace

_SPAWN = lua.later("spawn")
_CREATED, _WORKFLOW, _ENDED = "_created:", "_workflow:", "_ended:"


class Standing(NamedTuple):
    """How far the children of a call are."""

    created: int = 0
    ended: int = 0
    failed: int = 0
    """Of those that have ended; the cancelled among them."""
    first_failed: int | None = None
    elapsed_ms: int = 0
    """Since the first of them was made."""
    resumed: str = ""
    """The parent's last resume, by which those that failed before are to be resumed: its token, and when it was."""
    rerun: str = ""
    """The last resume that named the call in `rerun`, by which all that ended before are to be resumed: the same."""

    @property
    def living(self) -> int:
        return self.created - self.ended


class NewChild(NamedTuple):
    """A child to be made."""

    keys: InstanceKeys
    life: str
    input: bytes


class ChildEnd(NamedTuple):
    """How a child ended."""

    status: Status
    json: bytes
    """Its output, its error, or the reason why it was cancelled."""

    @classmethod
    def parse(cls, raw: bytes) -> ChildEnd:
        status, _, json = raw.partition(b" ")
        return cls(Status(status.decode()), json)

    def failure(self, call: ChildrenCall, parent: str, child: InstanceKeys, number: int) -> ChildFailed | None:
        """The failure that this is of the call; `None` if it completed."""
        if self.status is Status.COMPLETED:
            return None
        said: Any = from_json(self.json)
        if self.status is Status.CANCELLED:
            cancelled = WorkflowCancelled(child.workflow, child.instance_id, said or None)
            said = {"type": type(cancelled).__name__, "message": str(cancelled)}
        return ChildFailed(
            call.subject(parent, number),
            key=call.key,
            index=number,
            workflow=child.workflow,
            instance_id=child.instance_id,
            error_type=said["type"],
            error_message=said["message"],
        )


async def living_in(store: Store, parent: InstanceKeys, life: str, family: str | None) -> list[InstanceKeys]:
    """The children of a life that were made and have not ended, as its family says; `None`: one that is kept apart."""
    command, name = store.connection.command, family or parent.partition.orphans(life)
    fields = [field.decode() for field in await command("HKEYS", name)]
    ended = {field for field in fields if not field.startswith(INTERNAL_PREFIX)}
    keys = [field.removeprefix(_CREATED) for field in fields if field.startswith(_CREATED)]
    if not keys:
        return []
    known = await command("HMGET", name, *(f"{field}{key}" for key in keys for field in (_CREATED, _WORKFLOW)))
    with reading(f"the family of {parent.name}"):
        return [
            parent.partition.of(workflow.decode(), child_id(parent.instance_id, life, key, number))
            for key, created, workflow in zip(keys, known[::2], known[1::2], strict=True)
            # gone since the keys were read: another leader was at it, too
            for number in range(0 if created is None else int(created))
            if f"{key}{CHILD_MARK}{number}" not in ended
        ]


async def cancel_bereft(store: Store, child: InstanceKeys, parent: InstanceKeys, retention_ms: int) -> None:
    """End a child, if it has not ended, whose parent's life is over; else nothing is done."""
    reason = f"its parent {parent.name} is over"
    await store.cancel_child(child, parent, new_token(), reason, retention_ms, by=BEREFT)


class ChildrenSeen(NamedTuple):
    """The children of a call, as anybody can see them."""

    workflow: str
    total: int
    """How many there are to be."""
    created: int
    ended: int
    failed: int
    """Of those that have ended; the cancelled among them."""
    first_failed: int | None
    """The number of the one that failed first."""


async def children_of(store: Store, parent: InstanceKeys, keys: Sequence[str]) -> dict[str, ChildrenSeen]:
    """How far the children of the calls `keys` of an instance are; a call that has none yet is left out."""
    fields = (_WORKFLOW, "_total:", _CREATED, _ENDED, "_failed:", "_first:")
    if not keys:
        return {}
    known = await store.connection.command("HMGET", parent.family, *(f"{each}{key}" for key in keys for each in fields))
    found: dict[str, ChildrenSeen] = {}
    for at, key in enumerate(keys):
        workflow, total, created, ended, failed, first = known[at * len(fields) : (at + 1) * len(fields)]
        if workflow is not None:
            with reading(f"the family of {parent.name}"):
                found[key] = ChildrenSeen(
                    workflow=workflow.decode(),
                    total=int(total),
                    created=int(created or 0),
                    ended=int(ended or 0),
                    failed=int(failed or 0),
                    first_failed=None if first is None else int(first),
                )
    return found


class Family:
    """The children of one life of an instance, as its run sees them."""

    def __init__(self, store: Store, held: Held) -> None:
        self._store, self._held = store, held

    def child(self, call: ChildrenCall, number: int) -> InstanceKeys:
        """The names of a child, whether it was made or not."""
        keys = self._held.keys
        return keys.partition.of(call.name, child_id(keys.instance_id, self._held.life, call.key, number))

    async def spawn(
        self, call: ChildrenCall, first: int, children: Sequence[NewChild], deadline_ms: int | None = None
    ) -> Standing:
        """Make the next children, and read how far all of them are; with none, only that.

        `LeaseLost`; `StepConflict` if the key's children are of another workflow, or of another number.
        """
        held, any_child = self._held, self.child(call, first)
        arguments = _SPAWN.bind(
            instance=held.keys.instance,
            steps=held.keys.steps,
            family=held.keys.family,
            stream=any_child.stream,
            timers=any_child.timers,
            queued=any_child.index(Status.QUEUED),
            children=[each.keys.instance for each in children],
            lease=held.lease,
            known="\n".join(held.known),
            name=held.keys.name,
            key=call.key,
            workflow=call.name,
            total=call.total,
            first=first,
            deadline_ms="" if deadline_ms is None else deadline_ms,
            wake=any_child.partition.wake,
            trace=current_trace() or held.trace,
            ids_lives_inputs=[word for each in children for word in (each.keys.instance_id, each.life, each.input)],
        )
        script = Script(_SPAWN.name, _SPAWN.source, _SPAWN.sha, _SPAWN.key_count - 1 + len(children))
        answer, *rest = await self._store.connection.call(script, arguments)
        if answer == Answer.LEASE_LOST:
            raise LeaseLost(held.keys.name)
        if answer == Answer.FORGOTTEN:
            raise HistoryLost(held.keys.name)
        if answer == Answer.CONFLICT:
            raise _conflict(call, held.keys.name, rest[0].decode(), int(rest[1]))
        created, ended, failed, first_failed, elapsed_ms, resumed, again = rest
        return Standing(
            int(created),
            int(ended),
            int(failed),
            int(first_failed) if first_failed else None,
            int(elapsed_ms),
            resumed.decode(),
            again.decode(),
        )

    async def ends(self, call: ChildrenCall, first: int, count: int) -> list[ChildEnd | None]:
        """How `count` children from `first` on have ended; nothing for those that have not."""
        fields = [f"{call.key}{CHILD_MARK}{number}" for number in range(first, first + count)]
        raws = await self._store.connection.command("HMGET", self._held.keys.family, *fields)
        return [None if raw is None else ChildEnd.parse(raw) for raw in raws]

    async def living(self, call: ChildrenCall) -> list[InstanceKeys]:
        """Those children of the call that were made and have not ended."""
        family, command = self._held.keys.family, self._store.connection.command
        created, ended = await command("HMGET", family, _CREATED + call.key, _ENDED + call.key)
        if int(created or 0) == int(ended or 0):
            return []
        fields = set(await command("HKEYS", family))
        numbers = (n for n in range(int(created)) if f"{call.key}{CHILD_MARK}{n}".encode() not in fields)
        return [self.child(call, number) for number in numbers]

    async def cancel(self, child: InstanceKeys, reason: str, retention_ms: int) -> None:
        """End a child, if it has not ended. `LeaseLost`."""
        held = self._held
        await self._store.cancel_child(child, held.keys, new_token(), reason, retention_ms, by=held.lease)

    async def resume(self, call: ChildrenCall, number: int, asked: str) -> None:
        """Run a child again as a resume of the parent asks for (see `Standing`): once, if it had ended by then.

        One that is gone stays as it is.
        """
        token, _, asked_ms = asked.partition(" ")
        await self._store.resume(
            self.child(call, number),
            token,
            parent=self._held.keys,
            parent_lease=self._held.lease,
            asked_ms=asked_ms,
            missing_ok=True,
        )


def _conflict(call: ChildrenCall, parent: str, workflow: str, total: int) -> StepConflict:
    return conflict_of(call, parent, f"{total} of workflow {workflow!r}")


def conflict_of(call: ChildrenCall, parent: str, there: str) -> StepConflict:
    """The call's children are not those that its key was used for."""
    return StepConflict(
        f"{call.what} {call.key!r} of {parent}: this key was used for other children ({there}) than now "
        f"({call.total} of workflow {call.name!r}): choose a new key, such as one with another version",
        call.key,
    )
