"""Whatever comes first: an answer, an objection, or the end of the time. And two sources that are asked at once."""

import asyncio
from datetime import timedelta

from memable import App, Context, Engine, SignalSuperseded, SuspendPoint

app = App()
APPROVAL = SuspendPoint("approval:v1", bool)
OBJECTION = SuspendPoint("objection:v1", str)


@app.workflow("expense")
async def expense(ctx: Context, days: float) -> str:
    name, value = await ctx.first(
        "outcome:v1",
        {
            "approval": ctx.suspend(APPROVAL, status="waiting for the manager"),
            "objection": ctx.suspend(OBJECTION),
            "late": ctx.timer("limit:v1", timedelta(days=days)),
        },
    )
    match name:
        case "approval":
            return "paid" if value else "refused"
        case "objection":
            return f"sent back: {value}"
        case _:
            return "nobody has decided"


async def ask(source: str, takes_s: float) -> str:
    """Stands for a request."""
    await asyncio.sleep(takes_s)
    return f"21 °C, says {source}"


@app.workflow("weather")
async def weather(ctx: Context) -> str:
    """A source that is slow is not waited for; the same one is chosen in every replay."""
    _, answer = await ctx.first(
        "weather:v1", {"near": ctx.step("near:v1", ask, "near", 0.01), "far": ctx.step("far:v1", ask, "far", 60.0)}
    )
    return answer


async def main() -> None:
    async with Engine(app) as engine:
        instance = await engine.invoke(expense, 3, id="1")
        print("at first:", await instance.wait())
        await instance.signal(OBJECTION, "no receipt")
        try:
            await instance.signal(APPROVAL, True)
        except SignalSuperseded:
            print("the approval came too late")
        print("1:", await instance.result())
        print("2:", await (await engine.invoke(expense, 0, id="2")).result())
        print("weather:", await (await engine.invoke(weather)).result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   at first: suspended: waiting for the manager
#   the approval came too late
#   1: sent back: no receipt
#   2: nobody has decided
#   weather: 21 °C, says near
