"""The web application: `uvicorn fastapi_shop.web:app`."""

import hashlib
import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

import memable
from fastapi_shop import workflows
from fastapi_shop.errors import answer_error
from fastapi_shop.sse import events
from fastapi_shop.workflows import PAYMENT, Order, Payment, order, refund
from memable import Client, InstanceNotFound, MemableError, SignalRejected, Status, WorkflowMetadata


class Settings(BaseSettings):
    """`SHOP_WEBHOOK_SECRET`: what the payment provider signs its events with."""

    model_config = SettingsConfigDict(env_prefix="SHOP_")

    webhook_secret: str = Field(default=..., min_length=8)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncGenerator[dict[str, Any]]:
    """One client for the whole process; where Redis is, is told by MEMABLE_REDIS_URL."""
    async with memable.connect(app=workflows.app) as client:
        yield {"client": client, "settings": Settings()}


app = FastAPI(title="Shop", lifespan=lifespan)
app.add_exception_handler(MemableError, answer_error)


# async, since FastAPI calls plain functions in a thread
async def get_client(request: Request) -> Client:
    client: Client = request.state.client
    return client


async def get_settings(request: Request) -> Settings:
    settings: Settings = request.state.settings
    return settings


Memable = Annotated[Client, Depends(get_client)]


class OrderView(BaseModel):
    id: str
    status: Status
    text: str
    created_at: datetime
    receipt: str | None = None

    @classmethod
    def of(cls, known: WorkflowMetadata, receipt: str | None = None) -> "OrderView":
        return cls(
            id=known.instance_id,
            status=known.status,
            text=str(known.state),
            created_at=known.created_at,
            receipt=receipt,
        )


class Orders(BaseModel):
    orders: list[OrderView]
    cursor: str | None


# ── orders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.post("/orders", status_code=202)
async def place(
    wanted: Order,
    client: Memable,
    response: Response,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, str]:
    """Take an order. When this is answered, Redis has it. With the same key and order again it is the same one."""
    taken = await client.invoke(order, wanted, id=idempotency_key or uuid4().hex, labels={"customer": wanted.customer})
    if not taken.created:
        response.status_code = 200
    return {"id": taken.instance_id}


@app.get("/orders")
async def list_orders(
    client: Memable, customer: str | None = None, status: Status | None = None, cursor: str | None = None
) -> Orders:
    """The newest orders, twenty at a time."""
    labels = None if customer is None else {"customer": customer}
    page = await client.list_instances(order, status=status, labels=labels, limit=20, cursor=cursor)
    return Orders(orders=[OrderView.of(known) for known in page.items], cursor=page.cursor)


@app.get("/orders/{id}")
async def show(id: str, client: Memable) -> OrderView:
    """How far an order is, and its receipt when it is done."""
    known = await client.get_metadata(order, id)
    if known is None:
        raise InstanceNotFound(order.name, id)
    is_done = known.status is Status.COMPLETED
    return OrderView.of(known, await client.get(order, id).result() if is_done else None)


@app.get("/orders/{id}/events")
async def follow(id: str, client: Memable) -> StreamingResponse:
    """How far it is, as it happens: server-sent events, until it has ended."""
    states = client.subscribe(order, id)
    first = await anext(states)  # before anything is sent, so that there can be a 404
    # nginx would hold events back until its buffer is full
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(first, states), media_type="text/event-stream", headers=headers)


@app.post("/orders/{id}/cancel")
async def cancel(id: str, client: Memable) -> dict[str, str]:
    """Stop an order, wherever it is; one that has ended stays as it is, and the answer says how."""
    return {"text": str(await client.cancel(order, id, reason="by the customer"))}


# ── the payment provider ─────────────────────────────────────────────────────────────────────────────────────────────


class PaymentEvent(BaseModel):
    """What the provider sends, again and again until it is answered with 2xx."""

    model_config = ConfigDict(extra="ignore")

    event_id: str = Field(min_length=1)
    payment: Payment


async def verified(
    request: Request, settings: Annotated[Settings, Depends(get_settings)], signature: Annotated[str, Header()] = ""
) -> None:
    """Refuse an event that the provider has not signed."""
    expected = hmac.new(settings.webhook_secret.encode(), await request.body(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise HTTPException(401, "wrong signature")


@app.post("/webhooks/payments", dependencies=[Depends(verified)])
async def on_payment(event: PaymentEvent, client: Memable) -> dict[str, str]:
    """Hand a payment to its order. The event's id makes it happen once, however often the event is delivered.

    An event that comes before the order waits for it is kept (`buffer`). A second payment of an order is 409.
    """
    payment = event.payment
    try:
        await client.signal(order, payment.order_id, PAYMENT, payment, buffer=True, signal_id=event.event_id)
    except SignalRejected:
        # cancelled meanwhile, say; if money has come for it: this instance, too, is made once
        if payment.accepted:
            await client.invoke(refund, payment, id=event.event_id)
        return {"result": "not wanted any more"}
    return {"result": "accepted"}


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    """This process answers. An outage of Redis is no reason to end it: its routes say 503 meanwhile."""
    return {"status": "fine"}
