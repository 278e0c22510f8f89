"""What a worker leaves behind that died ten minutes ago: it had been given instances, and had claimed some of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from memable.connection import Endpoint
from memable.holding import Held
from memable.keys import Keys
from tests.integration.connecting import connected
from tests.lua.stage import Stage, Wiretap

DEAD = "dead"
_IDLE_MS = 600_000


@asynccontextmanager
async def staged(url: str, namespace: str, *, partitions: int = 1) -> AsyncIterator[Stage]:
    """The namespace of a test, to be played in by hand beside its workers."""
    async with connected(url) as connection:
        yield Stage(Wiretap(connection), Keys(namespace, partitions=partitions), Endpoint.from_url(url))


async def abandon(stage: Stage, workflow: str) -> list[Held]:
    """Make orphans of all instances of `workflow` that are queued: of each two, the dead worker had claimed one."""
    orphans: list[Held] = []
    for partition in stage.keys.partitions:
        orphans += await stage.deliver(partition.of(workflow, "any"), DEAD)
    await asyncio.gather(*(stage.store.claim(held, DEAD) for held in orphans[::2]))
    await asyncio.gather(*(stage.make_idle(held, _IDLE_MS) for held in orphans))
    return orphans
