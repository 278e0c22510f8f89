"""Forgetting an instance before its retention ends, say because a customer asks for it."""

import asyncio

from memable import App, Context, Engine, InstanceBusy

app = App()


@app.workflow("survey")
async def survey(ctx: Context, customer: str) -> str:
    answer = await ctx.suspend("answer")
    return f"{customer} said {answer}"


async def main() -> None:
    async with Engine(app) as engine:
        asked = await engine.invoke(survey, "Ann", id="ann")
        await asked.wait()
        try:
            await engine.delete(survey, "ann")
        except InstanceBusy as error:
            print(error)
        await asked.signal("answer", "yes")
        print(await asked.result())
        await engine.delete(survey, "ann")
        print("what is known of Ann:", await engine.get_metadata(survey, "ann"))


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   instance survey/ann is suspended: wait for it to end, or cancel it
#   Ann said yes
#   what is known of Ann: None
