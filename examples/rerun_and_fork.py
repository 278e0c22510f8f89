"""Run a step again, or go on from there in another instance, and leave the first one as it is."""

import asyncio

from memable import App, Context, Engine

app = App()
prices = {"tea": 3}


@app.workflow("quote")
async def quote(ctx: Context, article: str) -> str:
    pieces = await ctx.step("stock:v1", len, article)
    price = await ctx.step("price:v1", prices.__getitem__, article, returns=int)
    return await ctx.step("mail:v1", f"{pieces} {article} for {{}}".format, pieces * price, returns=str)


async def main() -> None:
    async with Engine(app) as engine:
        first = await engine.invoke(quote, "tea", id="first")
        print("at first:", await first.result())

        prices["tea"] = 4
        fork = await engine.fork(quote, "first", before="price:v1", new_id="fork")
        print("the fork:", await fork.result())
        print("the first:", await first.result())

        await first.resume(rerun=["price:v1", "mail:v1"])
        print("the first, its steps run again:", await first.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   at first: 3 tea for 9
#   the fork: 3 tea for 12
#   the first: 3 tea for 9
#   the first, its steps run again: 3 tea for 12
