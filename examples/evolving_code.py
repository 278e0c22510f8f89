"""New code under a running instance: a step added, one renamed, and a result that has got another type."""

import asyncio

from pydantic import BaseModel

from memable import App, Context, Engine
from memable.embedded import TemporaryServer


async def charge_old(amount: int) -> str:
    print("called: charge")
    return f"receipt of {amount}"


async def ship(what: str) -> str:
    print("called: ship")
    return f"{what}, shipped"


old = App()


@old.workflow("order")
async def order_before(ctx: Context, amount: int) -> str:
    receipt = await ctx.step("charge:v1", charge_old, amount)
    await ctx.suspend("go:v1")
    return await ctx.step("ship:v1", ship, receipt)


class Receipt(BaseModel):
    text: str
    amount: int


async def charge_card(amount: int) -> Receipt:
    print("called: charge_card")
    return Receipt(text=f"receipt of {amount}", amount=amount)


async def reserve(amount: int) -> str:
    print("called: reserve")
    return f"{amount} reserved"


def to_receipt(recorded: str) -> Receipt:
    """What was recorded by the old code, as the new code wants it."""
    return Receipt(text=recorded, amount=int(recorded.rpartition(" ")[2]))


new = App()


@new.workflow("order")
async def order_after(ctx: Context, amount: int) -> str:
    reserved = await ctx.step("reserve:v1", reserve, amount)  # added, before what is done already
    receipt = await ctx.step("charge:v1", charge_card, amount, upgrade=to_receipt)  # another function, another type
    await ctx.suspend("go:v1")
    parcel = f"{reserved}, {receipt.text}"
    return await ctx.step("ship:v1", ship, parcel)


async def main() -> None:
    with TemporaryServer() as server:
        async with Engine(old, url=server.url) as engine:
            instance = await engine.invoke("order", 5, id="42")
            print("the old code:", await instance.wait())
        async with Engine(new, url=server.url) as engine:
            instance = await engine.signal("order", "42", "go:v1")
            print("the new code:", await instance.result())


if __name__ == "__main__":
    asyncio.run(main())

# prints:
#   called: charge
#   the old code: suspended: go:v1
#   called: reserve
#   called: ship
#   the new code: 5 reserved, receipt of 5, shipped
