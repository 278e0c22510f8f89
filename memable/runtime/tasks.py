"""The tasks of a run: which are alive, what each waits for, and every sign of life.

A run parks when none of its tasks can go on by itself (run.py). Counting turns of the loop cannot tell: with `gather`s
nested d deep, 2 d + 1 turns pass between the end of the innermost task and the next durable call. So a task factory,
chained to whatever was there, wraps each coroutine that is started from a run's context.
"""

from __future__ import annotations

import asyncio
import asyncio.locks
import asyncio.queues
import asyncio.taskgroups
import asyncio.tasks
import asyncio.timeouts
import gc
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from types import CodeType, TracebackType
from typing import Any

from memable.errors import StepConflict

AnyFuture = asyncio.Future[Any]


class EscapedExit(Exception):
    """An author's SystemExit, KeyboardInterrupt or GeneratorExit, kept from stopping the worker or closing its awaiter.

    The original is `__cause__`.
    """


class RunTasks:
    """The tasks of one run."""

    __slots__ = ("activity", "life", "name", "on_change", "own_futures", "tasks", "watched")

    def __init__(self, name: str, activity: Activity, on_change: Callable[[], None]) -> None:
        self.name = name
        self.activity = activity
        self.on_change = on_change
        self.life = 0
        """Counts signs of life: each time a task of the run is resumed, and each durable event."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.watched: set[Watched] = set()
        self.own_futures: set[AnyFuture] = set()
        """What durable waits wait for: nothing outside the run decides them."""

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the first task; what it starts in turn belongs to the run too."""
        context = copy_context()
        context.run(_current_tasks.set, self)
        return context.run(asyncio.get_running_loop().create_task, coroutine)

    def any_decided(self) -> bool:
        """Whether a task waits for something that is done, or will be in the next turns."""
        return any(each.waits_for is None or _is_decided(each.waits_for) for each in self.watched)

    def foreign_wait(self) -> str | None:
        """What a task waits for that only something outside the run can decide; nothing if there is no such task."""
        for each in self.watched:
            if each.waits_for is not None and self._is_foreign(each.waits_for, each):
                code = _innermost_code(each.coroutine)
                return code.co_qualname if code is not None else repr(each.waits_for)
        return None

    def _is_foreign(self, future: AnyFuture, waiter: Watched | None) -> bool:
        if future in self.own_futures or future in self.tasks:
            return False
        children = getattr(future, "_children", None)
        if children:
            return any(not child.done() and self._is_foreign(child, None) for child in children)
        if (shielded := _shielded(future)) is not None:
            return self._is_foreign(shielded, None)
        code = None if waiter is None else _innermost_code(waiter.coroutine)
        return code is None or not _waits_for_other_tasks(code)


_current_tasks: ContextVar[RunTasks | None] = ContextVar("memable_current_tasks", default=None)


def current_tasks() -> RunTasks | None:
    """The tasks of the run whose code is running here; nothing outside of one, and inside its steps."""
    return _current_tasks.get()


def leave_run() -> None:
    """For the context of a step: what a step starts (a connection pool's task) is not the run's."""
    _current_tasks.set(None)


class Activity:
    """What the event loop resumed last, for the thread that notices when the loop is blocked."""

    __slots__ = ("what",)

    def __init__(self) -> None:
        self.what: object = "memable itself"


class Watched(Coroutine[Any, Any, Any]):
    """Drives a coroutine of a run, counts its resumptions, and keeps the future that it waits for."""

    __slots__ = ("coroutine", "tasks", "waits_for")

    def __init__(self, tasks: RunTasks, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.tasks, self.coroutine = tasks, coroutine
        self.waits_for: AnyFuture | None = None
        tasks.watched.add(self)

    def send(self, value: Any) -> Any:
        return self._resume(self.coroutine.send, value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None) -> Any:  # noqa: ARG002  (inherited)
        return self._resume(self.coroutine.throw, typ if val is None else val)

    def close(self) -> None:
        self.coroutine.close()
        self._ended()

    def __await__(self) -> Generator[Any, Any, Any]:
        value = yield from self.coroutine.__await__()
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coroutine, name)  # cr_frame, cr_code, __qualname__ … for those who look at tasks

    def _resume(self, send: Callable[[Any], Any], value: Any) -> Any:
        tasks = self.tasks
        tasks.life += 1
        tasks.activity.what = tasks.name
        try:
            waits_for = send(value)
            if isinstance(waits_for, asyncio.Task) and waits_for not in tasks.tasks:
                waits_for = self._refuse_foreign_task(waits_for)
            self.waits_for = waits_for
            return waits_for
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as exit:
            self._ended()
            raise EscapedExit from exit
        except BaseException:
            self._ended()
            raise

    def _refuse_foreign_task(self, task: asyncio.Task[Any]) -> Any:
        """A task of another run dies when that run parks: waiting for it would hang, or cancel this one."""
        other = task.get_coro()
        if not isinstance(other, Watched) or other.tasks is self.tasks:
            return task
        task._asyncio_future_blocking = False  # it was yielded, and nobody waits for it
        return self.coroutine.throw(
            StepConflict(
                f"{self.tasks.name} waits for a task of {other.tasks.name}: a run can wait for its own tasks only; "
                f"use a signal, or a step",
                key="",
            )
        )

    def _ended(self) -> None:
        self.tasks.watched.discard(self)
        self.tasks.on_change()


