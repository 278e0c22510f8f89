"""What authors receive: `Context`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol, TypeVar, TypeVarTuple, overload

from memable.children_call import ChildrenCall
from memable.durable_call import DurableCall
from memable.errors import InvalidKey, StepFailed
from memable.keys import check_key, check_name
from memable.missing import MISSING
from memable.moments import to_epoch_ms
from memable.retry import INHERIT, Duration, Inherit, RetryPolicy, checked_policy, to_seconds
from memable.state import STEP, StepKind

if TYPE_CHECKING:
    from memable.errors import ChildFailed
    from memable.workflow import SuspendPoint, Workflow

I = TypeVar("I")  # noqa: E741  (the contract's own letters: Workflow[I, O]; and an item)
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")
N = TypeVar("N", bound=str)
Ts = TypeVarTuple("Ts")


class StepOptions(NamedTuple):
    """What an author may say of a step, besides what to call."""

    timeout_s: float | None
    retry: RetryPolicy | None | Inherit
    returns: Any
    upgrade: Callable[[Any], Any] | None


_NOTHING_SAID = StepOptions(None, INHERIT, None, None)


class DurableRun(Protocol):
    """What `Context` needs of the run behind it: see runtime/run.py."""

    workflow_name: str
    instance_id: str

    @property
    def started_at(self) -> datetime: ...

    @property
    def resources(self) -> Mapping[str, Any]: ...

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]: ...

    @property
    def is_replaying(self) -> bool: ...

    async def step(
        self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions, item: str = ""
    ) -> Any: ...

    async def map(
        self,
        key: str,
        items: Sequence[Any],
        fn: Callable[..., Any],
        concurrency: int | None,
        options: StepOptions,
        *,
        fail_fast: bool,
    ) -> list[Any]: ...

    async def suspend(self, key: str, type: Any, status: str | None, timeout_s: float | None) -> Any: ...

    async def receive(self, key: str, mailbox: str, type: Any, timeout_s: float | None) -> Any: ...

    async def timer(self, key: str, after_s: float | None, at_ms: float | None) -> None: ...

    async def children(self, call: ChildrenCall) -> Any: ...

    async def first(self, key: str, calls: Mapping[str, DurableCall[Any]]) -> tuple[str, Any]: ...

    async def cancel_children(self, call: ChildrenCall) -> None: ...

    async def lose_map(self, key: str) -> None: ...

    def set_status(self, message: str) -> None: ...

    def continue_as(self, input: object) -> NoReturn: ...


class Context:
    """An instance's side of memable: durable calls, and what is known of the instance.

    A durable call whose key has a record hands the record back; otherwise it happens now, and is recorded. If the
    process dies, another worker runs the function again from the top, and finds the records.
    """

    __slots__ = ("_run",)

    def __init__(self, run: DurableRun) -> None:
        self._run = run

    @property
    def workflow_name(self) -> str:
        """The workflow's name."""
        return self._run.workflow_name

    @property
    def instance_id(self) -> str:
        """The instance's id."""
        return self._run.instance_id

    @property
    def started_at(self) -> datetime:
        """When the first run of this instance began, by Redis's clock: the same in every replay."""
        return self._run.started_at

    @property
    def is_replaying(self) -> bool:
        """Whether records that existed when this run began are still being handed back; never in a first run."""
        return self._run.is_replaying

    @property
    def resources(self) -> Mapping[str, Any]:
        """What the app's `lifespan` yielded in this worker process."""
        return self._run.resources

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the instance, and is silent while replaying."""
        return self._run.logger

    @overload
    def step(
        self,
        key: str,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: type[T],
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[T]: ...

    @overload
    def step(
        self,
        key: str,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[T]: ...

    @overload
    def step(
        self,
        key: str,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[T]: ...

    def step(  # type: ignore[misc]  # mypy does not see that *args: Any takes *args: *Ts
        self,
        key: str,
        fn: Callable[..., Any],
        *args: Any,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: Any = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[Any]:
        """Call `fn(*args)` once, record its result, and hand that back now and in every replay.

        First run: `fn` (async, sync in a thread of memable's own, or returning an awaitable) is called, its result is
        recorded, and what comes back has been through the codec once. Replay: the record comes back, `fn` is not
        called. If the process dies before the record is written, `fn` is called again by another worker: make its
        effect idempotent with `current_step().idempotency_key`.

        `timeout`: seconds or `timedelta`, per attempt. `retry`: a policy, `None` for none, by default the workflow's,
        then the app's. `returns`: the type of the result, by default `fn`'s return annotation; without one the result
        must be plain JSON. `upgrade`: a pure function that is given the plain JSON of an old record which does not fit
        the result's type any more, and returns a value that does; called at every replay, the record stays as it is.

        Raises `StepFailed`, `RetriesExhausted` or `StepTimeout` after the last attempt, `SerializationError`,
        `TypeMismatch` or `PayloadTooLarge` for a result that cannot be stored, each recorded and replayed;
        `TypeMismatch` for an old record that does not fit; `DuplicateStep` and `StepConflict` for a key used twice, or
        used for another kind of call; `TooManyRecords`; `InvalidKey`.
        """
        check_key("step", key)
        options = _options("step", key, fn, timeout, retry, returns, upgrade)
        return DurableCall(STEP, key, self._run.step(key, fn, args, options), self._run)

    @overload
    def map(
        self,
        key: str,
        items: Iterable[Any],
        fn: Callable[..., Any],
        *,
        concurrency: int | None = None,
        fail_fast: Literal[True] = True,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: type[T],
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[T]]: ...

    @overload
    def map(
        self,
        key: str,
        items: Iterable[I],
        fn: Callable[[I], Awaitable[T]],
        *,
        concurrency: int | None = None,
        fail_fast: Literal[True] = True,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[T]]: ...

    @overload
    def map(
        self,
        key: str,
        items: Iterable[I],
        fn: Callable[[I], T],
        *,
        concurrency: int | None = None,
        fail_fast: Literal[True] = True,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[T]]: ...

    @overload
    def map(
        self,
        key: str,
        items: Iterable[Any],
        fn: Callable[..., Any],
        *,
        concurrency: int | None = None,
        fail_fast: bool,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: type[T],
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[T | StepFailed]]: ...

    @overload
    def map(
        self,
        key: str,
        items: Iterable[I],
        fn: Callable[[I], Awaitable[T]],
        *,
        concurrency: int | None = None,
        fail_fast: bool,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[T | StepFailed]]: ...

    @overload
    def map(
        self,
        key: str,
        items: Iterable[I],
        fn: Callable[[I], T],
        *,
        concurrency: int | None = None,
        fail_fast: bool,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[T | StepFailed]]: ...

    def map(
        self,
        key: str,
        items: Iterable[Any],
        fn: Callable[..., Any],
        *,
        concurrency: int | None = None,
        fail_fast: bool = True,
        timeout: Duration | None = None,
        retry: RetryPolicy | None | Inherit = INHERIT,
        returns: Any = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> DurableCall[list[Any]]:
        """Call `fn(item)` for each of `items`, as a step `key[i]` each, in this process; the results in order.

        First run: at most `concurrency` calls at a time (default: all at once), each recorded when it ends. Replay:
        records are handed back, and what has none is called. If the process dies, only the calls in flight are made
        again. For more work than one process should do, use child instances.

        With `fail_fast` a failed item ends it: no further one is begun, those in flight are finished and recorded, and
        of the failures the one of the first item is raised. A resume clears them all. Without it, a `StepFailed` stands
        in the failed item's place; a result that cannot be stored is raised after all have ended.

        Each record has a digest of its item: an item other than the one recorded at its place is a `StepConflict`.
        More items may be added at the end. `timeout`, `retry`, `returns`, `upgrade`: of each step, see `step`.

        Raises before anything is called: `ValueError` for a `concurrency` below 1, `SerializationError` for an item
        that pydantic cannot write as JSON, `TooManyRecords`, `InvalidKey`; then what `step` raises.
        """
        check_key("map", key)
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"map {key!r} needs a concurrency of at least 1, or None for all at once: {concurrency}")
        listed = list(items)
        check_key("map", f"{key}[{max(0, len(listed) - 1)}]")
        options = _options("map", key, fn, timeout, retry, returns, upgrade)
        coroutine = self._run.map(key, listed, fn, concurrency, options, fail_fast=fail_fast)
        run = self._run
        return DurableCall(StepKind.STEP, key, coroutine, run, on_loss=lambda: run.lose_map(key))

    @overload
    def suspend(
        self, point: SuspendPoint[T], *, status: str | None = None, timeout: Duration | None = None
    ) -> DurableCall[T]: ...

    @overload
    def suspend(
        self, point: str, *, status: str | None = None, timeout: Duration | None = None
    ) -> DurableCall[Any]: ...

    def suspend(
        self, point: SuspendPoint[Any] | str, *, status: str | None = None, timeout: Duration | None = None
    ) -> DurableCall[Any]:
        """Wait for a signal, and hand its payload back now and in every replay.

        `point` is a `SuspendPoint`, or a bare key for a plain JSON payload. While it waits no task is held in memory:
        the instance shows as `suspended: STATUS` (default: the key), and any worker goes on with it when the signal
        comes. If the process dies, nothing is lost. No `except Exception` around it is ever entered because of the
        wait; `finally` blocks run, without durable calls.

        `timeout` (seconds or `timedelta`) is durable. First run: the deadline is fixed, by Redis's clock; whichever
        comes first, the signal or the deadline, is recorded, and the other has lost: a later signal is
        `SignalSuperseded`. Replay: the first deadline stands, and what was recorded comes back, `SuspendTimeout` too.
        If all processes die, the deadline is seen to when a worker is back. Zero or negative is over at once.

        Raises `SuspendTimeout`, recorded and replayed; `DuplicateStep`, `StepConflict`, `InvalidKey`; `ValueError`
        for a timeout that is NaN or infinite.
        """
        key, type = (point, Any) if isinstance(point, str) else (point.key, point.type)
        check_key("suspend point", key)
        timeout_s = None if timeout is None else to_seconds(timeout, f"the timeout of suspend point {key!r}")
        return self._call(StepKind.SIGNAL, key, self._run.suspend(key, type, status, timeout_s))

    def timer(self, key: str, duration: Duration) -> DurableCall[None]:
        """Wait for `duration` (seconds or `timedelta`), durably; negative or zero is over at once.

        First run: the deadline is fixed, by Redis's clock. Replay: the first deadline stands, and once it is past the
        call returns at once. If all processes die, the timer fires when a worker is back. It may be completed early by
        `signal(…, key)`. `ValueError` for NaN and infinities; `DuplicateStep`, `StepConflict`, `InvalidKey`.
        """
        check_key("timer", key)
        after_s = to_seconds(duration, f"the duration of timer {key!r}")
        return self._call(StepKind.TIMER, key, self._run.timer(key, after_s, None))

    def sleep_until(self, key: str, when: datetime) -> DurableCall[None]:
        """Wait until `when`, an aware datetime, durably; the past is over at once.

        `ValueError` for a naive one; else as `timer`.
        """
        check_key("timer", key)
        return self._call(StepKind.TIMER, key, self._run.timer(key, None, to_epoch_ms(when, f"timer {key!r}")))

    @overload
    def receive(
        self, key: str, mailbox: str, *, timeout: Duration | None = None, returns: type[T]
    ) -> DurableCall[T]: ...

    @overload
    def receive(
        self, key: str, mailbox: str, *, timeout: Duration | None = None, returns: Any = None
    ) -> DurableCall[Any]: ...

    def receive(
        self, key: str, mailbox: str, *, timeout: Duration | None = None, returns: Any = None
    ) -> DurableCall[Any]:
        """Wait for the next message of a mailbox of this instance, and hand it back now and in every replay.

        First run: the oldest unread message is taken at once; without one the instance waits until `client.send`
        brings it, as in `suspend`. Each message is read once, by one key, in the order in which they were sent; of
        several open receives the first gets the next message. Replay: the same message comes back. If the process
        dies, nothing is lost. A receive that is cancelled may have its message already: it is kept under the key, and
        comes back when that is received again.

        `timeout` (seconds or `timedelta`) is durable, as in `suspend`. `returns`: the message's type, by default plain
        JSON. A mailbox takes messages of any type: one that does not fit raises `TypeMismatch`, in every replay, until
        the code reads it.

        Raises `SuspendTimeout`, recorded and replayed; `TypeMismatch`, `DuplicateStep`, `StepConflict`, `InvalidKey`;
        `ValueError` for a timeout that is NaN or infinite.
        """
        check_key("receive", key)
        check_name("mailbox", mailbox)
        timeout_s = None if timeout is None else to_seconds(timeout, f"the timeout of receive {key!r}")
        type = Any if returns is None else returns
        return self._call(StepKind.MESSAGE, key, self._run.receive(key, mailbox, type, timeout_s))

    @overload
    def call(self, key: str, workflow: Workflow[None, O]) -> DurableCall[O]: ...
    @overload
    def call(self, key: str, workflow: Workflow[I, O], input: I) -> DurableCall[O]: ...
    @overload
    def call(self, key: str, workflow: str, input: Any = ...) -> DurableCall[Any]: ...

    def call(self, key: str, workflow: Workflow[Any, Any] | str, input: Any = MISSING) -> DurableCall[Any]:
        """Run another workflow as a child of this instance, on any worker that has it, and hand its result back.

        First run: the child is started, once, and while it runs this instance is parked: it shows as
        `suspended: KEY`. Replay: the result comes back, and no child is started. If the process dies here, the child
        runs on, and the next run waits for the same one. The input is checked as by `client.invoke`. The child's id
        is made by memable; its own retention does not matter here. It is cancelled if this instance comes to an end
        before it does, or if `first` has chosen another.

        Raises `ChildFailed` if it failed or was cancelled, recorded and replayed; a resume of this instance, if that
        ended it, resumes the child. `InvalidKey`, `WorkflowNotFound`, `InputMissing`, `TypeMismatch`,
        `SerializationError`, `PayloadTooLarge`, `DuplicateStep`; `StepConflict` for a key used for anything else.
        """
        return self._start_children(ChildrenCall("call", check_key("call", key), workflow, [input], None, True))

    @overload
    def fan_out(
        self,
        key: str,
        items: Iterable[I],
        workflow: Workflow[I, O],
        *,
        concurrency: int | None = None,
        fail_fast: Literal[True] = True,
    ) -> DurableCall[list[O]]: ...
    @overload
    def fan_out(
        self, key: str, items: Iterable[I], workflow: Workflow[I, O], *, concurrency: int | None = None, fail_fast: bool
    ) -> DurableCall[list[O | ChildFailed]]: ...
    @overload
    def fan_out(
        self,
        key: str,
        items: Iterable[Any],
        workflow: str,
        *,
        concurrency: int | None = None,
        fail_fast: bool = True,
    ) -> DurableCall[list[Any]]: ...

    def fan_out(
        self,
        key: str,
        items: Iterable[Any],
        workflow: Workflow[Any, Any] | str,
        *,
        concurrency: int | None = None,
        fail_fast: bool = True,
    ) -> DurableCall[list[Any]]:
        """Run a child for each of `items`, which are their inputs, spread over all workers; their results in order.

        First run: the children are started in batches, at most `concurrency` of them living at a time, and while they
        run this instance is parked. Replay: the results come back. If the process dies here, the next run goes on
        with the same children, and starts those that are missing. For a workflow without input give `None` each.

        With `fail_fast` the first failure cancels the children that live, starts no more, and is raised as
        `ChildFailed`, recorded and replayed; without, a child that failed or was cancelled is a `ChildFailed` in the
        list. After a resume of this instance, if that failure ended it, children that failed or were cancelled are
        resumed, and those that completed are not run again. Errors as for `call`, an input that does not fit before
        any child is started; `StepConflict` for another number of items, or another workflow, than the first time.
        """
        check_key("fan_out", key)
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise ValueError(f"the concurrency of fan_out {key!r} must be a whole number from 1, not {concurrency!r}")
        return self._start_children(ChildrenCall("fan_out", key, workflow, list(items), concurrency, fail_fast))

    def _start_children(self, call: ChildrenCall) -> DurableCall[Any]:
        run, given = self._run, call.workflow
        if not isinstance(getattr(given, "name", given), str):
            raise InvalidKey("workflow", given)
        return DurableCall(StepKind.CHILD, call.key, run.children(call), run, on_loss=lambda: run.cancel_children(call))

    @overload
    def first(self, key: str, calls: Mapping[N, DurableCall[T]]) -> DurableCall[tuple[N, T]]: ...

    @overload
    def first(self, key: str, calls: Mapping[N, DurableCall[Any]]) -> DurableCall[tuple[N, Any]]: ...

    def first(self, key: str, calls: Mapping[Any, DurableCall[Any]]) -> DurableCall[tuple[Any, Any]]:
        """Wait for the first of several durable calls to be done, and choose the same one in every replay.

        `calls`: durable calls of this context that are not awaited yet, each under a name; what comes back is the name
        of the chosen one and what it hands back. If that is a failure (`StepFailed`, `SuspendTimeout`, `ChildFailed`),
        it is raised.

        First run: they go on side by side. What completes the first of them (a signal, a deadline, a message) records
        the choice under `key`, in the same moment; a step or a child is proposed once it is recorded, and a signal
        accepted before that goes first. The others are withdrawn: a later signal to one is `SignalSuperseded`, its
        deadline is gone, a child is cancelled. A step that has lost may go on for up to
        `MEMABLE_PARK_GRACE`, and is recorded if it ends by then. Replay: the choice comes back, and of the calls only
        the chosen one is made. If the process dies, what was done before it is chosen by the next run.

        Raises what the chosen call raises; `DuplicateStep` or `StepConflict` also of one that was not chosen, and
        `StepConflict` if what was chosen is not among the calls any more; `InvalidKey`; `TypeError` for anything but
        durable calls, and for a `first` in a `first`; `ValueError` for none at all.
        """
        try:
            check_key("first", key)
            self._check_calls(key, calls)
        except (InvalidKey, TypeError, ValueError):
            _close_all(calls)
            raise
        by_name: Any = dict(calls)
        chosen: Any = self._run.first(key, by_name)
        return DurableCall(StepKind.CHOICE, key, chosen, self._run, calls=by_name.values())

    def _check_calls(self, key: str, calls: Mapping[Any, Any]) -> None:
        if not isinstance(calls, Mapping):
            raise TypeError(f"first {key!r} takes a dict of names and durable calls, not {calls!r}")
        if not calls:
            raise ValueError(f"first {key!r} has no calls to choose from")
        for name, call in calls.items():
            if not isinstance(name, str):
                raise TypeError(f"first {key!r}: the names of its calls are strings, not {name!r}")
            if not isinstance(call, DurableCall):
                raise TypeError(
                    f"first {key!r}: {name!r} is {call!r}, not a durable call: pass what ctx.suspend(…), ctx.timer(…), "
                    f"ctx.step(…) and the like return, without awaiting it"
                )
            if call.run is not self._run:
                raise TypeError(f"first {key!r}: {name!r} is a durable call of another context")
            if call.kind is StepKind.CHOICE:
                raise TypeError(f"first {key!r}: {name!r} is a first itself: put all calls into one")

    def set_status(self, message: str) -> None:
        """Say what the instance is doing: shows as `in progress: MESSAGE`. While replaying it is only remembered.

        The last one stays, as `completed: MESSAGE`: say how it has ended before you return, where that matters.
        """
        self._run.set_status(message)

    def continue_as(self, input: Any = None) -> NoReturn:
        """End this life of the instance, and begin the next of the same id: with `input`, and without any record.

        For workflows without an end: a life that goes on for ever would have too many records. It never returns. What
        is in flight is finished first; then one script ends this life and queues the next, so that there is no moment
        between the two. If the process dies before that, this life is replayed and comes here again. Durable calls are
        refused from here on, also for an author who catches what this raises, which is no `Exception`.

        The next life has keys, idempotency keys, progress and `started_at` of its own. `client.invoke` of the same id
        goes on comparing with the input that began the first one; `created`, labels and what watchers see go on.

        `TypeMismatch`, `InputMissing`, `SerializationError`, `PayloadTooLarge` for an input that does not fit, as
        `client.invoke` does, and then the life goes on; `StepConflict` inside a step.
        """
        self._run.continue_as(input)

    def _call(self, kind: StepKind, key: str, coroutine: Coroutine[Any, Any, T]) -> DurableCall[T]:
        return DurableCall(kind, key, coroutine, self._run)


def _options(
    what: str,
    key: str,
    fn: object,
    timeout: Duration | None,
    retry: RetryPolicy | None | Inherit,
    returns: Any,
    upgrade: Any,
) -> StepOptions:
    if not callable(fn):
        raise TypeError(f"{what} {key!r}: {fn!r} is not callable: pass the function and its arguments, not its result")
    if timeout is None and retry is INHERIT and returns is None and upgrade is None:
        return _NOTHING_SAID
    if upgrade is not None and (not callable(upgrade) or inspect.iscoroutinefunction(upgrade)):
        raise TypeError(f"{what} {key!r}: upgrade={upgrade!r} must be a plain function from an old value to a new one")
    timeout_s = None if timeout is None else to_seconds(timeout, f"the timeout of {what} {key!r}")
    if retry is not INHERIT:
        checked_policy(retry, f"the retry of {what} {key!r}")
    return StepOptions(timeout_s, retry, returns, upgrade)


def _close_all(calls: Any) -> None:
    """Of calls that are refused: Python would complain of each that it was never awaited."""
    given = calls.values() if isinstance(calls, Mapping) else calls
    for call in given if isinstance(given, Iterable) else ():
        if isinstance(call, Coroutine):
            call.close()
