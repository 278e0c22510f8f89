"""How a run comes to rest: it waits at points, opens them for signals and timers, parks when nothing moves any more.

The run counts the durable calls that are in flight and the points that are waited for. When nothing is in flight,
something is waited for, and no task of the run shows a sign of life, one script parks the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from memable.codec import TypeCodec
from memable.errors import presentable
from memable.holding import AnyPoint, Held, Member, Point
from memable.journal import Journal
from memable.runtime.tasks import RunTasks
from memable.state import StepKind
from memable.store import Store

_log = logging.getLogger("memable.run")

QUIET_TURNS = 5
"""Turns without a sign of life after which the tasks are looked at: enough for a wait_for or a TaskGroup to wake."""

_LIVELY_TURNS = 10_000
"""Turns after which a run that never gets quiet is taken to spin: far more than any nesting of gathers needs."""


class End(Enum):
    """Why a run is over, or is about to be."""

    RETURNED = "its function returned or raised"
    PARKED = "it has parked"
    LOST = "it lost its lease"
    HANDED_BACK = "it was handed back"
    BROKEN = "its storage failed"


class RunOver(BaseException):
    """Refuses durable calls of a run that is over. Not an Exception: no author's `except Exception` may swallow it."""


@dataclass(slots=True, eq=False)
class Wait:
    """A durable call that waits."""

    key: str
    kind: StepKind
    codec: TypeCodec
    future: asyncio.Future[bytes]
    asked_s: float
    status: str | None = None
    after_s: float | None = None
    at_ms: float | None = None
    mailbox: str = ""
    choice: str = ""
    """The key of the `first` whose member it is."""
    members: tuple[Member, ...] = ()
    """Of a `first`, which waits beside its members."""

    @property
    def is_back_off(self) -> bool:
        return False

    @property
    def is_choice(self) -> bool:
        return self.kind is StepKind.CHOICE

    def point(self) -> Point:
        return Point(
            self.key,
            self.kind,
            self.codec.tag,
            sorted(self.codec.json_types),
            after_ms=None if self.after_s is None else self.after_s * 1000,
            at_ms=self.at_ms,
            # a run that lingers before it parks must not make its timers late
            elapsed_ms=int((time.monotonic() - self.asked_s) * 1000),
            mailbox=self.mailbox,
            choice=self.choice,
            members=self.members,
        )


class Waiting(Protocol):
    """What `Rest` needs of what waits: a `Wait`, a step between attempts (retrying.py), a call (children.py)."""

    @property
    def key(self) -> str: ...

    @property
    def future(self) -> asyncio.Future[bytes]: ...

    @property
    def status(self) -> str | None: ...

    @property
    def is_back_off(self) -> bool: ...

    @property
    def is_choice(self) -> bool: ...

    def point(self) -> AnyPoint: ...


class RestingRun(Protocol):
    """What `Rest` needs of its run."""

    name: str
    held: Held
    over: End | None

    def stop(self, end: End) -> None: ...

    def do_outside(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[None]: ...


class Rest:
    """What a run has in flight and what it waits for; parks it."""

    def __init__(self, run: RestingRun, store: Store, journal: Journal, tasks: RunTasks, park_grace_s: float) -> None:
        self._run, self._store, self._journal, self._tasks = run, store, journal, tasks
        self._park_grace_s = park_grace_s
        self._in_flight = 0
        self._landed: asyncio.Future[None] | None = None
        self._waits: dict[str, Waiting] = {}
        self._opened: set[str] = set()
        self._withdrawn: list[str] = []
        self._checker: asyncio.Task[None] | None = None
        self._parking: asyncio.Future[None] | None = None
        self._stirred: asyncio.Future[None] | None = None
        self._has_news = False
        self._is_closed = False
        self._last_event_s = time.monotonic()
        self.choices: dict[str, str] = {}
        """Keys of calls that race, and of the `first` in which they do."""
        self._lost: set[str] = set()
        """Keys of those that have lost, and of each `first` that is decided: their points are withdrawn already."""

    # ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def wait_for(self, wait: Waiting, *, was_open: bool) -> bytes:
        """The record that completes the point. An author who cancels this closes it; `was_open`: by an earlier run."""
        key = wait.key
        if key in self._lost:
            raise asyncio.CancelledError  # a step that has lost and failed is not called again
        if isinstance(wait, Wait):
            wait.choice = self.choices.get(key, "")
        self._waits[key] = wait
        self._tasks.own_futures.add(wait.future)
        self.changed()
        try:
            return await wait.future
        except asyncio.CancelledError:
            if self._run.over is None and key not in self._lost:
                self._give_up(wait, was_open=was_open)
            raise
        finally:
            self._waits.pop(key, None)
            self._tasks.own_futures.discard(wait.future)
            self.changed()

    def _give_up(self, wait: Waiting, *, was_open: bool) -> None:
        """The author cancelled a wait: the checker closes its point, and waiting again opens it again."""
        if wait.future.done() and not wait.future.cancelled():
            if record := wait.future.result():
                self._journal.add(wait.key, record)  # it was completed in the same turn
            return
        self._journal.drop(wait.key)
        if was_open or wait.key in self._opened:
            self._opened.discard(wait.key)
            self._withdrawn.append(wait.key)

    @contextmanager
    def waiting_inside(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """While somebody waits for `future`, which only the run itself decides."""
        self._tasks.own_futures.add(future)
        try:
            yield
        finally:
            self._tasks.own_futures.discard(future)

    def has_chosen(self, key: str, losers: Collection[str]) -> None:
        """The `first` of this key is decided: neither it nor those who have lost wait for anything any more."""
        self._lost.update((key, *losers))
        for each in (key, *losers):
            self._opened.discard(each)
            self._waits.pop(each, None)
        for each in losers:
            if not self._journal.has_ended(each):
                self._journal.drop(each)
        self.changed()

    def call_no_more(self, steps: Iterable[str]) -> None:
        """Those of these steps that wait for their next attempt, or will, are not called again."""
        for key in steps:
            self._lost.add(key)
            wait = self._waits.pop(key, None)
            if wait is None:
                continue
            if key in self._opened or self._journal.is_open(key):
                self._opened.discard(key)
                self._withdrawn.append(key)
            wait.future.cancel()
        self.changed()

    def is_waited_for(self, key: str) -> bool:
        """Whether the call of `key` waits at a point, or for its next attempt."""
        return key in self._waits

    async def parking_over(self) -> None:
        """Waits until no park is on its way: a step that starts meanwhile would be refused later, its effect done."""
        while self._parking is not None:
            await asyncio.shield(self._parking)  # an author who gives up on this call must not cancel it for others

    @property
    def is_parking(self) -> bool:
        """Whether a park is on its way."""
        return self._parking is not None

    # ── in flight, and signs of life ─────────────────────────────────────────────────────────────────────────────

    def takes_off(self) -> None:
        """A durable call is in flight: the run does not park until it lands."""
        self._in_flight += 1

    @contextmanager
    def flying(self) -> Iterator[None]:
        """From `takes_off` to `lands`."""
        self.takes_off()
        try:
            yield
        finally:
            self.lands()

    def lands(self) -> None:
        """A durable call has ended."""
        self._in_flight -= 1
        self._last_event_s = time.monotonic()
        if self._landed is not None and not self._in_flight:
            self.let_go()
        self.changed()

    def changed(self) -> None:
        """Something happened: look whether the run can come to rest, once nothing moves any more."""
        self._tasks.life += 1
        if self._stirred is not None and not self._stirred.done():
            self._stirred.set_result(None)
        if (self._waits or self._withdrawn) and self._may_begin_to_rest():
            self._checker = self._run.do_outside(self._come_to_rest())

    def _may_begin_to_rest(self) -> bool:
        return self._has_points() and self._run.over is None and not is_busy(self._checker)

    def close(self) -> None:
        """Never come to rest any more, nor open or close a point: the script that ends the life withdraws them all."""
        self._is_closed = True

    def _has_points(self) -> bool:
        """Whether something is waited for, or was given up and has yet to be closed."""
        return bool(self._waits or self._withdrawn) and not self._is_closed

    def _has_members(self) -> bool:
        """Whether something is waited for that can come; a `first` is decided by what its members wait for."""
        return any(not wait.is_choice for wait in self._waits.values())

    @property
    def backs_off(self) -> bool:
        """Whether a step waits for its next attempt."""
        return any(wait.is_back_off for wait in self._waits.values())

    @property
    def is_in_flight(self) -> bool:
        """Whether a durable call is in flight."""
        return self._in_flight > 0

    async def all_landed(self) -> None:
        """Waits until nothing is in flight, or `let_go`."""
        self._landed = new_future()
        await self._landed

    def let_go(self) -> None:
        """Wait no more for what is in flight: the run is over."""
        if self._landed is not None:
            set_done(self._landed)

    async def _come_to_rest(self) -> None:
        """The checker. It lives while something is waited for and it has something to do; `changed` starts it.

        It alone opens points, withdraws them and parks, by one call at a time: of two on their way, Redis could refuse
        the first for a while (OOM) and carry out the second, and what the first was to do would never be done.
        """
        try:
            turns = 0
            while self._has_points() and self._run.over is None:
                life = self._tasks.life
                for _ in range(QUIET_TURNS):
                    await asyncio.sleep(0)
                turns += QUIET_TURNS
                if not self._has_points() or self._run.over is not None:
                    return
                unopened = [wait for key, wait in self._waits.items() if key not in self._opened]
                has_news, self._has_news = self._has_news, False
                if has_news and len(unopened) < len(self._waits):
                    await self._open(list(self._waits.values()))
                    turns = 0
                elif self._in_flight or not self._has_members():
                    if not (unopened or self._withdrawn):
                        return  # the end of the last call in flight starts another checker
                    await self._open(unopened)
                    turns = 0
                elif life != self._tasks.life or self._tasks.any_decided():
                    if self._may_linger(turns):
                        continue
                    _log.warning(
                        "%s parks although a task never rests outside of a step: what it does is lost", self._run.name
                    )
                    await self._park()
                elif (foreign := self._tasks.foreign_wait()) is not None:
                    if unopened or self._withdrawn:
                        await self._open(unopened)
                    elif (left_s := self._grace_left_s()) > 0:
                        await self._stir_or_timeout(left_s)
                        turns = 0
                    else:
                        _log.warning(
                            "%s parks while %s waits outside of a step: that wait is dropped, and repeated on replay",
                            self._run.name,
                            foreign,
                        )
                        await self._park()
                else:
                    await self._park()
        finally:
            self._checker = None

    def _grace_left_s(self) -> float:
        return self._last_event_s + self._park_grace_s - time.monotonic()

    def _may_linger(self, turns: int) -> bool:
        # time alone would not do: a loop blocked by another run gives this one no turn
        return turns < _LIVELY_TURNS or self._grace_left_s() > 0

    async def _stir_or_timeout(self, timeout_s: float) -> None:
        self._stirred = new_future()
        timer = asyncio.get_running_loop().call_later(timeout_s, set_done, self._stirred)
        try:
            await self._stirred
        finally:
            timer.cancel()
            self._stirred = None

    # ── opening, parking, delivering ─────────────────────────────────────────────────────────────────────────────

    async def _open(self, waits: Sequence[Waiting]) -> None:
        """Without parking: let signals and timers find these points already, and no more those that were given up."""
        withdrawn, self._withdrawn = self._withdrawn, []
        self._opened.update(wait.key for wait in waits)
        points = [wait.point() for wait in self._in_order(waits)]
        self._deliver(await self._store.open(self._run.held, points, withdrawn))

    @staticmethod
    def _in_order(waits: Iterable[Waiting]) -> list[Waiting]:
        # each `first` before its members, one of which may be completed as soon as it is opened, and decides; then what
        # people are told: what is waited for at a point, rather than what is tried again by itself
        return sorted(waits, key=lambda wait: (not wait.is_choice, wait.is_back_off))

    async def park_for_back_offs(self) -> None:
        """The function has ended, and nothing but the next attempts of steps is waited for."""
        given_up = [key for key, wait in self._waits.items() if not wait.is_back_off and key in self._opened]
        self._withdrawn += given_up
        await self._park_at([wait for wait in self._waits.values() if wait.is_back_off])

    async def _park(self) -> None:
        await self._park_at(self._in_order(self._waits.values()))

    async def _park_at(self, waits: Sequence[Waiting]) -> None:
        withdrawn, self._withdrawn = self._withdrawn, []
        # open since an earlier run, and not waited for any more: a signal to it would be accepted, and never read
        keys = {wait.key for wait in waits}
        withdrawn += (key for key in self._journal.open_keys() if key not in keys and key not in withdrawn)
        self._opened.update(keys)
        self._parking = new_future()
        try:
            shown = next(wait for wait in waits if not wait.is_choice)
            satisfied = await self._store.park(
                self._run.held, [wait.point() for wait in waits], withdrawn, presentable(shown.status or "")
            )
            if not satisfied:
                self._run.stop(End.PARKED)
            for key in withdrawn:
                self._journal.drop(key)
            self._deliver(satisfied)
        finally:
            parking, self._parking = self._parking, None
            parking.set_result(None)

    def _deliver(self, satisfied: Mapping[str, bytes]) -> None:
        for key, raw in satisfied.items():
            self._opened.discard(key)
            wait = self._waits.get(key)
            if wait is not None and not wait.future.done():
                wait.future.set_result(raw)
            elif raw:
                self._journal.add(key, raw)
            else:  # children that are decided: whoever waits for them again reads how
                self._journal.drop(key)
        if satisfied:
            self._last_event_s = time.monotonic()
            self._tasks.life += 1

    def on_news(self) -> None:
        """A signal or a timer completed a point of this run while it goes on."""
        self._has_news = True
        self.changed()


def new_future() -> asyncio.Future[Any]:
    """A future of the running loop."""
    return asyncio.get_running_loop().create_future()


def is_busy(task: asyncio.Task[None] | None) -> bool:
    """Whether there is a task that goes on."""
    # not only "is not None": an eager task can be over before it is assigned
    return task is not None and not task.done()


def set_done(future: asyncio.Future[None]) -> None:
    """Let those go on who wait for `future`."""
    if not future.done():
        future.set_result(None)
