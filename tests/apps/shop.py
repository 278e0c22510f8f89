"""The application that tests of the `memable` command run: `memable worker tests.apps.shop:app`."""

from __future__ import annotations

from memable import App, Context, SuspendPoint

app = App()
ANSWER = SuspendPoint("answer:v1", bool)


@app.workflow("greet")
async def greet(ctx: Context, name: str) -> str:
    return await ctx.step("greet:v1", str.format, "hello {}", name)


def refuse() -> None:
    raise ValueError("out of\nstock \x1b[31m")


@app.workflow("fail")
async def fail(ctx: Context) -> None:
    await ctx.step("charge:v1", str.upper, "paid")
    await ctx.step("ship:v1", refuse)


@app.workflow("ask")
async def ask(ctx: Context) -> bool:
    return await ctx.suspend(ANSWER, status="asking")


@app.workflow("chat")
async def chat(ctx: Context) -> list[str]:
    return [await ctx.receive(f"message-{number}", "chat", returns=str) for number in range(2)]


def take(item: str) -> str:
    if item == "none":
        raise ValueError("there is none")
    return item


@app.workflow("pick")
async def pick(ctx: Context, item: str) -> str:
    return await ctx.step("take:v1", take, item)


@app.workflow("batch")
async def batch(ctx: Context, items: list[str]) -> int:
    picked = await ctx.fan_out("picks:v1", items, pick, fail_fast=False)
    return len(picked)
