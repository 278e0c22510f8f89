"""The workflows that the client's tests use; their functions never run here, only their types count."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from memable import App, Context, SuspendPoint


class Order(BaseModel):
    id: str
    amount: float


class Receipt(BaseModel):
    order: str
    total: int


app = App(retention=timedelta(minutes=1))
APPROVAL = SuspendPoint("approval:v1", bool)


@app.workflow("order")
async def order(ctx: Context, order: Order) -> Receipt:
    return Receipt(order=order.id, total=0)


@app.workflow("ping")
async def ping(ctx: Context) -> str:
    return "pong"


@app.workflow("maybe")
async def maybe(ctx: Context, number: int | None) -> int | None:
    return number


@app.workflow("anything")
async def anything(ctx, given):  # type: ignore[no-untyped-def]  # an author without annotations
    return given
