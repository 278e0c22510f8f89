"""Threads for sync steps: our own, since the default executor has six on two cores, and its threads hold up exit."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any

from memable.runtime.tasks import EscapedExit


def _nothing() -> None:
    return None


_Work = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class StepThreads:
    """Up to `limit` daemon threads, started when needed: a sync step that never ends cannot keep the process alive."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._started = 0
        self._taken = 0
        """Threads that make a call, or are promised to one."""
        self._in_line: deque[asyncio.Future[None]] = deque()

    async def run(
        self,
        context: Context,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        before_late_call: Callable[[], Awaitable[None] | None] = _nothing,
    ) -> Any:
        """`fn(*args)` in a thread, in `context`. Cancelled, a call that has begun goes on; its result is dropped.

        `before_late_call` is asked when the call had to wait for a thread: much may have changed meanwhile.
        """
        loop = asyncio.get_running_loop()
        if self._taken < self._limit:
            self._taken += 1
        else:
            await self._wait_in_line(loop)
            try:
                if (asking := before_late_call()) is not None:
                    await asking
            except BaseException:
                self._give_away()
                raise
        if self._started < self._taken:  # no more than `limit`, and one for each call that waits for a thread
            try:
                threading.Thread(target=self._work, name=f"memable-step-{self._started + 1}", daemon=True).start()
            except BaseException:  # no more threads are allowed: nothing is left in the queue to be called later
                self._give_away()
                raise
            self._started += 1
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.put((lambda: context.run(fn, *args), future, loop))
        return await future

    async def _wait_in_line(self, loop: asyncio.AbstractEventLoop) -> None:
        turn: asyncio.Future[None] = loop.create_future()
        self._in_line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_away()  # its turn came in the same moment
            raise

    def _give_away(self) -> None:
        """A thread is free: it is the next one's in line."""
        while self._in_line:
            turn = self._in_line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1

    def close(self) -> None:
        """Let idle threads end; busy ones end after what they do."""
        for _ in range(self._started):
            self._queue.put(None)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            call, future, loop = work
            error: BaseException | None = None
            result = None
            if not future.cancelled():  # else it is the call of a run that is over, or of a step timed out
                try:
                    result = call()
                except BaseException as raised:  # a step's SystemExit is its failure, not the thread's end
                    error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(self._end, future, result, error)
            del work, call, future, loop, result, error  # not kept alive until the next call

    def _end(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._give_away()
        _settle(future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future refuses it
        raised = RuntimeError(f"the step raised StopIteration: {error}")
        raised.__cause__ = error
        future.set_exception(raised)
    elif isinstance(error, GeneratorExit):  # it would close the coroutine that waits
        escaped = EscapedExit()
        escaped.__cause__ = error
        future.set_exception(escaped)
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
