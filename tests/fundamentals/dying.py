"""A program to be killed: charges, and hangs in the next step. The lesson that kills it goes on with `goes_on`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from memable import App, Context, Engine, Settings, current_step


def shop(ledger: Path, ship: Callable[[], None]) -> App:
    """A workflow whose effects are lines in a file, which outlives the process."""
    app = App()

    def write(line: str) -> None:
        with ledger.open("a") as file:
            file.write(f"{line} {current_step().idempotency_key}\n")

    def charge() -> str:
        write("charge")
        return "receipt"

    def try_to_ship() -> str:
        write("ship")
        ship()
        return "shipped"

    @app.workflow("order")
    async def order(ctx: Context) -> list[str]:
        return [await ctx.step("charge:v1", charge), await ctx.step("ship:v1", try_to_ship)]

    @app.workflow("waits")
    async def waits(ctx: Context) -> str:
        await ctx.step("before", write, "before")
        await ctx.timer("soon", 0.01)
        answer: str = await ctx.suspend("answer")
        return answer

    return app


async def main(data_dir: Path, ledger: Path) -> None:
    """Say `ready` when one instance waits and the other is in the middle of its second step."""
    loop, shipping = asyncio.get_running_loop(), asyncio.Event()

    def hang() -> None:
        loop.call_soon_threadsafe(shipping.set)
        while True:
            sys.stdin.read(1)

    async with Engine(shop(ledger, hang), data_dir=data_dir, settings=Settings(lease=1)) as engine:
        waits = await engine.invoke("waits", id="1")
        async for state in waits.states():
            if state.key == "answer":
                break
        await engine.invoke("order", id="42")
        await shipping.wait()
        print("ready", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
