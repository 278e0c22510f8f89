"""Suspects run alone: an instance that kills its worker must be failed, and its neighbours must not be failed for it.

When a worker dies, each of its instances may have been the cause. From the second loss in a row on, an instance runs
without neighbours in its process, for two leases or until it makes progress. Only a loss in which it ran alone can
fail it (recover.lua). A suspect waits until the others of its process have come to rest; meanwhile the process takes
no work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from memable.runtime.intake import Intake
from memable.runtime.run import End, Run
from memable.store import LeaseLost, Store

_log = logging.getLogger("memable.runtime")

_SUSPECT_FROM = 2
_LEASES_ALONE = 2


class Solitude:
    """Lets one suspect at a time have the process for itself."""

    def __init__(
        self, store: Store, intake: Intake, *, lease_s: float, max_recoveries: int, running: Callable[[], int]
    ) -> None:
        self._store, self._intake = store, intake
        self._alone_s = _LEASES_ALONE * lease_s
        self._last_chance = max(1, max_recoveries - 1)
        self._running = running
        self._one = asyncio.Lock()
        self._suspects = 0
        self._someone_ended = asyncio.Event()

    def is_suspect(self, recoveries: int) -> bool:
        """Whether an instance that lost so many runs in a row is to run alone."""
        return recoveries >= min(_SUSPECT_FROM, self._last_chance)

    def on_end(self) -> None:
        """A run of this process has ended."""
        self._someone_ended.set()

    async def carry(self, run: Run, recoveries: int) -> End:
        """As `run.carry`, alone at first. `LeaseLost`."""
        self._suspects += 1
        try:
            async with self._one:
                await self._intake.hush()
                try:
                    await self._until_alone(run)
                    carrying = await self._begin_alone(run, recoveries)
                finally:
                    self._intake.unhush()
        finally:
            self._suspects -= 1
            self._someone_ended.set()
        return await carrying

    async def _until_alone(self, run: Run) -> None:
        while self._running() > self._suspects and run.over is None:
            self._someone_ended.clear()
            await self._someone_ended.wait()

    async def _begin_alone(self, run: Run, recoveries: int) -> asyncio.Task[End]:
        """Carry the run, and return when it may have neighbours again, or has ended."""
        if run.over is None:
            _log.warning("%s has lost %d workers in a row: it runs alone for a while", run.name, recoveries)
            await self._store.isolate(run.held, alone=True)
        cleared = asyncio.Event()
        run.on_progress = cleared.set
        carrying = asyncio.get_running_loop().create_task(run.carry())
        carrying.add_done_callback(lambda _: cleared.set())
        # the last chance has no end but progress: else what kills its worker late would kill others with it for ever
        limit_s = None if recoveries >= self._last_chance else self._alone_s
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await cleared.wait()
        if not cleared.is_set():
            with suppress(LeaseLost):
                await self._store.isolate(run.held, alone=False)
        return carrying
