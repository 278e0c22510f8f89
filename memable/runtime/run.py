"""One run: an instance carried from its claim to its rest, and how it parks.

`step` and `suspend` never raise in order to wait. The run counts the durable calls that are in flight and the points
that are waited for. When nothing is in flight, something is waited for, and no task of the run shows a sign of life,
one script parks the run, and all its tasks are cancelled. That is what makes `gather`, `TaskGroup` and first-of-many
work, and what no `except Exception` can break.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from memable.codec import Codec, TypeCodec, to_json
from memable.context import Context, step_in_progress
from memable.errors import DuplicateStep, MemableError, StepConflict, StorageError, presentable, text_of
from memable.journal import Journal, Record
from memable.retry import INHERIT, Inherit, RetryPolicy
from memable.runtime.steps import StepCall, StepCaller, StepEnd
from memable.runtime.tasks import Activity, EscapedExit, RunTasks, current_tasks, install_task_factory
from memable.state import Status, StepKind
from memable.store import Claim, Held, HistoryLost, LeaseLost, Outcome, Point, Store
from memable.workflow import Workflow

_log = logging.getLogger("memable.run")
_author_log = logging.getLogger("memable.workflow")

QUIET_TURNS = 5
"""Turns without a sign of life after which the tasks are looked at: enough for a wait_for or a TaskGroup to wake."""

_LIVELY_TURNS = 10_000
"""Turns after which a run that never gets quiet is taken to spin: far more than any nesting of gathers needs."""

_FAREWELLS = 100
_FAREWELL_S = 0.01
"""How often the tasks of a parked run are cancelled again: some refuse at first, some are born in a `finally`."""


_REFUSAL_S = 0.0005
_MOST_REFUSALS = 11
"""Each refusal of a durable call of a run that is over takes twice as long as the one before, up to a second."""


class RunOver(BaseException):
    """Refuses durable calls of a run that is over. Not an Exception: no author's `except Exception` may swallow it."""


