"""`ctx.first`: several durable calls race; the one that is done first is chosen once and for all, the others have lost.

Whatever script completes a member that waits (a signal, a deadline, a message) writes the choice in the same step, and
withdraws the other members: nobody is told "accepted" for a signal that nobody will read, and if the run dies before it
hears of it, nothing is undecided. A member that is a step or a child, or has a record from before, is proposed by the
run (script `choose`) once it is recorded; when a signal was accepted in between, that one is the choice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from typing import Any, Protocol

from memable.codec import TypeCodec
from memable.durable_call import DurableCall
from memable.errors import DuplicateStep, StepConflict
from memable.holding import Held, Member
from memable.journal import RECORDED_ERRORS, Draft, Journal, Record
from memable.runtime.rest import End, Rest, RunOver, Wait, new_future, set_done
from memable.state import StepKind
from memable.store import Store

Calls = Mapping[str, DurableCall[Any]]


class RacingRun(Protocol):
    """What a `first` needs of its run."""

    name: str
    held: Held
    rest: Rest
    over: End | None

    def do_outside(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[None]: ...


class Races:
    """What the `first` calls of one run share."""

    def __init__(
        self,
        run: RacingRun,
        store: Store,
        journal: Journal,
        recordings: dict[str, asyncio.Task[None]],
        lost: dict[str, str],
        names: TypeCodec,
        loser_grace_s: float,
    ) -> None:
        self.run, self.store, self.journal, self.recordings, self.names = run, store, journal, recordings, names
        self.lost, self.loser_grace_s = lost, loser_grace_s


class Race:
    """One call of `first`, until it is over."""

    def __init__(self, races: Races, key: str, calls: Calls) -> None:
        self._races, self._run, self._rest = races, races.run, races.run.rest
        self._key, self._calls = key, calls
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._wait: Wait | None = None
        self._waiting: asyncio.Task[bytes] | None = None
        self._asked_s = time.monotonic()

    def check_unused(self, used: Collection[str]) -> None:
        """`DuplicateStep` for a member that cannot be called, also in a replay that does not call it."""
        seen: set[str] = set()
        for call in self._calls.values():
            lost_in = self._races.lost.get(call.key, self._key)
            if call.key in seen or call.key in used or lost_in != self._key:
                raise DuplicateStep(f"{call.key!r}, a call of first {self._key!r} of {self._run.name},", call.key)
            seen.add(call.key)

    # ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────

    async def decided(self, *, was_open: bool) -> Record:
        """The choice, whoever made it. `was_open`: an earlier run waited for it."""
        ended_as = self._races.journal.ended_as
        with_record = next((name for name, call in self._calls.items() if ended_as(call.key) is call.kind), None)
        if with_record is not None:  # the run that recorded it died before it could propose it
            return await self._propose(with_record)
        self._start(was_open=was_open)
        await self._until_any_is_done()
        if self._wait is not None and self._wait.future.done():
            # shown together with the member that was completed: the script that did so has chosen
            return self._races.journal.add(self._key, self._wait.future.result())
        name, task = next((name, task) for name, task in self._tasks.items() if task.done())
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and type(error).__name__ not in RECORDED_ERRORS:
            raise error  # refused, and nothing recorded of it: nothing is chosen
        return await self._propose(name)

    def _start(self, *, was_open: bool) -> None:
        loop = asyncio.get_running_loop()
        if any(call.kind is not StepKind.STEP for call in self._calls.values()):
            names = self._races.names
            self._wait = Wait(
                self._key, StepKind.CHOICE, names, new_future(), self._asked_s, members=tuple(self._members())
            )
            # in this order: no member may be opened, and completed, before Redis knows that they race
            self._rest.choices.update((call.key, self._key) for call in self._calls.values())
            self._waiting = loop.create_task(self._rest.wait_for(self._wait, was_open=was_open))
        for name, call in self._calls.items():
            self._tasks[name] = loop.create_task(call)

    def _members(self) -> Iterator[Member]:
        for name, call in self._calls.items():
            # not str(): that of an enum's member is another
            raw = self._races.names.encode(str.__str__(name), f"a name in first {self._key!r} of {self._run.name}")
            yield Member(call.kind, call.key, Draft.completed(StepKind.CHOICE, self._races.names.tag, raw))

    async def _until_any_is_done(self) -> None:
        # no asyncio.wait: it waits for a future of its own, which looks as if something outside of the run decided it
        any_done = new_future()
        for task in [*self._tasks.values(), *([] if self._waiting is None else [self._waiting])]:
            task.add_done_callback(lambda _: set_done(any_done))
        with self._rest.waiting_inside(any_done):
            await any_done

    async def _propose(self, name: str) -> Record:
        """Choose this one, unless another was chosen meanwhile."""
        await self._rest.parking_over()
        if self._run.over is not None:
            raise RunOver(f"first {self._key!r} of {self._run.name}: the run is over: {self._run.over.value}")
        answer = new_future()
        self._rest.takes_off()
        self._races.recordings[self._key] = self._run.do_outside(self._choose(self._calls[name], answer))
        record: Record = await answer
        return record

    async def _choose(self, proposed: DurableCall[Any], answer: asyncio.Future[Record]) -> None:
        """Outside of the author's tasks: once on its way, the choice cannot be taken back."""
        try:
            elapsed_ms = (time.monotonic() - self._asked_s) * 1000
            members = list(self._members())
            raw = await self._races.store.choose(self._run.held, self._key, members, proposed.key, elapsed_ms)
            record = self._races.journal.add(self._key, raw)
            is_other = not any(each.key == proposed.key and each.chosen.is_recorded_in(raw) for each in members)
            if not answer.done():
                answer.set_result(record)
        finally:
            self._races.recordings.pop(self._key, None)
            self._rest.lands()
        if is_other:  # it was a signal that came first, and its payload is still to be read
            self._rest.on_news()

    # ── after it ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def settle(self, chosen: str) -> tuple[str, Any]:
        """The name and what the chosen call hands back, or raises; the others have lost."""
        name = next((name for name in self._calls if name == chosen), None)
        if name is None:
            raise StepConflict(
                f"first {self._key!r} of {self._run.name}: the choice was recorded as {chosen!r}, which is not among "
                f"its calls any more ({', '.join(map(repr, self._calls))}): choose a new key for another set of calls",
                self._key,
            )
        losers = {each: call for each, call in self._calls.items() if each != name}
        waiting = {each for each, call in losers.items() if self._rest.is_waited_for(call.key)}
        self._races.lost.update((call.key, self._key) for call in losers.values())
        self._rest.has_chosen(self._key, [call.key for call in losers.values()])
        for each in losers:
            self._dismiss(each, is_waiting=each in waiting)
        for call in losers.values():
            self._races.journal.pass_over(call.key)
            if call.on_loss is not None:
                await call.on_loss()
        return name, await (self._tasks.get(name) or self._calls[name])

    def _dismiss(self, name: str, *, is_waiting: bool) -> None:
        task = self._tasks.pop(name, None)
        if task is None:
            self._calls[name].close()
            return
        task.add_done_callback(_look_away)
        if self._calls[name].kind is StepKind.STEP and not is_waiting:
            # its effect may be half done: what it comes to is worth a record, but not worth waiting for
            asyncio.get_running_loop().call_later(self._races.loser_grace_s, task.cancel)
        else:
            task.cancel()

    def let_go(self) -> list[asyncio.Task[Any]]:
        """It is over, in whatever way: what goes on is cancelled. What takes another moment to end."""
        for call in self._calls.values():
            if self._rest.choices.get(call.key) == self._key:
                del self._rest.choices[call.key]
        for name in self._calls.keys() - self._tasks.keys():
            if not self._calls[name].has_begun:
                self._calls[name].close()
        tasks = [*self._tasks.values(), *([] if self._waiting is None else [self._waiting])]
        left = [task for task in tasks if not task.done()]
        for task in tasks:
            task.add_done_callback(_look_away)
            task.cancel()
        return left


def _look_away(task: asyncio.Task[Any]) -> None:
    """How it ended is told to nobody."""
    if not task.cancelled():
        task.exception()
