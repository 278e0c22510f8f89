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
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, NoReturn

from memable.children_call import ChildrenCall
from memable.codec import RENEW_KEY, SEND_ANEW, UPGRADE, Codec, TypeCodec, plain
from memable.context import Context, StepOptions
from memable.current_step import CurrentStep, step_in_progress
from memable.definitions import Definitions
from memable.durable_call import DurableCall
from memable.errors import (
    ChildFailed,
    DuplicateStep,
    MemableError,
    SerializationError,
    StepConflict,
    StorageError,
    TooManyRecords,
    TypeMismatch,
    presentable,
    text_of,
)
from memable.holding import Claim, Held, HistoryLost, LeaseLost, NextLife, Outcome
from memable.inputs import encode_input
from memable.journal import Draft, Journal, Record
from memable.retry import INHERIT
from memable.runtime.author_log import ReplayAwareLogger
from memable.runtime.children import Children
from memable.runtime.failing import chain_of, failure_outcome
from memable.runtime.farewell import Farewell
from memable.runtime.first import Race, Races
from memable.runtime.mapping import MapCall
from memable.runtime.observing import RunObserver, StepOutcome
from memable.runtime.rest import End, Rest, RunOver, Wait, is_busy, new_future
from memable.runtime.retrying import Place, call_again
from memable.runtime.steps import StepCall, StepCaller, StepEnd
from memable.runtime.tasks import (
    Activity,
    EscapedExit,
    RunTasks,
    current_tasks,
    install_task_factory,
    is_being_cancelled,
)
from memable.state import Status, StepKind
from memable.store import Store, new_token
from memable.workflow import Workflow

_log = logging.getLogger("memable.run")

_REFUSAL_S = 0.0005
_MOST_REFUSALS = 11
"""Each refusal of a durable call of a run that is over takes twice as long as the one before, up to a second."""


Recorder = Callable[[Held, str, Draft, float], Awaitable[bytes | None]]
"""Writes how a step ended: the record that is there already, or nothing."""


