"""`ctx.map`: one memoised step for each item, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from memable.codec import digest
from memable.context import StepOptions
from memable.errors import StepFailed


class MappingRun(Protocol):
    """What `MapCall` needs of its run."""

    name: str

    def admit_all(self, what: str, keys: Collection[str]) -> None: ...

    def has_record(self, key: str) -> bool: ...

    async def step(
        self, key: str, fn: Callable[..., Any], args: tuple[Any, ...], options: StepOptions, item: str = ""
    ) -> Any: ...

    def blame(self, raised: BaseException, others: Collection[BaseException]) -> None: ...


class MapCall:
    """One call of `ctx.map`.

    After a failure that ends it no further item is begun, and those begun come to their ends: so what is raised depends
    on the records alone, and is the same in every replay.
    """

    def __init__(
        self,
        run: MappingRun,
        key: str,
        items: Sequence[Any],
        fn: Callable[..., Any],
        options: StepOptions,
        *,
        fail_fast: bool,
    ) -> None:
        self._run, self._key, self._items, self._fn = run, key, items, fn
        self._options, self._fail_fast = options, fail_fast
        self._keys = [f"{key}[{index}]" for index in range(len(items))]
        self._digests: list[str] = []
        self._results: list[Any] = [None] * len(items)
        self._failures: dict[int, Exception] = {}
        self._has_lost = False

    async def results(self, concurrency: int | None) -> list[Any]:
        """The results in the order of the items, of which at most `concurrency` are on their way at a time."""
        what = f"map {self._key!r}"
        # what is wrong with any of them comes before the effect of the first
        self._run.admit_all(what, self._keys)
        self._digests = [
            digest(item, f"item {index} of {what} of {self._run.name}") for index, item in enumerate(self._items)
        ]
        left: list[int] = []
        for index, key in enumerate(self._keys):
            if self._run.has_record(key):  # no task for what takes no time
                await self._call(index)
            else:
                left.append(index)
        await self._call_all(left, concurrency or len(left))
        if fatal := self._fatal:
            self._run.blame(fatal[0], fatal[1:])
            raise fatal[0]
        return [self._failures.get(index, result) for index, result in enumerate(self._results)]

    @property
    def _fatal(self) -> list[Exception]:
        """The failures that end it, in the order of the items: any, or with `fail_fast=False` those of another kind."""
        if not self._failures:
            return []
        in_order = [self._failures[index] for index in sorted(self._failures)]
        return [each for each in in_order if self._fail_fast or not isinstance(each, StepFailed)]

    def begin_no_more(self) -> Sequence[str]:
        """Nobody waits for the results any more; the keys of its steps, of which those in flight may end."""
        self._has_lost = True
        return self._keys

    async def _call_all(self, indexes: Sequence[int], concurrency: int) -> None:
        left = iter(indexes)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(indexes))):
                group.create_task(self._call_some(left))

    async def _call_some(self, left: Iterator[int]) -> None:
        while not self._fatal and not self._has_lost and (index := next(left, None)) is not None:
            await self._call(index)

    async def _call(self, index: int) -> None:
        try:
            self._results[index] = await self._run.step(
                self._keys[index], self._fn, (self._items[index],), self._options, self._digests[index]
            )
        except Exception as error:
            self._failures[index] = error
