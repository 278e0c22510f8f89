"""A workflow calls another: the child is an instance of its own, and its parent is parked until it has ended."""

import asyncio

from memable import App, ChildFailed, Context, Engine

app = App()


async def check_stock(item: str) -> int:
    if item == "unicorn":
        raise LookupError("we do not sell unicorns")
    return 3


@app.workflow("reserve")
async def reserve(ctx: Context, item: str) -> str:
    left = await ctx.step("stock:v1", check_stock, item, retry=None)
    return f"{item}, one of {left}"


@app.workflow("order")
async def order(ctx: Context, item: str) -> str:
    try:
        reserved = await ctx.call("reserve:v1", reserve, item)  # mypy knows: a str
    except ChildFailed as failure:
        return f"sorry: {failure.error_type} in {failure.workflow}"
    return f"ordered {reserved}"


async def main() -> None:
    async with Engine(app) as engine:
        for item in ("chair", "unicorn"):
            print(await (await engine.invoke(order, item, id=item)).result())

        # a child is an instance like any other, listed with its parent; or left out
        (child,) = (await engine.list_instances(reserve, status="completed")).items
        print(child.instance_id.partition("~")[0], "is the parent's id, and its name is", child.parent)
        print("invoked:", sorted(each.instance_id for each in (await engine.list_instances(children=False)).items))


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   ordered chair, one of 3
#   sorry: StepFailed in reserve
#   chair is the parent's id, and its name is order/chair
#   invoked: ['chair', 'unicorn']
