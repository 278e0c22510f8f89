"""The `approval` workflow: an order that is paid, approved by a person, cools off, and ships.

It shows how to have effects in systems that are not Redis, exactly once as far as anybody can tell: each effect is a
step of its own, and each request carries the step's idempotency key.
"""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from memable import Context, RetryableError, RetryPolicy, SuspendPoint, current_step
from worker.ledger import Call, Effect, Ledger

CALL_TIMEOUT_S = 30.0
"""For one call of the provider; a thread that is over it may still be at work beside the next attempt."""

PROVIDER_RETRY = RetryPolicy.exponential(
    5,
    base=0.2,
    max_delay=5.0,
    jitter=0.2,
    retry_on=(RetryableError, sqlite3.OperationalError, OSError),
    # safe only because of the idempotency key: the call that timed out may have been, or may yet be, carried out
    retry_timeouts=True,
)
"""For a provider that may be busy or out of reach. A declined card is a `PermanentError`, which nothing retries."""

REFUND_RETRY = RetryPolicy.exponential(30, base=0.5, max_delay=60.0, jitter=0.2, retry_timeouts=True)
"""Whoever owes money does not give up after five retries: twenty minutes and more, whatever the error."""


class Order(BaseModel):
    """What is bought. Money is whole cents: a float would not add up."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(min_length=1)
    amount_cents: int = Field(gt=0)
    card: str = "card_visa"
    cooling_off_s: float = Field(default=3600.0, ge=0)
    """How long after the approval the order ships."""


class Decision(BaseModel):
    """What a manager sends to `APPROVAL`."""

    model_config = ConfigDict(frozen=True)

    approved: bool
    by: str = Field(min_length=1)


class Receipt(BaseModel):
    """How the order ended."""

    model_config = ConfigDict(frozen=True)

    order_id: str
    status: Literal["shipped", "refused"]
    decided_by: str
    charge: str
    """The provider's reference of the payment."""
    refund: str | None = None
    shipment: str | None = None
    charged_cents: int
    """What the customer has paid in the end."""


APPROVAL = SuspendPoint("approval:v1", Decision)
"""Shared by both sides: the workflow waits at it, and a web app signals it with a `Decision`."""


async def approve_order(ctx: Context, order: Order) -> Receipt:
    """Charge, wait for the decision, cool off, ship; or give the money back.

    Keys name what is done to the order, and hold no order id: records belong to one instance already. `:v1` changes
    when the step comes to mean something else, say a charge in another currency.

    The charge comes first, so that a declined card costs no manager's time: it fails the instance with
    `PermanentError`, before anybody is asked.
    """
    ledger: Ledger = ctx.resources["ledger"]
    charge = await ctx.step("charge:v1", charge_card, ledger, order, timeout=CALL_TIMEOUT_S, retry=PROVIDER_RETRY)
    decision = await ctx.suspend(APPROVAL, status=f"waiting for approval of {order.amount_cents / 100:.2f}")

    if not decision.approved:
        ctx.set_status(f"refused by {decision.by}, refunding")
        refund = await ctx.step("refund:v1", refund_card, ledger, charge, timeout=CALL_TIMEOUT_S, retry=REFUND_RETRY)
        return Receipt(
            order_id=order.id,
            status="refused",
            decided_by=decision.by,
            charge=charge.reference,
            refund=refund.reference,
            charged_cents=charge.amount_cents + refund.amount_cents,
        )

    ctx.set_status(f"approved by {decision.by}, cooling off")
    await ctx.timer("cooling-off:v1", timedelta(seconds=order.cooling_off_s))
    shipment = await ctx.step("ship:v1", ship_order, ledger, order.id, timeout=CALL_TIMEOUT_S, retry=PROVIDER_RETRY)
    return Receipt(
        order_id=order.id,
        status="shipped",
        decided_by=decision.by,
        charge=charge.reference,
        shipment=shipment.reference,
        charged_cents=charge.amount_cents,
    )


def charge_card(ledger: Ledger, order: Order) -> Effect:
    """Take the order's amount from its card: one charge, in however many attempts and runs this step takes."""
    return ledger.charge(this_call(), order.id, order.card, order.amount_cents)


def refund_card(ledger: Ledger, charge: Effect) -> Effect:
    """Give the charge back. What to give back comes from the charge's record, not from the order."""
    return ledger.refund(this_call(), charge)


def ship_order(ledger: Ledger, order_id: str) -> Effect:
    """Send the goods."""
    return ledger.ship(this_call(), order_id)


def this_call() -> Call:
    """The step that is running, as the provider wants to know it.

    The key is memable's and not, say, the order's id: it is the same in every attempt and every run of this step, and
    another one after `delete` and a new invoke of the same id, which is a new purchase. A random one made inside the
    step would be new in each attempt, and charge again.
    """
    step = current_step()
    return Call(idempotency_key=step.idempotency_key, instance_id=step.instance_id, attempt=step.attempt)
