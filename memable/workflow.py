"""What authors declare: `App`, `Workflow`, `SuspendPoint`. Plain declarations: nothing here talks to Redis."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeVar, get_type_hints, overload

from memable.context import Context
from memable.keys import check_key, check_name
from memable.retry import INHERIT, Duration, Inherit, RetryPolicy, checked_policy, to_seconds

I = TypeVar("I")  # noqa: E741  (the contract's own letters: Workflow[I, O])
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")

DEFAULT_RETENTION: Final = timedelta(days=7)
"""How long a terminal instance can be looked at, unless the app or the workflow says otherwise."""

Lifespan = Callable[["App"], AbstractAsyncContextManager[Mapping[str, Any] | None]]


class SuspendPoint(Generic[T]):
    """A place where an instance waits for a signal: key and payload type, shared by both sides.

    >>> APPROVAL = SuspendPoint("approval:v1", bool)
    >>> APPROVAL
    SuspendPoint('approval:v1', bool)

    Without a type the payload is plain JSON. `InvalidKey` for a key that cannot be one.
    """

    __slots__ = ("key", "type")

    @overload
    def __init__(self: SuspendPoint[Any], key: str) -> None: ...
    @overload
    def __init__(self, key: str, type: type[T]) -> None: ...
    @overload
    def __init__(self, key: str, type: Any) -> None: ...  # a type that is no class, such as `int | None`

    def __init__(self, key: str, type: Any = Any) -> None:
        self.key = check_key("suspend point", key)
        self.type = type

    def __repr__(self) -> str:
        return f"SuspendPoint({self.key!r}, {getattr(self.type, '__name__', self.type)})"


def key_of(point: SuspendPoint[Any] | str) -> str:
    """The key of a point that is given as such or by its key."""
    return point.key if isinstance(point, SuspendPoint) else point


@dataclass(frozen=True, eq=False)
class Workflow(Generic[I, O]):
    """A registered definition; `client.invoke(workflow, …)` knows its types. Made by an `App`."""

    app: App
    name: str
    fn: Callable[..., Awaitable[O]]
    takes_input: bool
    input_type: Any
    own_retry: RetryPolicy | None | Inherit
    own_retention: timedelta | None
    deadline_ms: int | None
    """For how long an instance may live, from its invoke, before it is failed."""

    @property
    def retry(self) -> RetryPolicy | None:
        """The policy of steps that name none: the workflow's, then the app's."""
        return self.app.default_retry if self.own_retry is INHERIT else self.own_retry

    @property
    def retention(self) -> timedelta:
        """How long an instance can be looked at after its end: the workflow's, then the app's."""
        return self.app.retention if self.own_retention is None else self.own_retention

    def __repr__(self) -> str:
        return f"<Workflow {self.name!r}>"


class _Decorator(Protocol):
    @overload
    def __call__(self, fn: Callable[[Context], Awaitable[O]], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, fn: Callable[[Context, I], Awaitable[O]], /) -> Workflow[I, O]: ...


class App:
    """A registry of workflows and their defaults; there is no global one.

    `default_retry` is the policy of steps that name none (default: no retries), `retention` how long a terminal
    instance is kept. `lifespan(app)` is an async context manager, entered once per worker process; the mapping that it
    yields is `ctx.resources` in every run. `codec` is reserved: anything but `None` is a `ValueError` for now.

    >>> app = App(default_retry=RetryPolicy.fixed(2, delay=1))
    >>> @app.workflow("greet")
    ... async def greet(ctx: Context, name: str) -> str:
    ...     return f"hello {name}"
    >>> greet
    <Workflow 'greet'>
    """

    def __init__(
        self,
        *,
        default_retry: RetryPolicy | None = None,
        retention: timedelta = DEFAULT_RETENTION,
        lifespan: Lifespan | None = None,
        codec: None = None,
    ) -> None:
        if codec is not None:
            raise ValueError(f"App(codec={codec!r}): other codecs than memable's own are not supported yet")
        checked_policy(default_retry, "default_retry")
        self.default_retry = default_retry
        self.retention = _checked_retention(retention)
        self.lifespan = lifespan
        self._workflows: dict[str, Workflow[Any, Any]] = {}
        self._running: dict[object, str] = {}

    def workflow(
        self,
        name: str | None = None,
        *,
        retry: RetryPolicy | None | Inherit = INHERIT,
        retention: timedelta | None = None,
        deadline: Duration | None = None,
    ) -> _Decorator:
        """Register the decorated function as a workflow; its name by default. Errors as for `register`."""
        if callable(name):  # @app.workflow without parentheses
            raise TypeError(f"write @app.workflow() or @app.workflow('a name') above {name!r}, with parentheses")

        def decorate(fn: Callable[..., Awaitable[Any]]) -> Workflow[Any, Any]:
            chosen = getattr(fn, "__name__", None) if name is None else name
            return self.register(chosen, fn, retry=retry, retention=retention, deadline=deadline)  # type: ignore[arg-type,misc]  # checked there

        return decorate

    @overload
    def register(
        self,
        name: str,
        fn: Callable[[Context], Awaitable[O]],
        *,
        retry: RetryPolicy | None | Inherit = INHERIT,
        retention: timedelta | None = None,
        deadline: Duration | None = None,
    ) -> Workflow[None, O]: ...

    @overload
    def register(
        self,
        name: str,
        fn: Callable[[Context, I], Awaitable[O]],
        *,
        retry: RetryPolicy | None | Inherit = INHERIT,
        retention: timedelta | None = None,
        deadline: Duration | None = None,
    ) -> Workflow[I, O]: ...

    def register(
        self,
        name: str,
        fn: Callable[..., Awaitable[Any]],
        *,
        retry: RetryPolicy | None | Inherit = INHERIT,
        retention: timedelta | None = None,
        deadline: Duration | None = None,
    ) -> Workflow[Any, Any]:
        """Register `async def fn(ctx)` or `async def fn(ctx, input)` under `name`.

        `deadline`: seconds or a `timedelta` from the invoke, or from the last `resume` of an instance that had ended.
        An instance that lives longer is failed then, with `error_type` `DeadlineExceeded`, wherever it is: queued,
        running (its worker is told, as for a cancel) or suspended.

        `InvalidKey` for a name that cannot be one, `ValueError` for one that is taken or for a deadline that is not
        positive, `TypeError` for a function of
        another form or a `retry` that is no policy, `RuntimeError` once an engine or worker has started with this app.
        """
        check_name("workflow", name)
        if name in self._workflows:
            raise ValueError(f"workflow {name!r} is registered already: {self._workflows[name].fn!r}")
        takes_input, input_type = _signature(name, fn)
        for who in self._running.values():
            raise RuntimeError(f"workflow {name!r} registered too late: {who} has started with this app")
        workflow: Workflow[Any, Any] = Workflow(
            app=self,
            name=name,
            fn=fn,
            takes_input=takes_input,
            input_type=input_type,
            own_retry=checked_policy(retry, f"the retry of workflow {name!r}"),
            own_retention=None if retention is None else _checked_retention(retention),
            deadline_ms=None if deadline is None else _deadline_ms(name, deadline),
        )
        self._workflows[name] = workflow
        return workflow

    def get(self, name: str) -> Workflow[Any, Any] | None:
        """The workflow registered as `name`, if there is one."""
        return self._workflows.get(name)

    def __iter__(self) -> Iterator[Workflow[Any, Any]]:
        return iter(list(self._workflows.values()))

    def freeze(self, runner: object, who: str) -> None:
        """Refuse further registrations until `thaw` of the same runner: it has announced the workflows."""
        self._running[runner] = who

    def thaw(self, runner: object) -> None:
        """Allow registrations again, if nothing else runs with this app."""
        self._running.pop(runner, None)


def _deadline_ms(name: str, deadline: Duration) -> int:
    seconds = to_seconds(deadline, f"the deadline of workflow {name!r}")
    if seconds <= 0:
        raise ValueError(f"the deadline of workflow {name!r} must be positive, not {deadline!r}")
    return math.ceil(seconds * 1000)


def _checked_retention(retention: timedelta) -> timedelta:
    if retention <= timedelta(0):
        raise ValueError(f"retention must be positive, not {retention!r}")
    return retention


def _signature(name: str, fn: Callable[..., Any]) -> tuple[bool, Any]:
    """Whether the workflow takes an input, and of which type; `TypeError` for a function of another form."""
    form = "a workflow is 'async def f(ctx)' or 'async def f(ctx, input)'"
    if not callable(fn):
        raise TypeError(f"workflow {name!r}: {form}, not {fn!r}")
    call = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004  (an object with async __call__)
    if not (inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)):
        why = "is an async generator" if inspect.isasyncgenfunction(fn) else "is not async"
        raise TypeError(f"workflow {name!r}: {form}, and {fn!r} {why}")
    parameters = list(inspect.signature(fn).parameters.values())
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(f"workflow {name!r}: {form}, and {fn!r} has the parameter '{parameter}'")
    if len(parameters) not in (1, 2):
        raise TypeError(f"workflow {name!r}: {form}, and {fn!r} takes {len(parameters)} arguments")
    if len(parameters) == 1:
        return False, None
    try:
        hints = get_type_hints(call, include_extras=True)
    except Exception as error:  # an annotation can raise anything
        raise TypeError(f"workflow {name!r}: the annotations of {fn!r} cannot be resolved: {error}") from error
    return True, hints.get(parameters[1].name, Any)
