"""`memable worker --processes N`: a parent that starts worker processes, replaces the dead, and ends with them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memable.cli.lifeline import Lifeline
from memable.cli.root import FINE, WRONG

_log = logging.getLogger("memable.fleet")

_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0
_STEADY_AFTER_S: Final = 60.0
"""A process that lived as long starts the back-off anew: it was able to work."""


@dataclass(slots=True)
class _Place:
    """One of the processes, and those that come after it."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0


def back_off_s(deaths: int) -> float:
    """How long a place stays empty after so many deaths in a row.

    >>> [back_off_s(deaths) for deaths in (1, 2, 3, 10)]
    [0.5, 1.0, 2.0, 30.0]
    """
    return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(deaths - 1, 10))


class Fleet:
    """Worker processes that do the same; `run` returns when all have ended, and ends them whatever happens."""

    def __init__(
        self, arguments: Sequence[str], processes: int, *, is_burst: bool, metrics_port: int | None = None
    ) -> None:
        """`metrics_port` is that of the first process; each further one has the next, unless it is 0."""
        self._arguments = list(arguments)
        self._places = [_Place(number) for number in range(1, processes + 1)]
        self._is_burst = is_burst
        self._metrics_port = metrics_port
        self._stopping = asyncio.Event()
        self._code = FINE

    async def run(self) -> int:
        """Start all, and stay until a signal, or in a burst until all are done: 0, or the code of one that failed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on, number)
        with Lifeline() as lifeline:
            await asyncio.gather(*(self._keep(place, lifeline) for place in self._places))
        return self._code

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping.set()
        for place in self._places:
            if place.process is not None and place.process.returncode is None:
                place.process.send_signal(number)

    def _environment(self, place: _Place) -> dict[str, str] | None:
        if not self._metrics_port:
            return None
        return {**os.environ, "MEMABLE_METRICS_PORT": str(self._metrics_port + place.number - 1)}

    async def _keep(self, place: _Place, lifeline: Lifeline) -> None:
        is_first = True
        while not self._stopping.is_set():
            began_s = time.monotonic()
            place.process = lifeline.start_worker(self._arguments, environment=self._environment(place))
            _log.info("worker process %d is pid %d", place.number, place.process.pid)
            code = await asyncio.to_thread(place.process.wait)
            if self._stopping.is_set() or (self._is_burst and code == FINE):
                return
            if is_first and code == WRONG:
                # it has said why: what is wrong with one is wrong with all, and trying again mends nothing
                self._code = code
                self._pass_on(signal.SIGTERM)
                return
            is_first = False
            place.deaths = 1 if time.monotonic() - began_s > _STEADY_AFTER_S else place.deaths + 1
            delay_s = back_off_s(place.deaths)
            _log.warning(
                "worker process %d (pid %d) %s; another starts in %g s",
                place.number,
                place.process.pid,
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}",
                delay_s,
            )
            try:
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            except TimeoutError:
                continue