class End(Enum):
    """Why a run is over, or is about to be."""

    RETURNED = "its function returned or raised"
    PARKED = "it has parked"
    LOST = "it lost its lease"
    HANDED_BACK = "it was handed back"
    BROKEN = "its storage failed"


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all runs of a worker process share."""

    store: Store
    codec: Codec
    caller: StepCaller
    activity: Activity
    resources: Mapping[str, Any]
    park_grace_s: float
    retention_s: float | None
    """Instead of what the workflow and the app say."""
    confirm_lease: Callable[[Held], Awaitable[None] | None]
    """Asks Redis whether a lease still stands, if this process cannot be sure; nothing to await if it can."""


@dataclass(slots=True, eq=False)
class _Wait:
    """A durable call that waits."""

    key: str
    kind: StepKind
    codec: TypeCodec
    future: asyncio.Future[bytes]
    asked_s: float
    status: str | None = None
    after_s: float | None = None
    at_ms: float | None = None

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
        )


class _ReplayAwareLogger(logging.LoggerAdapter[logging.Logger]):
    """Names the instance, and is silent while replaying."""

    def __init__(self, run: Run) -> None:
        super().__init__(_author_log, {"workflow": run.workflow_name, "instance_id": run.instance_id})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:
        return not self._run.is_replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"[{self._run.name}] {msg}", kwargs


class Run:
    """One run of an instance; what a `Context` works with."""

    def __init__(self, workshop: Workshop, workflow: Workflow[Any, Any], held: Held, claim: Claim) -> None:
        self.workflow_name = workflow.name
        self.instance_id = held.keys.instance_id
        self.name = held.keys.name
        self.held = held
        self.news_seen = 0
        self.on_progress: Callable[[], None] = _nothing
        self.on_over: Callable[[], None] = _nothing
        self.over: End | None = None
        self.has_begun = False
        self._workshop = workshop
        self._workflow = workflow
        self._claim = claim
        self._journal = Journal(claim.steps)
        self._progress = claim.progress
        self._progress_said: asyncio.Task[None] | None = None
        self._used: set[str] = set()
        self._failures: list[tuple[BaseException, str]] = []
        self._in_flight = 0
        self._landed: asyncio.Future[None] | None = None
        self._recordings: dict[str, asyncio.Task[None]] = {}
        self._waits: dict[str, _Wait] = {}
        self._opened: set[str] = set()
        self._withdrawn: list[str] = []
        self._refusals = 0
        self._ended: asyncio.Future[None] | None = None
        self._checker: asyncio.Task[None] | None = None
        self._parking: asyncio.Future[None] | None = None
        self._stirred: asyncio.Future[None] | None = None
        self._has_news = False
        self._last_event_s = time.monotonic()
        self._outside = copy_context()
        self._tasks = RunTasks(self.name, workshop.activity, self._changed)

    # ── what the context shows ───────────────────────────────────────────────────────────────────────────────────

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self._claim.started_ms / 1000, UTC)

    @property
    def is_replaying(self) -> bool:
        return self._journal.is_replaying

    @property
    def resources(self) -> Mapping[str, Any]:
        return self._workshop.resources

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return _ReplayAwareLogger(self)

    def set_status(self, message: str) -> None:
        if not isinstance(message, str):
            raise TypeError(f"set_status of {self.name} takes a string, not {message!r}")
        self._progress = presentable(message)
        if not self.is_replaying and self.over is None and not _is_busy(self._progress_said):
            self._progress_said = self._do_outside(self._say_progress())

    async def _say_progress(self) -> None:
        """One call at a time: what is said meanwhile is said by the next."""
        said: str | None = None
        try:
            while said != self._progress and self.over is None:
                said = self._progress
                await self._workshop.store.set_status(self.held, said)
        finally:
            self._progress_said = None

    # ── durable calls ────────────────────────────────────────────────────────────────────────────────────────────

    async def step(
        self,
        key: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        timeout_s: float | None,
        retry: RetryPolicy | None | Inherit,
        returns: Any,
    ) -> Any:
        await self._admit("step", key)
        codec = self._workshop.codec
        result = codec.returned_by(fn) if returns is None else codec.of(returns)
        record = self._journal.find(key)
        if record is not None:
            return self._hand_back("step", key, record, StepKind.STEP, result)
        call = StepCall(
            key,
            self.name,
            self._claim.life,
            fn,
            args,
            result,
            timeout_s,
            self._workflow.retry if retry is INHERIT else retry,
        )
        self._takes_off()
        try:
            end = await self._workshop.caller.call(call, self._confirm_lease)
            there = await self._record(key, end)
            self.on_progress()
        except LeaseLost as error:
            self.stop(self._end_by(error))
            raise RunOver from None
        except asyncio.CancelledError:
            self._used.discard(key)  # the author gave up on it, and may call it again
            raise
        finally:
            self._lands()
        if there is not None and not end.draft.is_recorded_in(there):
            # this call was cancelled and made again: what was recorded first counts
            return self._hand_back("step", key, Record(there), StepKind.STEP, result)
        if end.failure is not None:
            self._failures.append((end.failure, key))
            raise end.failure
        return end.value

    async def suspend(self, key: str, type: Any, status: str | None) -> Any:
        codec = self._workshop.codec.of(type)
        wait = _Wait(key, StepKind.SIGNAL, codec, self._new_future(), time.monotonic(), status=status)
        return await self._wait("suspend point", wait)

    async def timer(self, key: str, after_s: float | None, at_ms: float | None) -> None:
        codec = self._workshop.codec.of(None)
        wait = _Wait(key, StepKind.TIMER, codec, self._new_future(), time.monotonic(), after_s=after_s, at_ms=at_ms)
        await self._wait("timer", wait)

    async def _admit(self, what: str, key: str) -> None:
        """Let a durable call begin, or refuse it."""
        if current_tasks() is not self._tasks:
            self._refuse_stranger(what, key)
        # a step that starts while a park is on its way would be refused afterwards, its effect done
        while self._parking is not None:
            await asyncio.shield(self._parking)  # an author who gives up on this call must not cancel it for others
        # after the last wait: several calls may have waited with one key
        if self.over is None and key in self._used:
            raise DuplicateStep(f"{what} {key!r} of {self.name}", key)
        if self.over is not None:
            # an author who catches everything and tries again would never let the loop go on
            self._refusals = min(self._refusals + 1, _MOST_REFUSALS)
            await asyncio.sleep((2**self._refusals - 2) * _REFUSAL_S)
            raise RunOver(f"{what} {key!r} of {self.name}: the run is over: {self.over.value}")
        self._used.add(key)
        if (recording := self._recordings.get(key)) is not None:
            try:
                await asyncio.shield(recording)
            except asyncio.CancelledError:
                self._used.discard(key)  # the author gave up on it, and may call it again
                raise

    def _refuse_stranger(self, what: str, key: str) -> None:
        step = step_in_progress()
        if step is not None:
            raise StepConflict(
                f"{what} {key!r} of {self.name} was called inside step {step.key!r}: durable calls belong in the "
                f"workflow function, or what it calls, not in a step",
                key,
            )
        if self.over is None:
            raise StepConflict(
                f"{what} {key!r} of {self.name} was called outside of its run: only the workflow function and the "
                f"tasks that it starts can make durable calls",
                key,
            )

    def _hand_back(self, what: str, key: str, record: Record, kind: StepKind, codec: TypeCodec) -> Any:
        """What the record says: the same value, or the same failure, as the first time."""
        if record.kind is not kind or (record.is_open and kind is StepKind.STEP):
            is_step = record.kind is StepKind.STEP
            there = "a step, not a suspended entry" if is_step else f"a suspended entry ({record.kind}), not a {what}"
            raise StepConflict(
                f"{what} {key!r} of {self.name}: this key was recorded as {there}; a key keeps its "
                f"kind for the life of an instance: choose a new key, such as one with another version",
                key,
            )
        failure = record.failure()
        if failure is not None:
            self._failures.append((failure, key))
            raise failure
        assert record.result is not None  # a completed record has one
        return codec.decode(record.result, f"the record of {what} {key!r} of {self.name}")

    async def _record(self, key: str, end: StepEnd) -> bytes | None:
        try:
            return await self._workshop.store.record(self.held, key, end.draft, end.elapsed_ms)
        except asyncio.CancelledError:
            # the call is on its way and cannot be taken back; asking again (record is idempotent) tells what is
            # recorded, and until then neither parking nor another call of this key may go ahead
            if self.over is None:
                self._takes_off()
                self._recordings[key] = self._do_outside(self._learn_recorded(key, end))
            raise

    async def _learn_recorded(self, key: str, end: StepEnd) -> None:
        try:
            there: bytes | None = None
            while there is None:  # written now, by the first time round: the second one reads it
                there = await self._workshop.store.record(self.held, key, end.draft, end.elapsed_ms)
            self._journal.add(key, there)
        finally:
            self._recordings.pop(key, None)
            self._lands()

    async def _wait(self, what: str, wait: _Wait) -> Any:
        key = wait.key
        await self._admit(what, key)
        record = self._journal.find(key)
        if record is None or (record.is_open and record.kind is wait.kind):
            raw = await self._wait_for(wait, was_open=record is not None)
            record = Record(raw)
        return self._hand_back(what, key, record, wait.kind, wait.codec)

    async def _wait_for(self, wait: _Wait, *, was_open: bool) -> bytes:
        key = wait.key
        self._waits[key] = wait
        self._tasks.own_futures.add(wait.future)
        self._changed()
        try:
            return await wait.future
        except asyncio.CancelledError:
            if self.over is None:
                self._give_up(wait, was_open=was_open)
            raise
        finally:
            self._waits.pop(key, None)
            self._tasks.own_futures.discard(wait.future)
            self._changed()

    def _give_up(self, wait: _Wait, *, was_open: bool) -> None:
        """The author cancelled a wait: the checker closes its point, and waiting again opens it again."""
        self._used.discard(wait.key)
        if wait.future.done() and not wait.future.cancelled():
            self._journal.add(wait.key, wait.future.result())  # it was completed in the same turn
        elif was_open or wait.key in self._opened:
            self._opened.discard(wait.key)
            self._journal.drop(wait.key)
            self._withdrawn.append(wait.key)

    # ── in flight, and signs of life ─────────────────────────────────────────────────────────────────────────────

    def _takes_off(self) -> None:
        self._in_flight += 1

    def _lands(self) -> None:
        self._in_flight -= 1
        self._last_event_s = time.monotonic()
        if not self._in_flight and self._landed is not None and not self._landed.done():
            self._landed.set_result(None)
        self._changed()

    def _changed(self) -> None:
        """Something happened: look whether the run can come to rest, once nothing moves any more."""
        self._tasks.life += 1
        if self._stirred is not None and not self._stirred.done():
            self._stirred.set_result(None)
        if self._has_points() and self.over is None and not _is_busy(self._checker):
            self._checker = self._do_outside(self._come_to_rest())

    def _has_points(self) -> bool:
        """Whether something is waited for, or was given up and has yet to be closed."""
        return bool(self._waits or self._withdrawn)

    def _new_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _do_outside(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that is not the run's: it must not keep the run alive, nor die with it; its failure ends the run."""
        return self._outside.copy().run(asyncio.ensure_future, self._guarded(coroutine))

    async def _guarded(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            await coroutine
        except LeaseLost as error:
            self.stop(self._end_by(error))
        except Exception as error:
            _log.error("%s: the run ends here, and is left to its lease", self.name, exc_info=error)
            self.stop(End.BROKEN)

    async def _come_to_rest(self) -> None:
        """The checker. It lives while something is waited for and it has something to do; `_changed` starts it.

        It alone opens points, withdraws them and parks, by one call at a time: of two on their way, Redis could refuse
        the first for a while (OOM) and carry out the second, and what the first was to do would never be done.
        """
        try:
            turns = 0
            while self._has_points() and self.over is None:
                life = self._tasks.life
                for _ in range(QUIET_TURNS):
                    await asyncio.sleep(0)
                turns += QUIET_TURNS
                if not self._has_points() or self.over is not None:
                    return
                unopened = [wait for key, wait in self._waits.items() if key not in self._opened]
                has_news, self._has_news = self._has_news, False
                if has_news and len(unopened) < len(self._waits):
                    await self._open(list(self._waits.values()))
                    turns = 0
                elif self._in_flight or not self._waits:
                    if not (unopened or self._withdrawn):
                        return  # the end of the last call in flight starts another checker
                    await self._open(unopened)
                    turns = 0
                elif life != self._tasks.life or self._tasks.any_decided():
                    if self._may_linger(turns):
                        continue
                    _log.warning(
                        "%s parks although a task never rests outside of a step: what it does is lost", self.name
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
                            self.name,
                            foreign,
                        )
                        await self._park()
                else:
                    await self._park()
        finally:
            self._checker = None

    def _grace_left_s(self) -> float:
        return self._last_event_s + self._workshop.park_grace_s - time.monotonic()

    def _may_linger(self, turns: int) -> bool:
        # time alone would not do: a loop blocked by another run gives this one no turn
        return turns < _LIVELY_TURNS or self._grace_left_s() > 0

    async def _stir_or_timeout(self, timeout_s: float) -> None:
        self._stirred = self._new_future()
        timer = asyncio.get_running_loop().call_later(timeout_s, _set_done, self._stirred)
        try:
            await self._stirred
        finally:
            timer.cancel()
            self._stirred = None

    # ── opening, parking, delivering ─────────────────────────────────────────────────────────────────────────────

    async def _open(self, waits: Sequence[_Wait]) -> None:
        """Without parking: let signals and timers find these points already, and no more those that were given up."""
        withdrawn, self._withdrawn = self._withdrawn, []
        self._opened.update(wait.key for wait in waits)
        self._deliver(await self._workshop.store.open(self.held, [wait.point() for wait in waits], withdrawn))

    async def _park(self) -> None:
        withdrawn, self._withdrawn = self._withdrawn, []
        waits = list(self._waits.values())
        # open since an earlier run, and not waited for any more: a signal to it would be accepted, and never read
        withdrawn += (key for key in self._journal.open_keys() if key not in self._waits and key not in withdrawn)
        self._opened.update(wait.key for wait in waits)
        self._parking = self._new_future()
        try:
            satisfied = await self._workshop.store.park(
                self.held, [wait.point() for wait in waits], withdrawn, presentable(waits[0].status or "")
            )
            if not satisfied:
                self.stop(End.PARKED)
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
            else:
                self._journal.add(key, raw)
        if satisfied:
            self._last_event_s = time.monotonic()
            self._tasks.life += 1

    def on_news(self) -> None:
        """A signal or a timer completed a point of this run while it goes on."""
        self._has_news = True
        self._changed()

    def on_lease_lost(self) -> None:
        """Another worker has the instance, or may have it."""
        self.stop(End.LOST)

    def _end_by(self, error: LeaseLost) -> End:
        if not isinstance(error, HistoryLost):
            return End.LOST
        _log.warning("%s: Redis has lost what this run had recorded; the instance goes on from what is left", self.name)
        return End.HANDED_BACK

    def _confirm_lease(self) -> Awaitable[None] | None:
        return self._workshop.confirm_lease(self.held)

    # ── from claim to rest ───────────────────────────────────────────────────────────────────────────────────────

    async def carry(self) -> End:
        """Call the workflow's function, and bring the instance to rest; why this run is over."""
        if self.over is not None:
            return self.over
        self.has_begun = True
        install_task_factory(asyncio.get_running_loop())
        outcome: Outcome | None = None
        try:
            try:
                output = await self._call_workflow()
            except BaseException as error:
                if _is_being_cancelled():
                    # with the whole loop, by asyncio.run: nothing the author did, and nobody is left to record it
                    self.stop(End.HANDED_BACK)
                    raise
                if self.over is None:
                    outcome = self._failed(error)
            else:
                outcome = self._completed(output)
            # a park that is on its way decides: its points are open in Redis, and a signal would start the next run
            while self._parking is not None and self.over is None:
                await asyncio.shield(self._parking)
            if self.over is None:
                await self._let_land()
        finally:
            if self.over is None:
                self.over = End.RETURNED
            await self._bid_farewell()
            # else every run would be a cycle, left to the garbage collector
            self._tasks.on_change = _nothing
        if self.over is End.RETURNED and outcome is not None:
            await self._finish(outcome)
        return self.over

    async def _call_workflow(self) -> Any:
        """What the function returns or raises; or nothing, long after the run is over, if it refuses to end."""
        main = self._tasks.start(self._call())
        ended = self._ended = self._new_future()
        main.add_done_callback(lambda _: _set_done(ended))
        await ended
        return main.result() if main.done() else None

    async def _call(self) -> Any:
        context = Context(self)
        if not self._workflow.takes_input:
            return await self._workflow.fn(context)
        codec = self._workshop.codec.of(self._workflow.input_type)
        return await self._workflow.fn(context, codec.decode(self._claim.input, f"the input of {self.name}"))

    async def _let_land(self) -> None:
        """The function has ended: what is in flight is finished and recorded first, and nothing new begins."""
        if self._in_flight:
            self._landed = self._new_future()
            self._refuse_new_calls()
            await self._landed

    def _refuse_new_calls(self) -> None:
        self.over = End.RETURNED

    def stop(self, end: End) -> None:
        """End the run from outside its function: the tasks are cancelled, and that is not the author's doing."""
        if self.over is not None and self.over is not End.RETURNED:
            return
        self.over = end
        self.on_over()
        if self._landed is not None and not self._landed.done():
            self._landed.set_result(None)
        self._press(_FAREWELLS)

    def _press(self, times: int) -> None:
        """Cancel the tasks, again and again while the function swallows it; then go on without it."""
        for task in list(self._tasks.tasks):
            task.cancel()
        if self._ended is None or self._ended.done():
            return
        if times:
            asyncio.get_running_loop().call_later(_FAREWELL_S, self._press, times - 1)
        else:
            self._ended.set_result(None)

    async def _bid_farewell(self) -> None:
        for _ in range(_FAREWELLS):
            tasks = set(self._tasks.tasks)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks, timeout=_FAREWELL_S)
            for task in done:
                if not task.cancelled():
                    task.exception()  # told to nobody: the run is over
        _log.warning(
            "%s: %d of its tasks refuse to be cancelled, and are left alone", self.name, len(self._tasks.tasks)
        )

    async def _finish(self, outcome: Outcome) -> None:
        retention_s = self._workshop.retention_s or self._workflow.retention.total_seconds()
        try:
            await self._workshop.store.finish(self.held, outcome, round(retention_s * 1000))
        except LeaseLost as error:
            self.over = self._end_by(error)
        except StorageError as error:
            _log.error("%s has ended, and its end could not be recorded: %s", self.name, error)
            self.over = End.BROKEN

    def _completed(self, output: Any) -> Outcome:
        codec = self._workshop.codec.returned_by(self._workflow.fn)
        try:
            value = codec.encode(output, f"the result of {self.name}")
        except MemableError as error:
            return self._failed(error)
        return Outcome(Status.COMPLETED, value, self._progress)

    def _failed(self, error: BaseException) -> Outcome:
        if isinstance(error, EscapedExit) and error.__cause__ is not None:
            error = error.__cause__
        keys = [key for each in _chain(error) for failure, key in self._failures if failure is each]
        _log.warning("%s failed", self.name, exc_info=error)
        return failure_outcome(type(error).__name__, text_of(error), keys)


def failure_outcome(error_type: str, error_message: str, failed_keys: Sequence[str] = ()) -> Outcome:
    """The outcome of an instance that failed, as it is stored."""
    value = {"type": error_type, "message": error_message, "step": failed_keys[0] if failed_keys else None}
    return Outcome(Status.FAILED, to_json(value), f"{error_type}: {error_message}", failed_keys)


def _chain(error: BaseException) -> list[BaseException]:
    """The exception that escaped, what it was raised from or while handling, and what groups hold."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop(0)
        if each is None or any(each is known for known in found):
            continue
        found.append(each)
        todo.append(each.__cause__)
        if not each.__suppress_context__:
            todo.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            todo.extend(each.exceptions)
    return found


def _nothing() -> None:
    pass


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_busy(task: asyncio.Task[None] | None) -> bool:
    # not only "is not None": an eager task can be over before it is assigned
    return task is not None and not task.done()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
