"""How the tasks of a run that is over come to their end, whatever their author wrote.

They are cancelled once, and then have a moment for their `finally` blocks. Whoever is still there after that is
cancelled again and again for a while: some swallow a cancellation, some are born in a `finally`. The rest is left
alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from memable.runtime.rest import new_future, set_done
from memable.runtime.tasks import RunTasks

_log = logging.getLogger("memable.run")

CLEAN_UP_S: Final = 0.9
"""So long the tasks of a run that is over may clean up."""

_PRESSES: Final = 50
_PRESS_EVERY_S: Final = 0.01
"""How often, and with what pause, they are cancelled after that."""


class Farewell:
    """Sees the tasks of one run off. Many runs come here each second: without tasks it costs nothing."""

    __slots__ = ("_ended", "_name", "_pressing", "_tasks", "_until_s")

    def __init__(self, name: str, tasks: RunTasks) -> None:
        self._name, self._tasks = name, tasks
        self._until_s: float | None = None
        self._ended: asyncio.Future[None] | None = None
        self._pressing: asyncio.TimerHandle | None = None

    async def outlast(self, main: asyncio.Task[Any]) -> None:
        """Return when `main` is done; or, after `limit` or `begin`, when it has had its time."""
        ended = self._ended = new_future()
        main.add_done_callback(lambda _: set_done(ended))
        try:
            await ended
        finally:
            if self._pressing is not None:  # else the loop would keep the whole run until then
                self._pressing.cancel()

    def limit(self) -> None:
        """What `main` returns counts no more: from now on it has a moment, and is waited for no longer."""
        if self._ended is not None:
            self._pressing = asyncio.get_running_loop().call_later(CLEAN_UP_S, set_done, self._ended)

    def begin(self) -> None:
        """The run is over: its tasks are cancelled, and have a moment from now on. Twice is fine."""
        if self._until_s is not None:
            return
        loop = asyncio.get_running_loop()
        self._until_s = loop.time() + CLEAN_UP_S
        for task in self._tasks.tasks:
            task.add_done_callback(_hear)
        _cancel(self._tasks.tasks)
        if self._pressing is not None:
            self._pressing.cancel()
        if self._ended is not None and not self._ended.done():
            self._pressing = loop.call_at(self._until_s, self._press, _PRESSES)

    def _press(self, times: int) -> None:
        _cancel(self._tasks.tasks)
        assert self._ended is not None  # else nothing is pressed
        if times and not self._ended.done():
            self._pressing = asyncio.get_running_loop().call_later(_PRESS_EVERY_S, self._press, times - 1)
        else:
            set_done(self._ended)

    async def end(self) -> None:
        """Return when no task is left, or those that are left have had their time."""
        if not self._tasks.tasks:
            return
        self.begin()
        assert self._until_s is not None
        loop = asyncio.get_running_loop()
        while self._tasks.tasks and (left_s := self._until_s - loop.time()) > 0:
            await _wait(self._tasks.tasks, left_s)
        for _ in range(_PRESSES):
            if not self._tasks.tasks:
                return
            _cancel(self._tasks.tasks)
            await _wait(self._tasks.tasks, _PRESS_EVERY_S)
        if self._tasks.tasks:
            _log.warning(
                "%s: %d of its tasks refuse to be cancelled, and are left alone", self._name, len(self._tasks.tasks)
            )


def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in list(tasks):
        task.cancel()


async def _wait(tasks: Iterable[asyncio.Task[Any]], timeout_s: float) -> None:
    done, _ = await asyncio.wait(set(tasks), timeout=timeout_s)
    for task in done:
        _hear(task)


def _hear(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # told to nobody: the run is over
