"""A shop at one moment of its day: what the guide's commands are answered from.

Everything rests or is held still, so that the same commands get the same answers: one instance of each kind that an
operator meets. Deadlines are multiples of half an hour, which no machine is too slow for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import memable
from memable import App, Client, Context, Engine, Invocation, PermanentError, RetryPolicy, Settings, SuspendPoint
from memable.embedded import TemporaryServer

NAMESPACE = "memable"
HALF_AN_HOUR = timedelta(minutes=30)
APPROVAL = SuspendPoint("approval:v1", bool)
ARRIVAL = SuspendPoint("arrival:v1", str)
SURVEY = SuspendPoint("survey:v1", int)


class Shop:
    """The workflows, and what holds them still."""

    def __init__(self) -> None:
        self.app = App(retention=timedelta(days=7))
        self.packing = {"40": asyncio.Event(), "42": asyncio.Event()}
        self.app.register("order", self.order)
        self.app.register("shipment", self.shipment)
        self.app.register("parcel", self.parcel)
        self.app.register("chat", self.chat)

    async def order(self, ctx: Context, amount: int) -> str:
        """41 waits for its manager, 43 is refused by the bank, 44 tries again later; 40 and 42 are being packed."""
        retry = RetryPolicy.fixed(5, delay=HALF_AN_HOUR * 3)
        receipt = await ctx.step("charge:v1", self.charge, ctx.instance_id, amount, retry=retry)
        if amount > 1000:
            await ctx.suspend(APPROVAL, status="waiting for the manager", timeout=timedelta(days=1))
        ctx.set_status("packing")
        await ctx.step("pack:v1", self.pack, ctx.instance_id)
        return receipt

    async def charge(self, order: str, amount: int) -> str:
        if order == "43":
            raise PermanentError("the card is declined")
        if order == "44":
            raise ConnectionError("the bank is away")
        return f"receipt of {amount}"

    async def pack(self, order: str) -> None:
        if order in self.packing:
            await self.packing[order].wait()

    async def shipment(self, ctx: Context) -> list[str]:
        """One of its two parcels has arrived."""
        return await ctx.fan_out("parcels:v1", ["book", "lamp"], self.app.get("parcel") or "parcel")

    async def parcel(self, ctx: Context, what: str) -> str:
        return what if what == "book" else await ctx.suspend(ARRIVAL)

    async def chat(self, ctx: Context) -> None:
        """Has read the first of three messages."""
        await ctx.receive("question:v1", "questions", returns=str)
        await ctx.suspend("answer:v1")
        await ctx.suspend(SURVEY)


class Story:
    """The shop while it is open, and what may happen to it then."""

    def __init__(self, url: str, shop: Shop, engine: Engine, client: Client) -> None:
        self.url, self._shop, self._engine, self._client = url, shop, engine, client
        self.acts: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "order/42 is packed": self.pack,
            "order/40 is cancelled": lambda: client.cancel("order", "40", reason="out of stock"),
            "an order for later comes in": lambda: client.invoke("order", 7, id="46", delay=HALF_AN_HOUR),
            "the last worker stops": engine.stop,
            "shipment/7 is cancelled": lambda: client.cancel("shipment", "7", reason="lost at sea"),
            "shipment/7 is deleted": lambda: client.delete("shipment", "7"),
        }

    async def pack(self) -> None:
        self._shop.packing["42"].set()
        await self._client.get("order", "42").result(timeout=60)

    async def begin(self) -> None:
        """What has happened until now, one after the other."""
        engine = self._engine
        done = await engine.invoke("order", 9, id="39")
        await done.result(timeout=60)
        waiting = await engine.invoke("order", 4200, id="41", labels={"tenant": "acme"})
        await waiting.wait(timeout=60)
        await (await engine.invoke("order", 9, id="43")).wait(timeout=60)
        await self._until(await engine.invoke("order", 9, id="44"), "retrying")
        await engine.invoke("order", 9, id="45", delay=HALF_AN_HOUR * 2)
        await (await engine.invoke("shipment", id="7")).wait(timeout=60)
        await self._settled_children()
        await self._chat()
        # a workflow that nobody serves
        other = App()

        @other.workflow("report")
        async def report(ctx: Context) -> None: ...

        async with memable.connect(self.url, app=other) as client:
            await client.invoke(report, id="january")
        # both slots are taken, so that what comes now is queued
        for order in self._shop.packing:
            await self._until(await engine.invoke("order", 9, id=order), "in progress: packing")
        await engine.invoke("order", 9, id="47")

    async def _chat(self) -> None:
        engine = self._engine
        chat = await engine.invoke("chat", id="1")
        await chat.wait(timeout=60)
        for number, text in enumerate(["hello?", "anybody there?", "bye"], 1):
            await engine.send("chat", "1", "questions", text, message_id=f"message-{number}")
            await self._until(chat, "suspended: answer:v1")
        await engine.signal("chat", "1", SURVEY, 5, buffer=True, signal_id="form-17")

    async def _until(self, invocation: Invocation[Any], text: str) -> None:
        """Wait for the state whose text has `text`."""
        async with asyncio.timeout(60):
            async for state in invocation.states():
                if text in str(state):
                    return

    async def _settled_children(self) -> None:
        async with asyncio.timeout(60):
            while True:
                page = await self._engine.list_instances("parcel", children=True)
                parent = await self._engine.get_metadata("shipment", "7")
                states = sorted(each.status.value for each in page.items)
                if states == ["completed", "suspended"] and parent and parent.status == "suspended":
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def told() -> AsyncIterator[Story]:
    """The story at its moment, on a server of its own."""
    async with AsyncExitStack() as exits:
        server = exits.enter_context(TemporaryServer())
        shop = Shop()
        # a machine that stands still for a moment must not lose a run: it would be counted as another attempt
        settings = Settings(redis_url=server.url, namespace=NAMESPACE, concurrency=2, lease=60, shutdown_grace=0)
        engine = await exits.enter_async_context(Engine(shop.app, url=server.url, settings=settings))
        client = await exits.enter_async_context(memable.connect(server.url, app=shop.app, settings=settings))
        story = Story(server.url, shop, engine, client)
        async with asyncio.timeout(100):
            await story.begin()
        yield story
