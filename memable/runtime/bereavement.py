"""Children that outlive their parent: whoever ends a parent leaves the living ones to the leader, which cancels them.

There may be ten thousand, so that no script could do it at once; and a leader has timers to fire meanwhile, so that
this is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from memable.connection import ScriptConnection, ServerRefused
from memable.damage import Damaged
from memable.errors import StorageError
from memable.family import cancel_bereft, living_in
from memable.keys import InstanceKeys, Partition, split_bereaved
from memable.runtime.logs import about
from memable.store import Store

_log = logging.getLogger("memable.leader")

_AT_ONCE: Final = 200


class Bereavement:
    """Works off the `bereaved` of one partition, whenever it is called."""

    def __init__(
        self,
        store: Store,
        connection: ScriptConnection,
        partition: Partition,
        *,
        retention_ms: Callable[[str], Awaitable[int]],
    ) -> None:
        self._store, self._connection, self._partition = store, connection, partition
        self._retention_ms = retention_ms
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, unless it is at it."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """What is not done yet is done by the next leader."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        bereaved = self._partition.bereaved
        try:
            found = await self._connection.command("ZRANGE", bereaved, 0, _AT_ONCE - 1, "WITHSCORES")
            for member, score in zip(found[::2], found[1::2], strict=True):
                await self._console(member, score)
        except StorageError as error:
            _log.warning("the children of ended parents in %s: %s", self._partition.prefix, error)

    async def _console(self, member: bytes, score: bytes) -> None:
        try:
            workflow, instance_id, life = split_bereaved(member.decode())
        except ValueError:
            _log.error("removed what is no instance: %r in %s", member, self._partition.bereaved)
            await self._connection.command("ZREM", self._partition.bereaved, member)
            return
        parent = self._partition.of(workflow, instance_id)
        try:
            await self._cancel_children(parent, life)
        except (Damaged, ServerRefused) as error:
            _log.error(
                "the children of %s, which is over, cannot be cancelled: %s",
                parent.name,
                error,
                extra=about(parent.name),
            )
        await self._store.console(parent, life, member.decode(), score.decode())

    async def _cancel_children(self, parent: InstanceKeys, life: str) -> None:
        now = await self._connection.command("HGET", parent.instance, "life")
        is_of_this_life = now is not None and now.decode() == life
        living = await living_in(self._store, parent, life, parent.family if is_of_this_life else None)
        for first in range(0, len(living), _AT_ONCE):
            chunk = living[first : first + _AT_ONCE]
            retentions = {each: await self._retention_ms(each) for each in {child.workflow for child in chunk}}
            await asyncio.gather(
                *(cancel_bereft(self._store, child, parent, retentions[child.workflow]) for child in chunk)
            )
