"""The worker processes: real ones, `memable worker chaos.app:app`, each in a place that is filled again when empty."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from chaos.plain import POISONED
from memable.cli.lifeline import Lifeline

ROOT: Final = Path(__file__).parent.parent
_END_WITHIN_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.1


class Place:
    """Where a worker process works, reaching Redis under `url`."""

    def __init__(self, number: int, url: str) -> None:
        self.number, self.url = number, url
        self.is_busy = False
        """Whether a fault is at it, or its end is awaited: it is left alone meanwhile."""
        self.process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid


class Fleet:
    """One worker process in each place, from entering to leaving; none outlives this process, whatever kills it."""

    def __init__(self, directory: Path, urls: Sequence[str], environment: Mapping[str, str]) -> None:
        self._directory = directory
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MEMABLE_", "CHAOS_"))}
        if (server := os.environ.get("MEMABLE_REDIS_SERVER")) is not None:
            own["MEMABLE_REDIS_SERVER"] = server
        self._environment = {**own, **environment}
        self.places = [Place(number, url) for number, url in enumerate(urls)]
        self.logs: dict[int, Path] = {}
        """By process, of all that were ever started."""
        self.gone_s: dict[int, float] = {}
        """By process: when it was gone, or seen to be."""
        self.deaths: list[str] = []
        """What nobody asked for, as sentences."""
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        self._lifeline = self._exits.enter_context(Lifeline())
        self._exits.callback(self._kill_all)
        try:
            for place in self.places:
                self.fill(place)
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def fill(self, place: Place) -> None:
        """Start a process in an empty place."""
        log = self._directory / f"worker-{len(self.logs) + 1}.log"
        with log.open("wb") as output:
            place.process = self._lifeline.start_worker(
                ["chaos.app:app"],
                environment={**self._environment, "MEMABLE_REDIS_URL": place.url},
                directory=ROOT,
                output=output,
            )
        self.logs[place.pid] = log

    async def supervise(self) -> None:
        """Note which processes have ended, although nobody was at them, and fill their places; until cancelled."""
        while True:
            for place in self.places:
                if not place.is_busy and (code := place.process.poll()) is not None:
                    self._note_end(place.pid, code)
                    self.fill(place)
            await asyncio.sleep(_LOOK_EVERY_S)

    def _note_end(self, pid: int, code: int) -> None:
        self.gone_s[pid] = time.time()
        if code != POISONED:
            said = self.logs[pid].read_text(errors="replace").strip()
            last_words = said.splitlines()[-1] if said else "without a word"
            self.deaths.append(f"worker {pid} ended with {code}: {last_words}")

    async def empty(self, place: Place, *signals: signal.Signals, apart_s: float = 0.3) -> None:
        """Send `signals` to the process, and return when it is gone; killed, if it does not go by itself."""
        await self._end(place, signals, apart_s)
        self.gone_s[place.pid] = time.time()

    async def _end(self, place: Place, signals: Sequence[signal.Signals], apart_s: float) -> None:
        for number in signals:
            place.process.send_signal(number)
            try:
                await asyncio.to_thread(place.process.wait, apart_s)
            except subprocess.TimeoutExpired:
                continue
            return
        try:
            await asyncio.to_thread(place.process.wait, _END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.deaths.append(f"worker {place.pid} has not ended within {_END_WITHIN_S:g} s of {signals[-1].name}")
            place.process.kill()
            await asyncio.to_thread(place.process.wait)

    async def dismiss(self) -> None:
        """Tell all to stop, and return when all are gone."""
        for place in self.places:
            place.is_busy = True
        await asyncio.gather(*(self.empty(place, signal.SIGTERM) for place in self.places))

    def _kill_all(self) -> None:
        for place in self.places:
            if hasattr(place, "process") and place.process.poll() is None:
                place.process.kill()
                place.process.wait()
