"""The shop whose workers the commands of the page ask: `memable worker pages.command_line.shop:app`."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from memable import App, Context, RetryPolicy, SuspendPoint, current_step

app = App()
APPROVAL = SuspendPoint("approval:v1", bool)


class Order(BaseModel):
    id: int
    amount: float


async def charge(order: Order) -> str:
    await asyncio.sleep(0.12)
    if order.amount > 1000:
        raise ValueError("card declined")
    return f"ch_{order.id}"


async def book(order_id: int) -> str:
    await asyncio.sleep(0.08)
    if current_step().attempt < 3:
        raise ConnectionError("the courier does not answer")
    return f"run-{order_id}"


async def pack(parcel: int) -> int:
    await asyncio.sleep(0.1 * parcel)
    if parcel == 3:
        raise ValueError("the box is too small")
    return parcel


async def scale(number: int) -> int:
    await asyncio.sleep(0.25)
    return number


@app.workflow("order")
async def order(ctx: Context, order: Order) -> str:
    await ctx.step("charge:v1", charge, order)
    await ctx.step("book:v1", book, order.id, retry=RetryPolicy.fixed(3, 0.1))
    if not await ctx.suspend(APPROVAL, status="waiting for the manager", timeout=86_400):
        return "refused"
    return "shipped"


@app.workflow("parcel")
async def parcel(ctx: Context, number: int) -> int:
    return await ctx.step("pack:v1", pack, number)


@app.workflow("delivery")
async def delivery(ctx: Context, parcels: list[int]) -> str:
    await ctx.step("charge:v1", charge, Order(id=7, amount=12))
    await ctx.step("book:v1", book, 7, retry=RetryPolicy.fixed(3, 0.1))
    await ctx.fan_out("parcels:v1", parcels, parcel, fail_fast=False)
    await ctx.timer("pick-up:v1", 0.4)
    await ctx.suspend(APPROVAL, status="waiting for a signature")
    return "delivered"


@app.workflow("support")
async def support(ctx: Context) -> str:
    return await ctx.receive("question:v1", "chat", returns=str)


@app.workflow("thumbnail")
async def thumbnail(ctx: Context, number: int) -> None:
    await ctx.step("scale:v1", scale, number)
