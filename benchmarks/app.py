"""The workflows that are measured. A worker has those that BENCH_WORKFLOW names: each is read from a stream."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import memable
from memable import App, Context, Workflow

STEP_S = 0.002
"""How long a step of `wait_for_io` waits, and one of `compute` computes."""


@asynccontextmanager
async def lifespan(_: App) -> AsyncIterator[Mapping[str, float]]:
    yield {"begin_cpu_s": time.process_time()}


async def nothing() -> dict[str, int]:
    return {"a": 1}


async def wait_for_io_once() -> None:
    await asyncio.sleep(STEP_S)


async def compute_once() -> None:
    begin_s = time.thread_time()
    while time.thread_time() - begin_s < STEP_S:
        pass


async def noop(ctx: Context, order: dict[str, Any]) -> float:
    """So many steps that do nothing; returns the CPU time that its process has used so far."""
    for number in range(order["steps"]):
        await ctx.step(f"s{number}", nothing)
    begin_cpu_s: float = ctx.resources["begin_cpu_s"]
    return time.process_time() - begin_cpu_s


async def in_a_row(ctx: Context, steps: int) -> float:
    """Seconds from its first step to its last."""
    begin_s = time.perf_counter()
    for number in range(steps):
        await ctx.step(f"s{number}", nothing)
    return time.perf_counter() - begin_s


async def hold(ctx: Context, for_s: float) -> None:
    """Holds its instance after its first step."""
    await ctx.step("s0", nothing)
    await ctx.step("hold", asyncio.sleep, for_s, returns=None)


async def wait_for_io(ctx: Context, steps: int) -> None:
    for number in range(steps):
        await ctx.step(f"s{number}", wait_for_io_once)


async def compute(ctx: Context, steps: int) -> None:
    for number in range(steps):
        await ctx.step(f"s{number}", compute_once)


async def approve(ctx: Context, order: dict[str, Any]) -> None:
    """So many steps, and then a signal is waited for."""
    for number in range(order["steps"]):
        await ctx.step(f"s{number}", nothing)
    await ctx.suspend("approval")


async def fan_out(ctx: Context, asked: dict[str, Any]) -> int:
    """So many children with one step each; returns how many have returned."""
    inputs = [order(1)] * asked["children"]
    return len(await ctx.fan_out("children", inputs, "noop", concurrency=asked["concurrency"]))


async def wake(ctx: Context, due_s: float) -> float:
    """How many milliseconds after `due_s` (of the epoch) it was woken."""
    await ctx.sleep_until("due", datetime.fromtimestamp(due_s, UTC))
    return (time.time() - due_s) * 1000


_FUNCTIONS: tuple[Callable[..., Any], ...] = (noop, in_a_row, hold, wait_for_io, compute, approve, fan_out, wake)


def make(names: list[str]) -> tuple[App, dict[str, Workflow[Any, Any]]]:
    app = App(lifespan=lifespan)
    return app, {each.__name__: app.register(each.__name__, each) for each in _FUNCTIONS if each.__name__ in names}


def order(steps: int) -> dict[str, Any]:
    return {"steps": steps, "items": [1, 2, 3]}


APP, WORKFLOWS = make([each.__name__ for each in _FUNCTIONS])
"""For clients."""

WorkerSettings = memable.worker_settings(make(os.environ.get("BENCH_WORKFLOW", "noop").split(","))[0])
"""`BENCH_WORKFLOW=noop arq benchmarks.app.WorkerSettings`, from the root."""
