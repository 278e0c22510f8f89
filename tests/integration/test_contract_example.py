"""The example with which the contract begins, as it stands there, and both of its ways."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel

from memable import App, Context, RetryPolicy, Status, SuspendPoint
from memable.testing import TestEngine

app = App(default_retry=RetryPolicy.exponential(3, base=1.0))
APPROVAL = SuspendPoint("approval:v1", bool)


class Order(BaseModel):
    id: str
    amount: float


ledger = list[str]()


async def charge_card(id: str, amount: float) -> str:
    ledger.append(f"charge {amount}")
    return f"receipt {id}"


def refund(charge: str) -> None:
    ledger.append(f"refund {charge}")


async def ship(id: str) -> str:
    ledger.append(f"ship {id}")
    return f"parcel {id}"


@app.workflow("order")
async def order(ctx: Context, order: Order) -> str:
    charge = await ctx.step("charge:v1", charge_card, order.id, order.amount, timeout=10)
    ctx.set_status("waiting for the manager")
    if not await ctx.suspend(APPROVAL, status="Waiting for manager approval"):
        await ctx.step("refund:v1", refund, charge, retry=None)
        return "refused"
    await ctx.timer("cooling-off:v1", timedelta(hours=1))
    return await ctx.step("ship:v1", ship, order.id)


@pytest.mark.spec("example")
@pytest.mark.parametrize(
    ("approved", "result", "effects"),
    [
        (True, "parcel 42", ["charge 9.5", "ship 42"]),
        (False, "refused", ["charge 9.5", "refund receipt 42"]),
    ],
)
async def test_it_runs_as_it_stands_there(*, approved: bool, result: str, effects: list[str]) -> None:
    ledger.clear()
    async with TestEngine(app) as client:
        inv = await client.invoke(order, Order(id="42", amount=9.5), id="order-42")
        state = await inv.wait()
        assert str(state) == "suspended: Waiting for manager approval"
        await inv.signal(APPROVAL, approved)
        if approved:
            state = await inv.wait()
            assert (state.status, state.key) == (Status.SUSPENDED, "cooling-off:v1")
            await client.advance(timedelta(hours=1))
        assert await inv.result() == result
        assert str(await inv.wait()) == "completed: waiting for the manager"
    assert ledger == effects
