"""One step's calls: attempts, timeouts, back-off, threads; its end as a record to be written."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import CoroutineType, GeneratorType, coroutine
from typing import Any, NamedTuple

from memable.codec import TypeCodec
from memable.current_step import CurrentStep, enter_step
from memable.errors import (
    MemableError,
    PayloadTooLarge,
    RetriesExhausted,
    SerializationError,
    StepFailed,
    StepTimeout,
    TypeMismatch,
    text_of,
)
from memable.holding import LeaseLost
from memable.journal import Draft
from memable.retry import RetryPolicy
from memable.runtime.observing import RunObserver
from memable.runtime.tasks import Activity, EscapedExit, is_being_cancelled, leave_run
from memable.runtime.threads import StepThreads
from memable.state import STEP

BeforeAttempt = Callable[[], Awaitable[None] | None]
"""Asks whether the run still holds its instance; nothing to await if that is sure. `LeaseLost` if it does not."""


class StepCall(NamedTuple):
    """What is to be called, and how."""

    first: CurrentStep
    """Its first attempt."""
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    codec: TypeCodec
    timeout_s: float | None
    retry: RetryPolicy | None
    item: str = ""
    """The digest of what `ctx.map` calls it with."""
    observer: RunObserver | None = None
    """Is told of each attempt."""

    @property
    def key(self) -> str:
        return self.first.key

    @property
    def instance(self) -> str:
        """`WF/ID`."""
        return f"{self.first.workflow_name}/{self.first.instance_id}"

    @property
    def subject(self) -> str:
        return f"step {self.key!r} of {self.instance}"


Invoke = Callable[[StepCall, int, BeforeAttempt], Awaitable[Any]]
"""Makes one attempt."""


class StepEnd(NamedTuple):
    """How a step ended: what to record, and what to hand back or raise once it is recorded."""

    draft: Draft
    elapsed_ms: float
    value: Any = None
    failure: MemableError | None = None
    has_waited: bool = False
    """For an attempt, in Redis."""


class Failed(NamedTuple):
    """How a step failed that is to be called again, later than this process should wait for."""

    failure: MemableError
    """What it would end with, if it were not called again."""
    attempts: int
    delay_s: float
    begin_s: float
    failed_s: float


DURABLE_BACK_OFF_FROM_S = 3.0
"""A back-off that is as long is kept in Redis, and holds no slot; a shorter one is waited for where it is."""


@dataclass(frozen=True, slots=True)
class StepCaller:
    """Calls steps in one worker process."""

    threads: StepThreads
    activity: Activity

    async def call(self, call: StepCall, before_attempt: BeforeAttempt, attempt: int = 1) -> StepEnd | Failed:
        """Call until it succeeds, may not be called again, or only much later. Only cancellation from outside escapes.

        `attempt`: the number of the first one here. `LeaseLost`, of `before_attempt`, ends the step unrecorded.
        """
        begin_s = time.monotonic()
        invoke: Invoke = self.invoke if call.timeout_s is None else self._invoke_in_time
        while True:
            if (asking := before_attempt()) is not None:
                await asking
            try:
                if call.observer is None:
                    value = await invoke(call, attempt, before_attempt)
                else:
                    value = await _watched(call.observer, invoke, call, attempt, before_attempt)
                break
            except LeaseLost:
                raise
            except BaseException as error:
                if _is_from_outside(error):
                    raise
                if isinstance(error, EscapedExit) and error.__cause__ is not None:
                    error = error.__cause__
                delay_s = self._back_off_s(call, error, attempt)
                if delay_s is None or delay_s >= DURABLE_BACK_OFF_FROM_S:
                    failure = self._failure(call, error, attempt)
                    if delay_s is not None:
                        return Failed(failure, attempt, delay_s, begin_s, time.monotonic())
                    draft = Draft.failed(STEP, failure, attempt, call.item)
                    return StepEnd(draft, _elapsed_ms(begin_s), failure=failure)
            await asyncio.sleep(delay_s)
            attempt += 1
        try:
            raw, value = call.codec.roundtrip(value, f"the result of step {call.first.key!r} of {call.instance}")
        except (SerializationError, PayloadTooLarge, TypeMismatch) as error:
            # never retried: the effect has happened
            return StepEnd(Draft.failed(STEP, error, attempt, call.item), _elapsed_ms(begin_s), failure=error)
        draft = Draft.completed(STEP, call.codec.tag, raw, attempt, call.item)
        return StepEnd(draft, _elapsed_ms(begin_s), value)

    async def _invoke_in_time(self, call: StepCall, attempt: int, before_attempt: BeforeAttempt) -> Any:
        assert call.timeout_s is not None
        deadline = asyncio.timeout(call.timeout_s)
        try:
            async with deadline:
                return await self.invoke(call, attempt, before_attempt)
        except TimeoutError as error:
            if not deadline.expired():
                raise  # the function's own
            raise StepTimeout(
                call.subject,
                key=call.key,
                attempts=attempt,
                error_type="TimeoutError",
                error_message=f"no result within {call.timeout_s:g} s",
            ) from error

    def invoke(self, call: StepCall, attempt: int, before_attempt: BeforeAttempt) -> Awaitable[Any]:
        """One attempt: what the function returns, or raises, here or when it is awaited."""
        current = call.first if attempt == 1 else call.first._replace(attempt=attempt)
        context = copy_context()
        if not _is_async(call.fn):
            return self._invoke_in_thread(call, current, context, before_attempt)
        result = context.run(_begin, current, call.fn, call.args)
        return _in_context(context, self.activity, current, result)

    async def _invoke_in_thread(
        self, call: StepCall, current: CurrentStep, context: Context, before_attempt: BeforeAttempt
    ) -> Any:
        result = await self.threads.run(context, _begin, (current, call.fn, call.args), before_attempt)
        if inspect.isawaitable(result):
            return await _in_context(context, self.activity, current, result)
        return result

    @staticmethod
    def _back_off_s(call: StepCall, error: BaseException, attempt: int) -> float | None:
        """After how long the step is to be called again; nothing if it is not."""
        policy = call.retry
        if policy is None or attempt > policy.max_retries or not policy.allows(error):
            return None
        return policy.jittered_delay_s(attempt - 1)

    @staticmethod
    def _failure(call: StepCall, error: BaseException, attempt: int) -> MemableError:
        """What the step ends with, if it is not called again."""
        allowed = call.retry is not None and call.retry.allows(error)
        if isinstance(error, StepTimeout) and not (allowed and attempt > 1):
            return error
        cls = RetriesExhausted if allowed and attempt > 1 else StepFailed
        failure = cls(
            call.subject,
            key=call.key,
            attempts=attempt,
            error_type=type(error).__name__,
            error_message=text_of(error),
        )
        failure.__cause__ = error
        return failure


def _begin(step: CurrentStep, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `fn` as what `step` is, in a context of its own."""
    leave_run()
    enter_step(step)
    return fn(*args)


