"""`DurableCall`: what the durable calls of a `Context` return, to await or to hand to `gather` and the like."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

T_co = TypeVar("T_co", covariant=True)


class DurableCall(Coroutine[Any, Any, T_co]):
    """A durable call: a coroutine object that knows its key; to await, or to hand to `gather` and the like."""

    __slots__ = ("_coroutine", "key")

    def __init__(self, key: str, coroutine: Coroutine[Any, Any, T_co]) -> None:
        self.key = key
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None) -> Any:
        # the three-argument form is what the abstract class has; asyncio and Python itself use the one-argument form
        return self._coroutine.throw(typ) if val is None and tb is None else self._coroutine.throw(typ, val, tb)

    def close(self) -> None:
        self._coroutine.close()

    def __repr__(self) -> str:
        return f"<DurableCall {self.key!r}>"
