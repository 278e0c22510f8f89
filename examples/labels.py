"""Labels: what an application calls its instances by, to find those of one tenant, or of one night's batch."""

import asyncio

from memable import App, Context, Engine, Status

app = App()


@app.workflow("order")
async def order(ctx: Context, amount: int) -> str:
    if amount > 100:
        await ctx.suspend("approval")
    return f"{amount} charged"


async def main() -> None:
    async with Engine(app) as engine:
        for number, (tenant, amount) in enumerate([("acme", 7), ("acme", 700), ("zeta", 800)]):
            labels = {"tenant": tenant, "channel": "web"}
            await (await engine.invoke(order, amount, id=f"order-{number}", labels=labels)).wait()

        async def show(what: str, status: Status | None = None, **labels: str) -> None:
            page = await engine.list_instances(order, labels=labels, status=status)
            print(f"{what}:", ", ".join(each.instance_id for each in page.items))

        await show("of acme", tenant="acme")
        await show("of zeta, by the web", tenant="zeta", channel="web")
        await show("of acme, waiting", tenant="acme", status=Status.SUSPENDED)


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   of acme: order-1, order-0
#   of zeta, by the web: order-2
#   of acme, waiting: order-1
