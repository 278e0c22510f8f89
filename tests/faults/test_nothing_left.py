"""What has ended leaves nothing behind that stays for ever, but for what keys.py lists as permanent."""

from __future__ import annotations

import asyncio
import re

from memable import App, Context, Engine, PermanentError, Settings, Status, SuspendPoint
from memable import keys as layout
from memable.keys import GROUP
from tests.faults.orphans import staged
from tests.lua import invariants
from tests.worker_process import TOO_LONG_S, until

FINISHED = 10_000
EACH = 200
GO = SuspendPoint("go:v1", str)

_ROW = re.compile(r"^\| `(ns:[^`]+)` .*\| (.+?) +\|$", re.MULTILINE)
_MEANING = {"{p}": r"\{\d+\}", "WF/": r"\w+/", "ID": ".+", "STATUS": r"\w+", "WORKER": ".+", "WF": r"\w+"}
_PLACEHOLDER = re.compile("|".join(map(re.escape, _MEANING)))


def documented_lifetime(name: str, namespace: str) -> str:
    """What the table of keys.py says of a name."""
    assert layout.__doc__ is not None
    for pattern, lifetime in _ROW.findall(layout.__doc__):
        meant = _PLACEHOLDER.sub(lambda match: _MEANING[match[0]], pattern.removeprefix("ns:"))
        if re.fullmatch(meant, name.removeprefix(f"{namespace}:")):
            return str(lifetime)
    raise AssertionError(f"{name} is not in the table of keys.py")


def names_of(scene: invariants.Scene) -> set[str]:
    return {*scene.hashes, *scene.zsets, *scene.streams, *scene.strings}


async def test_10000_finished_instances_leave_no_entry_and_nothing_without_a_lifetime(
    redis_url: str, namespace: str
) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context, number: int) -> int:
        return await ctx.step("double:v1", lambda: number * 2, returns=int)

    async with staged(redis_url, namespace) as stage:
        async with Engine(app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
            await engine.invoke_many(order, range(FINISHED))
            await engine.wait_all()
            keys = engine._online().store.keys.of("order", "any")
            assert await stage.command("XLEN", keys.stream) == 0
            assert (await stage.command("XPENDING", keys.stream, GROUP))[0] == 0
        scene = await stage.check()
    assert {name: len(members) for name, members in scene.zsets.items()} == {
        keys.index(Status.COMPLETED): FINISHED,
        keys.expiry: FINISHED,
    }
    permanent = {name: documented_lifetime(name, namespace) for name in names_of(scene) - scene.expires_ms.keys()}
    assert set(permanent.values()) == {"for ever", "for ever; empty idle", "trimmed by the leader"}
    assert len(permanent) == 5
    assert len(scene.expires_ms) == 2 * FINISHED


async def refuse() -> None:
    raise PermanentError("out of stock")


async def test_after_the_retention_nothing_is_left_of_instances_however_they_ended(
    redis_url: str, namespace: str
) -> None:
    app = App()

    @app.workflow("completes")
    async def completes(ctx: Context) -> str:
        return await ctx.step("charge:v1", lambda: "charged", returns=str)

    @app.workflow("fails")
    async def fails(ctx: Context) -> None:
        # what it still waits for is withdrawn
        await asyncio.gather(ctx.timer("later:v1", 3600), ctx.suspend(GO), ctx.step("ship:v1", refuse))

    @app.workflow("waits")
    async def waits(ctx: Context) -> None:
        await asyncio.gather(ctx.timer("soon:v1", 0.01), ctx.suspend(GO))

    settings = Settings(namespace=namespace, retention=0.01)
    async with staged(redis_url, namespace) as stage:
        async with Engine(app, url=redis_url, settings=settings) as engine:
            ids = [f"{number}" for number in range(EACH)]
            for workflow in (completes, fails, waits):
                await engine.invoke_many(workflow, [None] * EACH, ids=ids)
            for id in ids:
                await engine.get(waits, id).wait(TOO_LONG_S)
                await engine.signal(waits, id, GO, "go")
            await engine.wait_all()
        async with Engine(app, url=redis_url, settings=settings):  # its leader trims at once

            async def is_trimmed() -> bool:
                return not any(name.startswith(stage.keys.partitions[0].prefix + "index:") for name in await zsets())

            async def zsets() -> set[str]:
                return set((await invariants.look(stage.wiretap, namespace)).zsets)

            await until(is_trimmed, "the end of the listing")
        left = names_of(await stage.check())
    assert {documented_lifetime(name, namespace) for name in left} == {"for ever", "for ever; empty idle"}
    assert left == {
        *(stage.keys.partitions[0].stream(name) for name in ("completes", "fails", "waits")),
        stage.keys.workflows,
        stage.keys.meta(namespace),
    }
