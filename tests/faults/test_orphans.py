"""What dead workers left behind is found and taken over, wherever it lies; what the living hold is left to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from memable import App, Client, Context, Engine, Invocation, Settings
from memable.keys import GROUP
from memable.state import Status
from memable.store import Store
from tests.faults.orphans import DEAD, abandon, staged
from tests.lua.stage import Stage
from tests.worker_process import TOO_LONG_S, until

LIVE = 1_000
ORPHANS = 500
SWEEPS = 5


async def attempts(invocations: list[Any]) -> Counter[tuple[Status, int]]:
    """How many instances are in which state after how many runs."""
    found = await asyncio.gather(*(invocation.metadata() for invocation in invocations))
    return Counter((each.status, each.attempt) for each in found)


class Sweeps:
    """How often a leader came round between the first and the last of what it tried to recover."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: list[tuple[str, Store]] = []
        self._watch(monkeypatch, "lead")
        self._watch(monkeypatch, "recover")

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        seen, method = self._seen, getattr(Store, name)

        async def watched(store: Store, *arguments: Any, **named: Any) -> Any:
            seen.append((name, store))
            return await method(store, *arguments, **named)

        monkeypatch.setattr(Store, name, watched)

    @property
    def count(self) -> int:
        recovering = [at for at, (name, _) in enumerate(self._seen) if name == "recover"]
        during = self._seen[recovering[0] : recovering[-1]]
        return 1 + max(Counter(store for name, store in during if name == "lead").values(), default=0)


async def test_500_orphans_behind_1000_live_entries_are_all_recovered_and_no_live_one_is(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, begun, may_end, sweeps = App(), list[str](), asyncio.Event(), Sweeps(monkeypatch)

    async def hold() -> None:
        begun.append("hold")
        await may_end.wait()

    @app.workflow("order")
    async def order(ctx: Context, takes_long: bool) -> None:
        if takes_long:
            await ctx.step("hold:v1", hold)

    # a sweep has a third of it: a slow machine comes through all of them in that
    settings = Settings(namespace=namespace, lease=6, concurrency=LIVE)
    async with Engine(app, url=redis_url, settings=settings) as living, staged(redis_url, namespace) as stage:
        live = await living.invoke_many(order, [True] * LIVE)
        await until(lambda: len(begun) == LIVE, "a worker that is full")
        orphans = await living.invoke_many(order, [False] * ORPHANS)
        assert len(await abandon(stage, "order")) == ORPHANS
        async with Engine(app, url=redis_url, settings=settings) as helper:
            completed = stage.of().index(Status.COMPLETED)

            async def all_are_completed() -> bool:
                return bool(await stage.command("ZCARD", completed) == ORPHANS)

            await until(all_are_completed, "the end of all orphans")
            assert await attempts(orphans) == {(Status.COMPLETED, 1): ORPHANS / 2, (Status.COMPLETED, 2): ORPHANS / 2}
            assert sweeps.count <= SWEEPS
            assert await attempts(live) == {(Status.RUNNING, 1): LIVE}
            may_end.set()
            await living.wait_all()
            assert await attempts(live) == {(Status.COMPLETED, 1): LIVE}
            assert helper._runtime.running == 0
    assert len(begun) == LIVE


async def leave_debris(stage: Stage, workflow: str, orphan_id: str, doomed_id: str) -> None:
    """A ghost, which was deleted before it was acknowledged, and an entry whose instance is gone."""
    keys, doomed = stage.keys.of(workflow, orphan_id), stage.keys.of(workflow, doomed_id)
    for name in (doomed.instance, doomed.steps):
        await stage.command("DEL", name)
    for status in Status:
        await stage.command("ZREM", doomed.index(status), doomed_id)
    ghost = await stage.command("XADD", keys.stream, "*", "i", orphan_id)
    assert len(await stage.deliver(keys, DEAD)) == 1
    await stage.command("XCLAIM", keys.stream, GROUP, DEAD, 0, ghost, "IDLE", 600_000, "JUSTID")
    await stage.command("XDEL", keys.stream, ghost)


async def test_orphans_of_all_workflows_and_partitions_are_recovered_and_debris_is_cleared(
    redis_url: str, namespace: str
) -> None:
    app, names, each = App(), ("order", "refund", "report"), 40

    async def work(ctx: Context, number: int) -> int:
        return await ctx.step("double:v1", lambda: number * 2, returns=int)

    for name in names:
        app.register(name, work)
    settings = Settings(namespace=namespace, lease=1, partitions=3)
    orphans: list[Invocation[int]] = []
    async with (
        Client(redis_url, app=app, settings=settings) as client,
        staged(redis_url, namespace, partitions=3) as stage,
    ):
        for name in names:
            ids = [f"{number}" for number in range(each)]
            for invocation in await client.invoke_many(name, range(each), ids=ids):
                assert isinstance(invocation, Invocation)
                orphans.append(invocation)
            assert len(await abandon(stage, name)) == each
            in_its_partition = {stage.keys.of(name, id).stream for id in ids}
            assert len(in_its_partition) == 3
            for orphan_id, doomed_id in (("0", "1"), ("2", "3")):
                await leave_debris(stage, name, orphan_id, doomed_id)
        survivors = [invocation for invocation in orphans if invocation.instance_id not in ("1", "3")]

        async with Engine(app, url=redis_url, settings=settings):
            results = await asyncio.gather(*(invocation.result(TOO_LONG_S) for invocation in survivors))
            assert results == [2 * int(invocation.instance_id) for invocation in survivors]

            async def nothing_is_in_hand() -> bool:
                streams = [partition.stream(name) for partition in stage.keys.partitions for name in names]
                lengths = await asyncio.gather(*(stage.command("XLEN", stream) for stream in streams))
                pending = await asyncio.gather(*(stage.command("XPENDING", stream, GROUP) for stream in streams))
                return not any(lengths) and not any(count for count, *_ in pending)

            await until(nothing_is_in_hand, "the end of ghosts, and of entries that name nobody")
        assert [await client.get_metadata(name, "1") for name in names] == [None] * len(names)
