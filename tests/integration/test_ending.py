"""A loop that ends around a running engine, without stop(): the process ends, whatever its runs are doing."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

from tests.worker_process import TOO_LONG_S

PROGRAM = """
import asyncio, threading
from memable import App, Context, Engine, RetryPolicy

app = App()
reached = threading.Event()

async def hangs() -> None:
    reached.set()
    await asyncio.Event().wait()

def hangs_in_a_thread() -> None:
    reached.set()
    threading.Event().wait()

def fails() -> None:
    reached.set()
    raise ValueError("again")

@app.workflow("hangs")
async def workflow(ctx: Context) -> None:
    {body}

async def main() -> None:
    engine = Engine(app)
    await engine.start()
    await engine.invoke(workflow)
    await asyncio.to_thread(reached.wait)

asyncio.run(main())
print("ended")
"""


@pytest.mark.parametrize(
    "body",
    [
        'await ctx.step("a", hangs)',
        'await ctx.step("a", hangs_in_a_thread)',
        'await ctx.step("a", fails, retry=RetryPolicy.fixed(5, 1000))',
        'await asyncio.gather(ctx.step("a", hangs), ctx.step("b", hangs), ctx.suspend("p"))',
        'asyncio.ensure_future(ctx.step("a", hangs)); await asyncio.sleep(0.01)',
        "await hangs()",
        "asyncio.ensure_future(hangs()); await asyncio.sleep(0)",
        'reached.set(); await ctx.suspend("p")',
    ],
)
def test_the_process_ends(body: str) -> None:
    program = dedent(PROGRAM).replace("{body}", body)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TOO_LONG_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr
