"""`TestEngine`: an engine for tests of workflows."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from memable.connection import ScriptConnection
from memable.engine import Engine
from memable.keys import Partition
from memable.retry import Duration, to_seconds
from memable.runtime.runtime import Runtime
from memable.testing.calls import Called, Script, ScriptedCaller
from memable.workflow import App

if TYPE_CHECKING:
    from memable.settings import Settings

_LOOK_EVERY_S: Final = 0.002
_SETTLES_WITHIN_S: Final = 30.0


class TestEngine(Engine):
    """An engine with a private server, for tests: time passes when it is told to, and steps can be replaced.

    `overrides` names steps by their keys, and what is called in their place, sync or async, with the same arguments
    (`unittest.mock.Mock` will do); the result must fit the type of the step. The key of a `ctx.map` stands for all its
    items.

    >>> from datetime import timedelta
    >>> from memable.testing import TestEngine
    >>> app = App()
    >>> @app.workflow("remind")
    ... async def remind(ctx: Context, name: str) -> str:
    ...     await ctx.timer("a while:v1", timedelta(days=3))
    ...     return await ctx.step("mail:v1", send_mail, name)
    >>> async def send_mail(name: str) -> str:
    ...     raise ConnectionError("no mail from tests")
    >>> async def main() -> None:
    ...     async with TestEngine(app, overrides={"mail:v1": lambda name: f"sent to {name}"}) as engine:
    ...         reminder = await engine.invoke(remind, "Ann")
    ...         print(await reminder.wait())
    ...         await engine.advance(timedelta(days=3))
    ...         print(await reminder.result())
    ...         engine.assert_called("mail:v1", times=1)
    >>> asyncio.run(main())
    suspended: a while:v1
    sent to Ann
    """

    __test__ = False  # pytest would take it for a class of tests

    def __init__(
        self,
        app: App,
        *,
        overrides: Mapping[str, Callable[..., Any]] | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(app, settings=settings)
        self.script = Script(overrides or {})

    def _new_runtime(self, settings: Settings) -> Runtime:
        return Runtime(
            self.app, settings, caller=lambda threads, activity: ScriptedCaller(threads, activity, self.script)
        )

    def kill(self, name: str) -> None:
        """End the run of the instance `WF/ID` as the death of its process would; it is run again at once."""
        self._runtime.hand_back(name)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def calls(self) -> list[Called]:
        """Every attempt of a step so far, in the order in which they began; steps that were replayed are not there."""
        return list(self.script.calls)

    def assert_called(self, key: str, *, times: int | None = None) -> None:
        """`AssertionError` unless the step `key` was called, so many times if `times` is given; retries count."""
        count = sum(call.key == key for call in self.script.calls)
        if count == 0 if times is None else count != times:
            wanted = "at all" if times is None else f"{times} times, but {count}"
            raise AssertionError(f"step {key!r} was not called {wanted}; {self._called()}")

    def assert_not_called(self, *keys: str) -> None:
        """`AssertionError` if one of these steps was called."""
        for key in keys:
            if any(call.key == key for call in self.script.calls):
                raise AssertionError(f"step {key!r} was called; {self._called()}")

    def _called(self) -> str:
        return f"called were: {', '.join(repr(call.key) for call in self.script.calls) or 'none'}"

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def advance(self, by: Duration) -> None:
        """Let so much time pass at once: whatever falls due in it happens, in order, and all that follows from it.

        Timers, timeouts of waits, delays, retries and deadlines of all instances come nearer by `by` (seconds or
        `timedelta`). Where one of them leads to another, that one counts from the moment at which the first fell due.
        Returns when nothing is queued or running any more. The clock itself does not change: `datetime.now()` in a
        workflow, and so `sleep_until`, go on by the real one; nor is retention over any sooner.

        `TimeoutError` if some instance still runs after 30 s of real time; `ValueError` for a negative duration.
        """
        left_ms = to_seconds(by, "the time to advance by") * 1000
        if left_ms < 0:
            raise ValueError(f"time only goes forward: {by!r}")
        await self.settle()
        while (due_ms := await self._next_due_ms()) is not None and due_ms <= left_ms:
            await self._bring_nearer(due_ms)
            await self.settle()
            left_ms -= due_ms
        await self._bring_nearer(left_ms)

    async def advance_to_next(self) -> bool:
        """Let time pass until the next thing falls due; whether there was any."""
        await self.settle()
        due_ms = await self._next_due_ms()
        if due_ms is None:
            return False
        await self._bring_nearer(due_ms)
        await self.settle()
        return True

    async def settle(self) -> None:
        """Wait until nothing is due, queued or running, and no child outlives its parent. `TimeoutError` after 30 s."""
        try:
            async with asyncio.timeout(_SETTLES_WITHIN_S):
                # workers and the leader tell Redis, and nobody else
                while await self._is_due() or await self._has_orphans() or not await self._runtime.is_idle():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            names = ", ".join(self._runtime.running_names) or "something"
            raise TimeoutError(f"{names} still runs after {_SETTLES_WITHIN_S:g} s: nothing comes to rest") from None

    @property
    def _partitions(self) -> tuple[Partition, ...]:
        return self._online().store.keys.partitions

    async def _is_due(self) -> bool:
        due_ms = await self._next_due_ms()
        return due_ms is not None and due_ms <= 0

    async def _has_orphans(self) -> bool:
        """Whether the leader has still to cancel children of those that have ended."""
        command = self._online().connection.command
        return any([await command("ZCARD", each.bereaved) for each in self._partitions])

    async def _next_due_ms(self) -> int | None:
        """How long it is until the next deadline: 0 if that is past, nothing if there is none."""
        command = self._online().connection.command
        firsts = [await command("ZRANGE", each.timers, 0, 0, "WITHSCORES") for each in self._partitions]
        scores = [float(first[1]) for first in firsts if first]
        if not scores:
            return None
        seconds, us = await command("TIME")
        return max(0, math.ceil(min(scores) - (int(seconds) * 1000 + int(us) / 1000)))

    async def _bring_nearer(self, by_ms: float) -> None:
        await bring_nearer(self._online().connection, self._partitions, by_ms)


async def bring_nearer(connection: ScriptConnection, partitions: Iterable[Partition], by_ms: float) -> None:
    """All deadlines that there are; one that is added meanwhile counts from now, and stays."""
    for partition in partitions:
        timers = await connection.command("ZRANGE", partition.timers, 0, -1, "WITHSCORES")
        words = [word for at in range(0, len(timers), 2) for word in (float(timers[at + 1]) - by_ms, timers[at])]
        if words:
            await connection.command("ZADD", partition.timers, "XX", *words)
            await connection.command("PUBLISH", partition.wake, "")
