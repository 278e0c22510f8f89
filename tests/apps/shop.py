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
