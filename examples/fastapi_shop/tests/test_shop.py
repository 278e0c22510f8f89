"""What a customer, and the payment provider, meet."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

import memable
from fastapi_shop import sse, web, workflows
from fastapi_shop.errors import STATUS_CODES, answer_error
from fastapi_shop.tests.conftest import SECRET
from memable import InputConflict, MemableError, StorageError, WorkflowState
from memable.embedded import TemporaryServer
from memable.testing import TestEngine

TEA = {"customer": "ann", "item": "tea", "quantity": 2}


async def place(shop: httpx.AsyncClient, order: dict[str, Any] = TEA, key: str = "order-1") -> httpx.Response:
    return await shop.post("/orders", json=order, headers={"Idempotency-Key": key})


async def pay(
    shop: httpx.AsyncClient, event_id: str = "event-1", *, accepted: bool = True, secret: str = SECRET
) -> httpx.Response:
    payment = {"order_id": "order-1", "cents": 600, "accepted": accepted}
    body = json.dumps({"event_id": event_id, "payment": payment}).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return await shop.post(
        "/webhooks/payments", content=body, headers={"Content-Type": "application/json", "Signature": signature}
    )


async def receipt(shop: httpx.AsyncClient, engine: TestEngine) -> str | None:
    await engine.settle()
    found: str | None = (await shop.get("/orders/order-1")).json()["receipt"]
    return found


# ── orders ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_order_is_shipped_when_it_is_paid(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    assert (await place(shop)).status_code == 202
    await engine.settle()
    waiting = (await shop.get("/orders/order-1")).json()
    assert waiting["text"] == "suspended: waiting for the payment"
    assert (await pay(shop)).json() == {"result": "accepted"}
    assert await receipt(shop, engine) == "shipped to ann: 2 × tea"


async def test_an_order_that_is_not_paid_is_given_up(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    await place(shop)
    await engine.settle()
    await engine.advance(workflows.PAY_WITHIN)
    assert await receipt(shop, engine) == "not paid"
    engine.assert_called("release:v1", times=1)


async def test_an_order_that_is_placed_twice_is_one(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    assert [(await place(shop)).status_code for _ in range(2)] == [202, 200]
    assert len((await shop.get("/orders")).json()["orders"]) == 1
    other = await place(shop, {**TEA, "quantity": 3})
    assert other.status_code == 409
    assert "with another input" in other.json()["detail"]


async def test_orders_are_listed_by_page_and_by_customer(shop: httpx.AsyncClient) -> None:
    for number in range(21):
        await place(shop, {**TEA, "customer": "bob" if number == 7 else "ann"}, f"order-{number}")
    first = (await shop.get("/orders")).json()
    second = (await shop.get("/orders", params={"cursor": first["cursor"]})).json()
    assert [len(first["orders"]), len(second["orders"]), second["cursor"]] == [20, 1, None]
    of_bob = (await shop.get("/orders", params={"customer": "bob"})).json()
    assert [each["id"] for each in of_bob["orders"]] == ["order-7"]
    assert (await shop.get("/orders", params={"cursor": "none of ours"})).status_code == 422


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/events"), ("POST", "/cancel")])
async def test_an_order_that_there_is_not_is_404(shop: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await shop.request(method, f"/orders/unknown{path}")).status_code == 404


async def test_the_progress_of_an_order_is_a_stream_of_events(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    await place(shop)
    await engine.settle()
    # this transport hands a response over when it is complete
    following = asyncio.create_task(shop.get("/orders/order-1/events"))
    await pay(shop)
    response = await following
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == {
        "status": "completed",
        "message": "packing",
        "text": "completed: packing",
        "is_terminal": True,
    }
    assert not any(event["is_terminal"] for event in events[:-1])


async def test_a_stream_in_which_nothing_happens_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.001)
    is_left = False

    async def states() -> AsyncGenerator[WorkflowState]:
        nonlocal is_left
        try:
            await asyncio.Event().wait()
            yield state
        finally:
            is_left = True

    state = WorkflowState(memable.Status.RUNNING, None, None)
    stream = sse.events(state, states())
    assert [await anext(stream) for _ in range(3)] == [sse.event(state), ": still here\n\n", ": still here\n\n"]
    await stream.aclose()
    assert is_left


# ── the payment provider ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_event_that_is_delivered_twice_happens_once(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    await place(shop)
    await engine.settle()
    assert [(await pay(shop)).status_code for _ in range(2)] == [200, 200]
    assert await receipt(shop, engine) == "shipped to ann: 2 × tea"
    # also when all is over
    assert (await pay(shop)).json() == {"result": "accepted"}
    engine.assert_called("ship:v1", times=1)


async def test_a_payment_that_comes_before_its_order_waits_is_kept(
    shop: httpx.AsyncClient, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_reserve = asyncio.Event()

    async def reserve(item: str, quantity: int) -> str:
        await may_reserve.wait()
        return "reserved"

    monkeypatch.setattr(workflows, "reserve", reserve)
    await place(shop)
    assert (await pay(shop)).json() == {"result": "accepted"}
    may_reserve.set()
    assert await receipt(shop, engine) == "shipped to ann: reserved"


async def test_a_second_payment_is_409(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    await place(shop)
    await engine.settle()
    assert (await pay(shop)).status_code == 200
    assert (await pay(shop, "event-2")).status_code == 409


async def test_a_payment_of_a_cancelled_order_is_paid_back_once(shop: httpx.AsyncClient, engine: TestEngine) -> None:
    await place(shop)
    await engine.settle()
    assert (await shop.post("/orders/order-1/cancel")).json() == {"text": "cancelled: by the customer"}
    assert [(await pay(shop)).status_code for _ in range(2)] == [200, 200]
    assert await engine.get(workflows.refund, "event-1").result() == "paid back 6.00"
    engine.assert_called("pay-back:v1", times=1)


async def test_an_event_that_the_provider_has_not_signed_is_refused(shop: httpx.AsyncClient) -> None:
    assert (await pay(shop, secret="another")).status_code == 401


# ── when something is wrong ──────────────────────────────────────────────────────────────────────────────────────────


async def test_while_redis_is_away_orders_are_503(shop: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        async def invoke(self, *_: object, **__: object) -> None:
            raise StorageError("cannot reach Redis at redis://10.0.0.7")

    monkeypatch.setitem(web.app.dependency_overrides, web.get_client, Away)
    answer = await place(shop)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "10.0.0.7" not in answer.text


async def test_an_error_that_is_not_expected_is_a_500_without_its_text() -> None:
    request: Any = None
    answer = await answer_error(request, MemableError("a secret"))
    assert answer.status_code == 500
    assert b"secret" not in bytes(answer.body)
    assert STATUS_CODES[InputConflict] == 409


async def test_the_application_has_a_client_of_its_own_for_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryServer() as server:
        monkeypatch.setenv("MEMABLE_REDIS_URL", server.url)
        monkeypatch.setenv("SHOP_WEBHOOK_SECRET", SECRET)
        async with web.lifespan(web.app) as state:
            # what a server that speaks ASGI makes of it
            transport = httpx.ASGITransport(with_state(state))
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as shop:
                assert (await place(shop)).status_code == 202
                assert (await pay(shop)).status_code == 200
                assert (await shop.get("/healthz")).status_code == 200


def with_state(state: dict[str, Any]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await web.app({**scope, "state": state}, receive, send)

    return app
