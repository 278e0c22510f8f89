"""Instances that do nothing but their steps, and clients that start and await them; noop_worker.py runs them.

Each role is a process of its own, and prints what it measured as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvloop

import memable
from memable import App, Context


@asynccontextmanager
async def lifespan(_: App) -> AsyncIterator[Mapping[str, float]]:
    yield {"begin_cpu_s": time.process_time()}


app = App(lifespan=lifespan)


async def nothing() -> dict[str, int]:
    return {"a": 1}


@app.workflow("noop")
async def noop(ctx: Context, order: dict[str, Any]) -> dict[str, float]:
    for number in range(order["steps"]):
        await ctx.step(f"s{number}", nothing)
    return {"cpu_s": time.process_time() - ctx.resources["begin_cpu_s"]}


def order(steps: int) -> dict[str, Any]:
    return {"steps": steps, "items": [1, 2, 3]}


async def invoke(url: str, instances: int, steps: int) -> dict[str, float]:
    """Start instances `0`, `1`, … of so many steps each."""
    async with await memable.connect(url, app=app) as client:
        inputs, ids = [order(steps)] * instances, [str(number) for number in range(instances)]
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        handles = await client.invoke_many(noop, inputs, ids=ids)
        measured = {"elapsed_s": time.perf_counter() - begin_s, "cpu_s": time.process_time() - begin_cpu_s}
        assert all(isinstance(handle, memable.Invocation) and handle.created for handle in handles)
        return measured


async def latency(url: str, instances: int) -> dict[str, Any]:
    """From invoke to result, one after another; the first ones only warm up."""
    async with await memable.connect(url, app=app) as client:
        latencies_ms: list[float] = []
        for _ in range(instances + 20):
            begin_s = time.perf_counter()
            invocation = await client.invoke(noop, order(1))
            await invocation.result()
            latencies_ms.append((time.perf_counter() - begin_s) * 1000)
        return {"latencies_ms": latencies_ms[20:]}


async def usage(url: str) -> dict[str, float]:
    """The CPU time that the worker has used since it was ready."""
    async with await memable.connect(url, app=app) as client:
        return await (await client.invoke(noop, order(0))).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=["invoke", "latency", "usage"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1)
    given = parser.parse_args()
    match given.role:
        case "invoke":
            print(json.dumps(uvloop.run(invoke(given.url, given.instances, given.steps))))
        case "latency":
            print(json.dumps(uvloop.run(latency(given.url, given.instances))))
        case _:
            print(json.dumps(uvloop.run(usage(given.url))))


if __name__ == "__main__":
    main()
