"""What the shop does with an order; run by `memable worker fastapi_shop.workflows:app`.

The web application imports this module, too, for names and types: it must be cheap to import.
"""

from datetime import timedelta

from pydantic import BaseModel, Field

from memable import App, Context, RetryPolicy, SuspendPoint, SuspendTimeout, current_step


class Order(BaseModel):
    customer: str = Field(min_length=1, max_length=200)
    item: str
    quantity: int = Field(default=1, ge=1)


class Payment(BaseModel):
    order_id: str
    cents: int
    accepted: bool


PAYMENT = SuspendPoint("payment:v1", Payment)
PAY_WITHIN = timedelta(days=3)

app = App(default_retry=RetryPolicy.exponential(5, base=0.5, jitter=0.2))


# ── effects: where your warehouse and your payment provider are called ───────────────────────────────────────────────


async def reserve(item: str, quantity: int) -> str:
    # a step may be called again after a crash, always with this key: the other side can tell
    return f"{quantity} × {item}, reservation {current_step().idempotency_key}"


async def release(reservation: str) -> None: ...


async def ship(reservation: str, customer: str) -> str:
    return f"shipped to {customer}: {reservation.partition(',')[0]}"


async def pay_back(payment: Payment) -> str:
    return f"paid back {payment.cents / 100:.2f}"


# ── workflows ────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.workflow("order")
async def order(ctx: Context, order: Order) -> str:
    """Reserve, wait for the payment, ship; without a payment the goods are free again after three days."""
    reservation = await ctx.step("reserve:v1", reserve, order.item, order.quantity)
    try:
        payment = await ctx.suspend(PAYMENT, status="waiting for the payment", timeout=PAY_WITHIN)
    except SuspendTimeout:
        payment = None
    if payment is None or not payment.accepted:
        await ctx.step("release:v1", release, reservation)
        return "not paid"
    ctx.set_status("packing")
    return await ctx.step("ship:v1", ship, reservation, order.customer)


@app.workflow("refund")
async def refund(ctx: Context, payment: Payment) -> str:
    """Give back money that came for an order which no longer waits for it."""
    return await ctx.step("pay-back:v1", pay_back, payment)
