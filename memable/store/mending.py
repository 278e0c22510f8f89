"""What was lost outside of memable (keys evicted, entries or timers deleted by hand), found and mended.

The leader's reconciler mends; `memable doctor` looks, and mends when it is told to. Both by the same scripts: each
looks and mends at one moment, so what is on its way from one state to the next is never taken for broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from memable import lua
from memable.connection import ServerRefused
from memable.holding import Outcome
from memable.keys import InstanceKeys, Partition
from memable.lua import Answer
from memable.state import Status
from memable.store.arguments import for_parent, with_keys
from memable.store.base import StoreBase

_BURY = lua.later("bury")
_RECONCILE = lua.later("reconcile")
_RETAIN = lua.later("retain")
_TIDY = lua.later("tidy")


class Broken(StrEnum):
    """What `reconcile` finds."""

    ENTRY = "entry"
    """Queued or running, and it has no stream entry that a worker will get or holds: it is queued again."""
    LEASE = "lease"
    """Running, and in the hands of no run: it is queued again."""
    TIMER = "timer"
    """A timer of it was lost: it is there again."""
    POINTS = "points"
    """Suspended, and what it waits for is not noted: it is, as its records say."""
    LISTING = "listing"
    """Not listed under its status, or under another: it is."""
    GONE = "gone"
    """Listed, and its hash is lost: it is not listed any more."""
    ASLEEP = "asleep"
    """Suspended, and waits for nothing. Left as it is: a resume runs it again."""
    FORGETFUL = "forgetful"
    """Suspended, and its points are lost, with its records. Left as it is: a resume would call all its steps again."""


class ForMending(StoreBase):
    """The operations that look for what is broken; with `mends=False` they only look."""

    async def reconcile(
        self,
        partition: Partition,
        workflow: str,
        status: Status,
        ids: Sequence[str],
        *,
        of_children: bool = False,
        mends: bool = True,
    ) -> list[tuple[str, Broken]]:
        """Mend instances that were looked for under `status`; what of which was broken.

        All of them must be children, or none.
        """
        all_keys = [partition.of(workflow, id) for id in ids]
        arguments = _RECONCILE.bind(
            stream=partition.stream(workflow),
            timers=partition.timers,
            found=partition.index(workflow, status, of_children=of_children),
            **{each.value: partition.index(workflow, each, of_children=of_children) for each in Status},
            instances_and_steps=[key for keys in all_keys for key in (keys.instance, keys.steps)],
            mends=int(mends),
            ids_names_events=[word for keys in all_keys for word in (keys.instance_id, keys.name, keys.events)],
        )
        script = with_keys(_RECONCILE, _RECONCILE.key_count - 1 + 2 * len(ids))
        found = [each.decode() for each in await self.connection.call(script, arguments)]
        return [(id, Broken(what)) for id, what in zip(found[::2], found[1::2], strict=True)]

    async def reconcile_all(
        self,
        partition: Partition,
        workflow: str,
        status: Status,
        ids: Sequence[str],
        *,
        of_children: bool = False,
        mends: bool = True,
    ) -> tuple[list[tuple[str, Broken]], dict[str, ServerRefused]]:
        """The same for each of them, whatever the others are like; and those that Redis has refused to look at."""
        if not ids:
            return [], {}
        try:
            return await self.reconcile(partition, workflow, status, ids, of_children=of_children, mends=mends), {}
        except ServerRefused as error:
            if len(ids) == 1 or error.is_forbidden:
                return [], dict.fromkeys(ids, error)
        found, refused = list[tuple[str, Broken]](), dict[str, ServerRefused]()
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]):
            some, others = await self.reconcile_all(
                partition, workflow, status, half, of_children=of_children, mends=mends
            )
            found += some
            refused |= others
        return found, refused

    async def tidy(
        self, partition: Partition, workflow: str, entries: Sequence[tuple[str, str]], *, mends: bool = True
    ) -> list[str]:
        """Take entries out of a workflow's stream that are not those of the instances they name; which these were.

        `entries`: each with the id of the instance that it names.
        """
        arguments = _TIDY.bind(
            stream=partition.stream(workflow),
            instances=[partition.of(workflow, id).instance for _, id in entries],
            mends=int(mends),
            entries=[entry for entry, _ in entries],
        )
        script = with_keys(_TIDY, _TIDY.key_count - 1 + len(entries))
        return [entry.decode() for entry in await self.connection.call(script, arguments)]

    async def retain(self, keys: InstanceKeys, retention_ms: int, *, mends: bool = True) -> bool:
        """Let an instance that has ended expire, if nothing would ever remove it; whether that was so."""
        answer = await self.connection.call(
            _RETAIN,
            _RETAIN.bind(
                instance=keys.instance,
                steps=keys.steps,
                inbox=keys.inbox,
                family=keys.family,
                expiry=keys.expiry,
                name=keys.name,
                retention_ms=retention_ms,
                mends=int(mends),
            ),
        )
        return bool(answer == Answer.DONE)

    async def bury(self, child: InstanceKeys, parent: InstanceKeys, failure: Outcome, *, mends: bool = True) -> bool:
        """Tell a parent that a child whose hash is lost has failed; whether it would have waited for it."""
        kin = for_parent(parent)
        answer = await self.connection.call(
            with_keys(_BURY, _BURY.key_count - 1 + len(kin["parent"])),
            _BURY.bind(
                **kin,
                child=child.instance,
                timers=child.timers,
                id=child.instance_id,
                error=failure.value,
                mends=int(mends),
            ),
        )
        return bool(answer == Answer.DONE)