def _elapsed_ms(begin_s: float) -> float:
    return (time.monotonic() - begin_s) * 1000


def _is_from_outside(error: BaseException) -> bool:
    """Whether the step is being cancelled or closed, rather than failing by itself."""
    if isinstance(error, GeneratorExit):
        return True
    return isinstance(error, asyncio.CancelledError) and is_being_cancelled()


def _is_async(fn: Callable[..., Any]) -> bool:
    code = getattr(fn, "__code__", None)
    if code is not None:
        return bool(code.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


async def _watched(
    observer: RunObserver, invoke: Invoke, call: StepCall, attempt: int, before_attempt: BeforeAttempt
) -> Any:
    begun = observer.attempt_begins(call.key, attempt)
    begin_s = time.monotonic()
    try:
        result = await invoke(call, attempt, before_attempt)
    except BaseException as error:
        observer.attempt_ended(begun, time.monotonic() - begin_s, error)
        raise
    observer.attempt_ended(begun, time.monotonic() - begin_s, None)
    return result


_DRIVEN = (CoroutineType, GeneratorType)
"""Awaitables that are their own iterators."""


@coroutine
def _in_context(
    context: Context, activity: Activity, current: CurrentStep, awaitable: Awaitable[Any]
) -> Generator[Any, Any, Any]:
    """Awaits something in a context of its own, in the task that is there: what never waits costs no turn."""
    run = context.run
    generator: Any = awaitable if isinstance(awaitable, _DRIVEN) else run(awaitable.__await__)
    resume, value = generator.send, None
    while True:
        activity.what = current
        try:
            waits_for = run(resume, value)
        except StopIteration as stop:
            return stop.value
        except GeneratorExit as exit:  # not ours: nobody closes this
            raise EscapedExit from exit
        try:
            resume, value = generator.send, (yield waits_for)
        except GeneratorExit:
            if hasattr(generator, "close"):
                run(generator.close)
            raise
        except BaseException as error:
            resume, value = generator.throw, error
