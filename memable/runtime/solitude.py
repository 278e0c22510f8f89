"""Suspects run alone: an instance that kills its worker must be failed, and its neighbours must not be failed for it.

When a worker dies, each of its instances may have been the cause. From the second loss in a row on, an instance runs
without neighbours in its process, for two leases or until it makes progress. Only a loss in which it ran alone can
fail it (recover.lua). A suspect waits until the others of its process have come to rest; meanwhile the process takes
no work, and further suspects are handed back, so that they spread over the fleet instead of waiting in a line.

Many are suspects at once when several processes die one after another, and a fleet whose workers all wait for solitude
takes no work at all. So one at a time is alone in a partition (`solitude`), and the others run in company meanwhile.

Neighbours may take hours to rest, and most suspects are innocent: one waits a lease for solitude, and then runs in
company, where a loss does not fail it. Only the last chance waits, and lasts, without a limit: else what kills its
worker would take others with it for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from memable.errors import StorageError
from memable.holding import LeaseLost
from memable.runtime.intake import Intake
from memable.runtime.rest import End
from memable.runtime.run import Run
from memable.store import Store

_log = logging.getLogger("memable.runtime")

_SUSPECT_FROM = 2
_LEASES_WAITING = 1
_LEASES_ALONE = 2


class Solitude:
    """Lets one suspect at a time have the process for itself."""

    def __init__(
        self, store: Store, intake: Intake, *, lease_s: float, max_recoveries: int, running: Callable[[], int]
    ) -> None:
        self._store, self._intake = store, intake
        self._waiting_s, self._alone_s = _LEASES_WAITING * lease_s, _LEASES_ALONE * lease_s
        self._last_chance = max(1, max_recoveries - 1)
        self._running = running
        self._is_taken = False
        self._someone_ended = asyncio.Event()

    def is_suspect(self, recoveries: int) -> bool:
        """Whether an instance that lost so many runs in a row is to run alone."""
        return recoveries >= min(_SUSPECT_FROM, self._last_chance)

    def on_end(self) -> None:
        """A run of this process has ended."""
        self._someone_ended.set()

    async def carry(self, run: Run, recoveries: int) -> End:
        """As `run.carry`, alone at first; handed back while another suspect waits or runs here. `LeaseLost`."""
        if self._is_taken:
            run.stop(End.HANDED_BACK)
            return End.HANDED_BACK
        self._is_taken = True
        run.on_over = self._someone_ended.set  # one that is another's, or handed back, waits for nothing
        try:
            carrying = await self._begin(run, is_last_chance=recoveries >= self._last_chance)
        finally:
            self._is_taken = False
        return await carrying

    async def _begin(self, run: Run, *, is_last_chance: bool) -> asyncio.Task[End]:
        """Begin to carry the run; return when it may have neighbours, or is over."""
        if is_last_chance:
            return await self._begin_alone(run, None, None)
        partition = run.held.keys.partition
        if not await self._store.enter_solitude(partition, self._waiting_s + self._alone_s):
            return asyncio.get_running_loop().create_task(run.carry())
        try:
            return await self._begin_alone(run, self._waiting_s, self._alone_s)
        finally:
            with suppress(StorageError):  # it ends by itself, and the run goes on
                await self._store.leave_solitude(partition)

    async def _begin_alone(self, run: Run, waiting_s: float | None, alone_s: float | None) -> asyncio.Task[End]:
        await self._intake.hush()
        try:
            is_alone = await self._until_alone(run, waiting_s)
            if is_alone and run.over is None:
                _log.warning("%s has lost several workers in a row: it runs alone for a while", run.name)
                await self._store.isolate(run.held, alone=True)
            carrying = asyncio.get_running_loop().create_task(run.carry())
            try:
                if is_alone:
                    await self._stay_alone(run, carrying, alone_s)
            except Exception:
                run.stop(End.BROKEN)  # else it would go on without a slot, and without a lease that is renewed
                await carrying
                raise
            return carrying
        finally:
            self._intake.unhush()

    async def _until_alone(self, run: Run, limit_s: float | None) -> bool:
        """Whether nothing else runs here any more; also true when the run is over, which needs no solitude."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._running() > 1 and run.over is None:
                    self._someone_ended.clear()
                    await self._someone_ended.wait()
                return True
        return False

    async def _stay_alone(self, run: Run, carrying: asyncio.Task[End], limit_s: float | None) -> None:
        """Return when the run may have neighbours: it has made progress, or ended, or the time is over."""
        cleared = asyncio.Event()
        run.on_progress = cleared.set
        carrying.add_done_callback(lambda _: cleared.set())
        try:
            async with asyncio.timeout(limit_s):
                await cleared.wait()
        except TimeoutError:
            with suppress(LeaseLost):
                await self._store.isolate(run.held, alone=False)
