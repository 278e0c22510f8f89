"""The faults: bursts of them, and a calm after each that is long enough for everything to move again.

Without the calms a stall could hide: another fault would always be at hand to explain it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from chaos.evidence import Fault, Kind
from chaos.fleet import Fleet, Place
from chaos.stalls import BEYOND_LEASE_S, SUSPECT_WAITS_LEASES
from memable.embedded import TemporaryServer
from tests.proxy import Cut, Proxy

WEIGHTS: Final[Mapping[Kind, int]] = {
    Kind.KILL: 4,
    Kind.STOP: 3,
    Kind.PAUSE: 2,
    Kind.TERM: 2,
    Kind.SERVER: 2,
    Kind.CUT_REQUEST: 2,
    Kind.CUT_REPLY: 3,
    Kind.CUT_INSIDE: 2,
    Kind.CUT_ALL: 1,
}
"""How often each kind comes."""

_CUTS: Final = {Kind.CUT_REQUEST: Cut.REQUEST, Kind.CUT_REPLY: Cut.REPLY, Kind.CUT_INSIDE: Cut.INSIDE_REPLY}

BURST: Final = 12
"""How many faults come one soon after another."""
_APART_S: Final = (0.05, 0.8)
_SERVER_AWAY_S: Final = (0.0, 1.5)
_CUT_WITHIN_S: Final = 1.0
STOPPED_LEASES: Final = (1.2, 2.0)
"""For how long a worker is stopped, of a lease: at least and at most."""


class Storm:
    """Faults by a seed, until it is told that the time is over; `faults` is what has been done."""

    def __init__(
        self,
        seed: int,
        fleet: Fleet,
        server: TemporaryServer,
        proxies: Sequence[Proxy],
        *,
        lease_s: float,
        kinds: Collection[Kind],
        burst: int = BURST,
        stopped_leases: tuple[float, float] = STOPPED_LEASES,
    ) -> None:
        self._random = random.Random(seed)
        self._fleet, self._server, self._proxies = fleet, server, proxies
        self._lease_s, self._burst, self._stopped_leases = lease_s, burst, stopped_leases
        self._calm_s = (1 + SUSPECT_WAITS_LEASES) * lease_s + BEYOND_LEASE_S + 1
        self._kinds = [kind for kind in WEIGHTS if kind in kinds]
        self._one_server = asyncio.Lock()
        self.faults: list[Fault] = []

    async def rage(self, seconds: float) -> None:
        """Bursts and calms for so long; returns when the last fault is over."""
        ends_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < ends_s:
                for _ in range(self._burst):
                    if time.monotonic() > ends_s:
                        break
                    (kind,) = self._random.choices(self._kinds, [WEIGHTS[each] for each in self._kinds])
                    tasks.create_task(self._do(kind))
                    await asyncio.sleep(self._random.uniform(*_APART_S))
                await asyncio.sleep(min(self._calm_s, max(0.0, ends_s - time.monotonic())))

    async def _do(self, kind: Kind) -> None:
        match kind:
            case Kind.KILL | Kind.TERM | Kind.STOP | Kind.PAUSE:
                free = [place for place in self._fleet.places if not place.is_busy]
                if free:
                    await self._hit(kind, self._random.choice(free))
            case Kind.SERVER:
                if not self._one_server.locked():
                    await self._restart(self._random.uniform(*_SERVER_AWAY_S))
            case Kind.CUT_ALL:
                proxy = self._random.choice(self._proxies)
                proxy.cut()
                self._note(kind, time.time(), self._behind(proxy))
            case _:
                await self._cut(kind, self._random.choice(self._proxies))

    async def _hit(self, kind: Kind, place: Place) -> None:
        begun_s, pid = time.time(), place.pid
        place.is_busy = True
        try:
            match kind:
                case Kind.KILL:
                    await self._fleet.empty(place, signal.SIGKILL)
                    self._note(kind, begun_s, pid)
                    self._fleet.fill(place)
                case Kind.TERM:
                    signals = [signal.SIGTERM] * self._random.choice([1, 1, 2])
                    await self._fleet.empty(place, *signals)
                    self._note(kind, begun_s, pid)
                    self._fleet.fill(place)
                case _:
                    leases = self._stopped_leases if kind is Kind.STOP else (0.1, 0.6)
                    place.process.send_signal(signal.SIGSTOP)
                    try:
                        await asyncio.sleep(self._lease_s * self._random.uniform(*leases))
                    finally:
                        place.process.send_signal(signal.SIGCONT)
                    self._note(kind, begun_s, pid)
        finally:
            place.is_busy = False

    async def _restart(self, away_s: float) -> None:
        async with self._one_server:
            begun_s = time.time()
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(away_s)
            await asyncio.to_thread(self._server.start)
            self._note(Kind.SERVER, begun_s)

    async def _cut(self, kind: Kind, proxy: Proxy) -> None:
        try:
            await asyncio.wait_for(proxy.cut_next(_CUTS[kind]), _CUT_WITHIN_S)
        except TimeoutError:
            return  # nothing has passed meanwhile
        self._note(kind, time.time(), self._behind(proxy))

    def _behind(self, proxy: Proxy) -> int | None:
        """The worker that reaches Redis through the proxy; none if it is the client."""
        return next((place.pid for place in self._fleet.places if place.url == proxy.url), None)

    def _note(self, kind: Kind, begun_s: float, pid: int | None = None) -> None:
        self.faults.append(Fault(kind, begun_s, time.time(), pid))