class LifeOver(BaseException):
    """Unwinds a function that has called `continue_as`. Not an Exception, as `RunOver`."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all runs of a worker process share."""

    store: Store
    codec: Codec
    caller: StepCaller
    activity: Activity
    definitions: Definitions
    resources: Mapping[str, Any]
    park_grace_s: float
    max_records: int
    """Of an instance."""
    retention_s: float | None
    """Instead of what the workflow and the app say."""
    confirm_lease: Callable[[Held], Awaitable[None] | None]
    """Asks Redis whether a lease still stands, if this process cannot be sure; nothing to await if it can."""


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
        self.outcome: Outcome | None = None
        """That of the instance, once its function has ended it."""
        self.observer: RunObserver | None = None
        self._workshop = workshop
        self._workflow = workflow
        self._claim = claim
        self._journal = Journal(claim.steps)
        self._progress = claim.progress
        self._progress_said: asyncio.Task[None] | None = None
        self._used: set[str] = set()
        self._failures: list[tuple[BaseException, str]] = []
        self._untold: set[str] = set()
        """Keys of failures that were recorded when whoever waited for them was cancelled already."""
        self._recordings: dict[str, asyncio.Task[None]] = {}
        self._lost: dict[str, str] = {}
        """Keys of the calls that have lost, and of the `first` in which they did."""
        self._maps: dict[str, MapCall] = {}
        self._refusals = 0
        self._next_life: NextLife | None = None
        self._read: list[str] = []
        self._outside = copy_context()
        self._confirm_lease = partial(workshop.confirm_lease, held)
        self._tasks = RunTasks(self.name, workshop.activity, self._changed)
        self._farewell = Farewell(self.name, self._tasks)
        # else each run would be a cycle, left to the garbage collector; whoever calls them has the run
        self._me = weakref.proxy(self)
        self.rest = Rest(self._me, workshop.store, self._journal, self._tasks, workshop.park_grace_s)

    # what few runs need

    @cached_property
    def _children(self) -> Children:
        workshop = self._workshop
        return Children(self._me, workshop.store, workshop.codec, workshop.definitions)

    @cached_property
    def _races(self) -> Races:
        workshop = self._workshop
        names = workshop.codec.of(str)
        return Races(
            self._me, workshop.store, self._journal, self._recordings, self._lost, names, workshop.park_grace_s
        )

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
        return ReplayAwareLogger(self)

    def set_status(self, message: str) -> None:
        if not isinstance(message, str):
            raise TypeError(f"set_status of {self.name} takes a string, not {message!r}")
        self._progress = presentable(message)
        if not self.is_replaying and self.over is None and not is_busy(self._progress_said):
            self._progress_said = self.do_outside(self._say_progress())

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
        options: StepOptions,
        item: str = "",
    ) -> Any:
        if not self._admits("step", key):
            await self._admit("step", key)
        codec = self._workshop.codec
        result = codec.returned_by(fn) if options.returns is None else codec.of(options.returns)
        record = self._find("step", key)
        if record is not None:
            self._check_item(key, item, record)
            if not record.is_retrying:
                return self._hand_back("step", key, record, StepKind.STEP, result, options.upgrade)
        call = StepCall(
            CurrentStep(key, 1, self.workflow_name, self.instance_id, self._claim.life),
            fn,
            args,
            result,
            options.timeout_s,
            self._workflow.retry if options.retry is INHERIT else options.retry,
            item,
            self.observer,
        )
        self.rest.takes_off()
        try:
            last = record or await self._workshop.caller.call(call, self._confirm_lease)
            if isinstance(last, StepEnd):
                end = last
            else:
                place = Place(self._workshop.caller, self._confirm_lease, self.rest, self._journal)
                end = await call_again(place, call, last)
            there = await self.record_end(key, end)
            self.on_progress()
        except LeaseLost as error:
            if self.observer is not None:
                self.observer.step_ended(StepOutcome.CANCELLED)
            self.stop(self._end_by(error))
            raise RunOver from None
        except asyncio.CancelledError:
            if self.observer is not None:
                self.observer.step_ended(StepOutcome.CANCELLED)
            self._used.discard(key)  # the author gave up on it, and may call it again
            raise
        finally:
            self.rest.lands()
        if self.observer is not None:
            self.observer.step_ended(StepOutcome.COMPLETED if end.failure is None else StepOutcome.FAILED)
        if there is not None and not end.draft.is_recorded_in(there):
            # this call was cancelled and made again: what was recorded first counts
            return self._hand_back("step", key, Record(there), StepKind.STEP, result, options.upgrade)
        if end.failure is not None:
            self._failures.append((end.failure, key))
            raise end.failure
        return end.value

    def _check_item(self, key: str, item: str, record: Record) -> None:
        if item and record.item not in ("", item):
            raise StepConflict(
                f"step {key!r} of {self.name} was recorded for another item: ctx.map must be given the same items in "
                f"the same order on every replay, so take them from the input or a step, or choose a new key",
                key,
            )

    async def map(
        self,
        key: str,
        items: Sequence[Any],
        fn: Callable[..., Any],
        concurrency: int | None,
        options: StepOptions,
        *,
        fail_fast: bool,
    ) -> list[Any]:
        await self._admit("map", key)
        call = self._maps[key] = MapCall(self, key, items, fn, options, fail_fast=fail_fast)
        try:
            return await call.results(concurrency)
        finally:
            del self._maps[key]

    async def lose_map(self, key: str) -> None:
        """Another member of a `first` was chosen: of this map nothing is called any more."""
        if (call := self._maps.get(key)) is not None:
            self.rest.call_no_more(call.begin_no_more())

    def has_record(self, key: str) -> bool:
        """Whether the call `key` would be handed a record back at once."""
        return self._journal.has_ended(key)

    def admit_all(self, what: str, keys: Collection[str]) -> None:
        """`TooManyRecords` if there is no room for the records of all `keys`."""
        if self._journal.will_exceed(self._workshop.max_records, keys):
            raise TooManyRecords(
                f"{what} of {self.name} with its {len(keys):,} items", limit=self._workshop.max_records
            )

    def blame(self, raised: BaseException, others: Collection[BaseException]) -> None:
        """`raised` stands for the failures `others`, too: a resume clears the records of all."""
        alike = {id(each) for each in others}
        self._failures += [(raised, key) for failure, key in self._failures if id(failure) in alike]

    async def suspend(self, key: str, type: Any, status: str | None, timeout_s: float | None) -> Any:
        codec = self._workshop.codec.of(type)
        wait = Wait(key, StepKind.SIGNAL, codec, new_future(), time.monotonic(), status=status, after_s=timeout_s)
        return await self._wait("suspend point", wait)

    async def timer(self, key: str, after_s: float | None, at_ms: float | None) -> None:
        codec = self._workshop.codec.of(None)
        wait = Wait(key, StepKind.TIMER, codec, new_future(), time.monotonic(), after_s=after_s, at_ms=at_ms)
        await self._wait("timer", wait)

    async def receive(self, key: str, mailbox: str, type: Any, timeout_s: float | None) -> Any:
        codec = self._workshop.codec.of(type)
        wait = Wait(key, StepKind.MESSAGE, codec, new_future(), time.monotonic(), after_s=timeout_s, mailbox=mailbox)
        return await self._wait("receive", wait)

    async def children(self, call: ChildrenCall) -> Any:
        key = call.key
        await self._admit(call.what, key)
        record = self._find(call.what, key)
        try:
            if record is None or (record.is_open and record.kind is StepKind.CHILD):
                record = await self._children.settle(call, was_open=record is not None)
                self.on_progress()
            if call.is_single or record.result is None or record.kind is not StepKind.CHILD:
                return self._hand_back(call.what, key, record, StepKind.CHILD, self._children.result_codec(call))
            results = await self._children.results(call, record)
        except LeaseLost as error:
            self.stop(self._end_by(error))
            raise RunOver from None
        except asyncio.CancelledError:
            self._used.discard(key)  # the author gave up on it, and may call it again
            raise
        failures = [each for each in results if isinstance(each, ChildFailed)]
        self._failures.extend((each, key) for each in failures)
        if failures and call.fail_fast:
            raise failures[0]
        return results

    async def cancel_children(self, call: ChildrenCall) -> None:
        try:
            await self._children.cancel(call, f"{self.name} has chosen another than {call.what} {call.key!r}")
        except LeaseLost as error:
            self.stop(self._end_by(error))
            raise RunOver from None

    async def first(self, key: str, calls: Mapping[str, DurableCall[Any]]) -> tuple[str, Any]:
        race = Race(self._races, key, calls)
        try:
            await self._admit("first", key)
            race.check_unused(self._used)
            record = self._journal.find(key)
            if record is None or (record.is_open and record.kind is StepKind.CHOICE):
                record = await race.decided(was_open=record is not None)
            chosen = self._hand_back("first", key, record, StepKind.CHOICE, self._races.names)
            return await race.settle(chosen)
        except (Exception, asyncio.CancelledError) as error:
            if left := race.let_go():
                await asyncio.wait(left)  # until then their keys are in use
            if isinstance(error, asyncio.CancelledError):
                self._used.discard(key)  # the author gave up on it, and may call it again
            raise
        finally:
            race.let_go()

    def _admits(self, what: str, key: str) -> bool:
        """Let a durable call begin, if that is sure at once; or refuse it."""
        if current_tasks() is not self._tasks:
            self._refuse_stranger(f"{what} {key!r}", key)
        if self.rest.is_parking or key in self._recordings or self.over is not None or self._next_life is not None:
            return False
        self._use(what, key)
        return True

    async def _admit(self, what: str, key: str) -> None:
        """Let a durable call begin, or refuse it."""
        if self._admits(what, key):
            return
        if self.rest.is_parking:
            await self.rest.parking_over()
        # after the last wait: several calls may have waited with one key
        if self.over is not None or self._next_life is not None:
            # an author who catches everything and tries again would never let the loop go on
            self._refusals = min(self._refusals + 1, _MOST_REFUSALS)
            await asyncio.sleep((2**self._refusals - 2) * _REFUSAL_S)
            raise self._refusal(f"{what} {key!r}")
        self._use(what, key)
        if (recording := self._recordings.get(key)) is not None:
            try:
                await asyncio.shield(recording)
            except asyncio.CancelledError:
                self._used.discard(key)  # the author gave up on it, and may call it again
                raise

    def _use(self, what: str, key: str) -> None:
        if key in self._used or key in self._lost:
            raise DuplicateStep(f"{what} {key!r} of {self.name}", key)
        self._used.add(key)

    def _refusal(self, what: str) -> RunOver:
        why = "it goes on in its next life" if self.over is None else self.over.value
        return RunOver(f"{what} of {self.name}: the run is over: {why}")

    def _refuse_stranger(self, what: str, key: str) -> None:
        step = step_in_progress()
        if step is not None:
            raise StepConflict(
                f"{what} of {self.name} was called inside step {step.key!r}: durable calls belong in the "
                f"workflow function, or what it calls, not in a step",
                key,
            )
        if self.over is None:
            raise StepConflict(
                f"{what} of {self.name} was called outside of its run: only the workflow function and the "
                f"tasks that it starts can make durable calls",
                key,
            )

    def _find(self, what: str, key: str) -> Record | None:
        """The record of `key`; else there is room for one."""
        record = self._journal.find(key)
        if record is None and self._journal.will_exceed(self._workshop.max_records):
            self._journal.drop(key)
            self._used.discard(key)
            raise TooManyRecords(f"{what} {key!r} of {self.name}", limit=self._workshop.max_records)
        return record

    def _hand_back(
        self,
        what: str,
        key: str,
        record: Record,
        kind: StepKind,
        codec: TypeCodec,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> Any:
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
            self._untold.discard(key)
            raise failure
        assert record.result is not None  # a completed record has one
        subject = f"the record of {what} {key!r} of {self.name}"
        try:
            return codec.decode(record.result, subject, UPGRADE if kind is StepKind.STEP else RENEW_KEY)
        except (TypeMismatch, SerializationError) as error:
            # nobody could refuse it: a resume waits for another
            if record.was_early:
                self._failures.append((error, key))
            if upgrade is None:
                raise
        # through the codec, as every value that is handed back
        return codec.roundtrip(upgrade(plain(record.result)), f"what upgrade= made of {subject}")[1]

    async def record_end(self, key: str, end: StepEnd) -> bytes | None:
        store = self._workshop.store
        record = store.settle if end.has_waited else store.record
        try:
            return await record(self.held, key, end.draft, end.elapsed_ms)
        except asyncio.CancelledError:
            # the call is on its way and cannot be taken back; asking again (record is idempotent) tells what is
            # recorded, and until then neither parking nor another call of this key may go ahead
            if self.over is None:
                self.rest.takes_off()
                self._recordings[key] = self.do_outside(self._learn_recorded(record, key, end))
            raise

    async def _learn_recorded(self, record: Recorder, key: str, end: StepEnd) -> None:
        try:
            there: bytes | None = None
            while there is None:  # written now, by the first time round: the second one reads it
                there = await record(self.held, key, end.draft, end.elapsed_ms)
            if self._journal.add(key, there).failure() is not None:
                self._untold.add(key)
        finally:
            self._recordings.pop(key, None)
            self.rest.lands()

    async def _wait(self, what: str, wait: Wait) -> Any:
        key = wait.key
        await self._admit(what, key)
        record = self._find(what, key)
        if record is None or (record.is_open and record.kind is wait.kind):
            try:
                raw = await self.rest.wait_for(wait, was_open=record is not None)
            except asyncio.CancelledError:
                self._used.discard(key)  # the author gave up on it, and may wait again
                raise
            record = Record(raw)
        self._read.append(key)
        return self._hand_back(what, key, record, wait.kind, wait.codec)

    def _changed(self) -> None:
        self.rest.changed()

    def do_outside(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that is not the run's: it must not keep the run alive, nor die with it; its failure ends the run."""
        task = self._outside.copy().run(asyncio.ensure_future, self._guarded(coroutine))
        # cancelled before it began, with the whole loop: nobody else would close what it was to await
        task.add_done_callback(lambda _: coroutine.close())
        return task

    async def _guarded(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            await coroutine
        except LeaseLost as error:
            self.stop(self._end_by(error))
        except Exception as error:
            _log.error("%s: the run ends here, and is left to its lease", self.name, exc_info=error)
            self.stop(End.BROKEN)

    def on_news(self) -> None:
        """A signal or a timer completed a point of this run while it goes on."""
        self.rest.on_news()

    def on_lease_lost(self) -> None:
        """Another worker has the instance, or may have it; or it was ended by others."""
        self.stop(End.LOST)

    def _end_by(self, error: LeaseLost) -> End:
        if not isinstance(error, HistoryLost):
            return End.LOST
        _log.warning("%s: Redis has lost what this run had recorded; the instance goes on from what is left", self.name)
        return End.HANDED_BACK

    # ── the end of a life ────────────────────────────────────────────────────────────────────────────────────────

    def continue_as(self, input: object) -> NoReturn:
        if current_tasks() is not self._tasks:
            self._refuse_stranger("continue_as", "")
        if self.over is not None:
            raise self._refusal("continue_as")
        if self._next_life is None:
            raw = encode_input(self._workshop.codec, self._workflow, input, f"the next input of {self.name}")
            # what comes from here on, nobody in this life can act on
            self._next_life = NextLife(new_token(), raw, tuple(self._read))
            self.rest.close()
            # an author who swallows what is raised here, or another task that waits, does not keep this life going
            self._farewell.limit()
        raise LifeOver

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
                if is_being_cancelled():
                    # with the whole loop, by asyncio.run: nothing the author did, and nobody is left to record it
                    self.stop(End.HANDED_BACK)
                    raise
                if self.over is None:
                    outcome = None if self._next_life else self._failed(error)
            else:
                if self._next_life is None:
                    outcome = self._completed(output)
            # a park that is on its way decides: its points are open in Redis, and a signal would start the next run
            if self.over is None:
                await self.rest.parking_over()
            if self.over is None:
                await self._let_land()
        finally:
            if self.over is None:
                self.over = End.RETURNED
            await self._farewell.end()
            # else every run would be a cycle, left to the garbage collector
            self._tasks.on_change = _nothing
        if self.over is End.RETURNED:
            await self._come_to_end(outcome)
        return self.over

    async def _call_workflow(self) -> Any:
        """What the function returns or raises; or nothing, long after the run is over, if it refuses to end."""
        main = self._tasks.start(self._call())
        await self._farewell.outlast(main)
        return main.result() if main.done() else None

    async def _call(self) -> Any:
        context = Context(self)
        if self.observer is not None:
            self.observer.enters()
        if not self._workflow.takes_input:
            return await self._workflow.fn(context)
        codec = self._workshop.codec.of(self._workflow.input_type)
        return await self._workflow.fn(context, codec.decode(self._claim.input, f"the input of {self.name}", SEND_ANEW))

    async def _let_land(self) -> None:
        """The function has ended: what is in flight is finished and recorded first, and nothing new begins."""
        while self.rest.is_in_flight or self.rest.backs_off:
            self._refuse_new_calls()
            if self.rest.is_in_flight:
                await self.rest.all_landed()
            else:
                # the next run comes to the same end, once these steps have
                await self.do_outside(self.rest.park_for_back_offs())
            if self.over is not End.RETURNED:
                return

    def _refuse_new_calls(self) -> None:
        self.over = End.RETURNED

    def stop(self, end: End) -> None:
        """End the run from outside its function: the tasks are cancelled, and that is not the author's doing."""
        if self.over is not None and self.over is not End.RETURNED:
            return
        self.over = end
        self.on_over()
        self.rest.let_go()
        self._farewell.begin()

    async def _come_to_end(self, outcome: Outcome | None) -> None:
        store = self._workshop.store
        self.outcome = outcome
        retention_s = self._workshop.retention_s or self._workflow.retention.total_seconds()
        try:
            if self._next_life is not None:
                await store.continue_as(self.held, self._next_life)
            elif outcome is not None:
                if outcome.status is Status.FAILED:
                    # of several that fail at once one may end the run before the others are told: a resume that clears
                    # the one must not fail by the others
                    outcome = outcome._replace(failed_keys=(*outcome.failed_keys, *self._untold))
                await store.finish(self.held, outcome, round(retention_s * 1000))
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
        keys = [key for each in chain_of(error) for failure, key in self._failures if failure is each]
        _log.warning("%s failed", self.name, exc_info=error)
        if self.observer is not None:
            self.observer.failed(error)
        return failure_outcome(type(error).__name__, text_of(error), keys)


def _nothing() -> None:
    pass