TaskFactory = Callable[..., asyncio.Future[Any]]


class _WatchingFactory:
    """A task factory that shows each run the tasks which it starts."""

    def __init__(self, before: TaskFactory) -> None:
        self.before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Context | None = None, **options: Any
    ) -> asyncio.Future[Any]:
        if context is not None:
            options["context"] = context
        tasks = _current_tasks.get()
        # installed twice, with another factory in between: the outer one has wrapped it already
        if tasks is None or isinstance(coroutine, Watched):
            return self.before(loop, coroutine, **options)
        if context is not None:
            context.run(_current_tasks.set, tasks)
        task = self.before(loop, Watched(tasks, coroutine), **options)
        if isinstance(task, asyncio.Task):
            tasks.tasks.add(task)
            task.add_done_callback(tasks.tasks.discard)
        return task


def _plain_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


def install_task_factory(loop: asyncio.AbstractEventLoop) -> None:
    """See to it that runs see their tasks: chained to the factory that is there.

    Cheap to call again, in case it was replaced.
    """
    before = loop.get_task_factory()
    if not isinstance(before, _WatchingFactory):
        loop.set_task_factory(_WatchingFactory(before or _plain_task))


def _is_decided(future: AnyFuture) -> bool:
    """Whether `future` is done, or will be in the next turns because all that it gathers is."""
    if future.done():
        return True
    children: list[AnyFuture] = getattr(future, "_children", None) or []
    return bool(children) and all(map(_is_decided, children))


def _shielded(future: AnyFuture) -> AnyFuture | None:
    """The future behind `asyncio.shield`'s outer one, which only its callback knows."""
    callbacks: Any = getattr(future, "_callbacks", None)
    for callback, _ in () if callbacks is None else callbacks:
        if getattr(callback, "__qualname__", "") == "shield.<locals>._outer_done_callback":
            for cell in callback.__closure__ or ():
                if isinstance(cell.cell_contents, asyncio.Future) and cell.cell_contents is not future:
                    return cell.cell_contents
    return None


async def _coroutine() -> None: ...


def _type_of_awaited() -> type:
    coroutine = _coroutine()
    try:
        return type(coroutine.__await__())
    finally:
        coroutine.close()


_AWAITED = _type_of_awaited()
"""What stands for a coroutine in the chain behind an object whose `__await__` gives that of a coroutine of its own."""


def _innermost_code(coroutine: Any) -> CodeType | None:
    """The code that awaits a future: the end of the chain of coroutines that await one another."""
    code: CodeType | None = None
    while coroutine is not None:
        if isinstance(coroutine, _AWAITED):
            (coroutine,) = gc.get_referents(coroutine)  # nothing else tells
        for kind in ("cr", "gi", "ag"):
            found = getattr(coroutine, f"{kind}_code", None)
            if isinstance(found, CodeType):
                code = found
                coroutine = getattr(coroutine, {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}[kind], None)
                break
        else:
            break
    return code


_BETWEEN_TASKS = {
    asyncio.locks.__file__: None,
    asyncio.queues.__file__: None,
    asyncio.taskgroups.__file__: None,
    asyncio.timeouts.__file__: None,
    asyncio.tasks.__file__: frozenset({"_wait", "wait", "wait_for", "_wait_for_one", "_cancel_and_wait"}),
}
"""Where asyncio waits for other tasks: whole modules, or the named functions of one."""


def _waits_for_other_tasks(code: CodeType) -> bool:
    names = _BETWEEN_TASKS.get(code.co_filename, frozenset())
    return names is None or code.co_name in names


def is_being_cancelled() -> bool:
    """Whether somebody has cancelled the current task, rather than what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
