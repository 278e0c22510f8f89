"""`DurableCall`: what the durable calls of a `Context` return, to await, or to hand to `gather`, `first` and others."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

from memable.state import StepKind

T_co = TypeVar("T_co", covariant=True)


class DurableCall(Coroutine[Any, Any, T_co]):
    """A durable call: a coroutine object that knows its key; to await, or to hand to `gather` and the like."""

    __slots__ = ("_coroutine", "calls", "key", "kind", "on_loss", "run")

    def __init__(
        self,
        kind: StepKind,
        key: str,
        coroutine: Coroutine[Any, Any, T_co],
        run: object,
        *,
        calls: Collection[DurableCall[Any]] = (),
        on_loss: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.kind, self.key, self.run = kind, key, run
        self.calls = calls
        """What this one will await: closed with it if it never begins."""
        self.on_loss = on_loss
        """What is to be done when another member of a `first` was chosen, then and in every replay; idempotent."""
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None) -> Any:
        self._close_calls()
        # the three-argument form is what the abstract class has; asyncio and Python itself use the one-argument form
        return self._coroutine.throw(typ) if val is None and tb is None else self._coroutine.throw(typ, val, tb)

    def close(self) -> None:
        self._close_calls()
        self._coroutine.close()

    @property
    def has_begun(self) -> bool:
        """Whether it was awaited, or closed."""
        return inspect.getcoroutinestate(self._coroutine) != inspect.CORO_CREATED

    def _close_calls(self) -> None:
        if self.calls and not self.has_begun:
            for call in self.calls:
                call.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # cr_await, cr_code … for those who look at what a task waits for

    def __repr__(self) -> str:
        return f"<DurableCall {self.key!r}>"
