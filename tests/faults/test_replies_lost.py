"""A connection is lost before, inside and after the reply to each call: everything ends as if it had not been."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

import memable
from memable import (
    App,
    Client,
    Context,
    Engine,
    PermanentError,
    Settings,
    SignalSuperseded,
    StepKind,
    StepState,
    SuspendPoint,
    SuspendTimeout,
    WorkflowFailed,
)
from memable.errors import InputConflict
from tests.faults.losing import EachCall
from tests.proxy import Cut, Proxy
from tests.resting import hasten, rests_at
from tests.worker_process import until

NOTE, APPROVAL = SuspendPoint("note", str), SuspendPoint("approval", bool)
CUTS = pytest.mark.parametrize("where", list(Cut))
HOUR = timedelta(hours=1)
LONG_S = 30
"""A lease that never passes in these tests: nothing is put right by a takeover."""


@dataclass
class Ledger:
    """What the steps did, outside of Redis."""

    calls: Counter[str] = field(default_factory=Counter)
    noted: asyncio.Event = field(default_factory=asyncio.Event)

    async def charge(self) -> str:
        self.calls["charge"] += 1
        return "charged"

    async def pack(self) -> str:
        """In flight until the note has come: the instance does not park meanwhile."""
        self.calls["pack"] += 1
        await self.noted.wait()
        return "packed"

    async def ship(self) -> str:
        self.calls["ship"] += 1
        if self.calls["ship"] == 1:
            raise PermanentError("no van")
        return "shipped"


def shop(ledger: Ledger) -> App:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context, amount: int) -> list[Any]:
        ctx.set_status("charging")
        charge = await ctx.step("charge", ledger.charge)
        note, parcel = await asyncio.gather(ctx.suspend(NOTE), ctx.step("pack", ledger.pack))
        approved = await ctx.suspend(APPROVAL, status="waiting for the manager")
        await ctx.timer("pause", HOUR)
        return [amount, charge, note, parcel, approved, await ctx.step("ship", ledger.ship)]

    @app.workflow("parcel")
    async def parcel(ctx: Context, number: int) -> int:
        async def send() -> int:
            ledger.calls[f"send {number}"] += 1
            return number

        return await ctx.step("send", send)

    @app.workflow("support")
    async def support(ctx: Context) -> list[Any]:
        heard = [await ctx.suspend(NOTE), await ctx.receive("first", "chat"), await ctx.receive("second", "chat")]
        # in flight: these are opened without parking
        heard += await asyncio.gather(
            ctx.receive("third", "chat"), ctx.receive("fourth", "chat"), ctx.step("pack", ledger.pack)
        )
        try:
            await ctx.suspend("nobody", timeout=HOUR)
        except SuspendTimeout as error:
            heard.append(error.key)
        return heard

    @app.workflow("race")
    async def race(ctx: Context) -> list[Any]:
        outcomes = [
            await ctx.first("by step", {"step": ctx.step("charge", ledger.charge), "never": ctx.suspend("never 1")}),
            await ctx.first("by signal", {"note": ctx.suspend(NOTE), "never": ctx.suspend(APPROVAL)}),
            await ctx.first("by timer", {"pause": ctx.timer("pause", HOUR), "never": ctx.suspend("never 2")}),
        ]
        return [[name, value] for name, value in outcomes]

    @app.workflow("slow")
    async def slow(ctx: Context) -> str:
        return await ctx.step("pack", ledger.pack)

    return app


@dataclass
class Trade:
    """A shop whose customers and whose worker each reach Redis through a proxy of their own."""

    ledger: Ledger
    app: App
    settings: Settings
    customer: Client
    worker: Engine
    observer: Client
    """Who looks on, and loses no connection."""
    customers_line: Proxy
    workers_line: Proxy

    def lose(self, name: str, where: Cut) -> None:
        """From now on every call of a script, whoever makes it, loses its connection the first time."""
        for line in (self.customers_line, self.workers_line):
            line.cut_each(where, EachCall(name))

    async def lets_an_hour_pass_at(self, workflow: str, key: str) -> None:
        """Once the instance rests at `key`."""
        await rests_at(self.observer.get(workflow, "1"), key)
        await hasten(self.observer, HOUR)

    @property
    def cuts(self) -> int:
        return self.customers_line.cuts + self.workers_line.cuts


StartTrade = Callable[..., AbstractAsyncContextManager[Trade]]


@pytest.fixture
def trade(redis_url: str, namespace: str) -> StartTrade:
    @asynccontextmanager
    async def start(*, lease: float = LONG_S, shutdown_grace: float = LONG_S) -> AsyncGenerator[Trade]:
        ledger = Ledger()
        chosen = Settings(namespace=namespace, lease=lease, shutdown_grace=shutdown_grace)
        app = shop(ledger)
        async with (
            Proxy(redis_url) as customers_line,
            Proxy(redis_url) as workers_line,
            memable.connect(customers_line.url, app=app, namespace=namespace) as customer,
            memable.connect(redis_url, app=app, namespace=namespace) as observer,
            Engine(app, url=workers_line.url, settings=chosen) as worker,
        ):
            yield Trade(ledger, app, chosen, customer, worker, observer, customers_line, workers_line)

    return start


LOSSES = {
    "invoke": 1,
    "signal": 2,
    "resume": 1,
    "claim": 4,
    "set_status": 1,
    "record": 4,
    "open": 1,
    "park": 2,
    "fire_timer": 1,
    "finish": 2,
}
"""The scripts of the life of an order, and how many calls of each it takes at least."""


@CUTS
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.spec("signal-once")
async def test_an_order_is_none_the_wiser(trade: StartTrade, name: str, where: Cut) -> None:
    async with trade() as t:
        t.lose(name, where)
        order = await t.customer.invoke("order", 7, id="1")
        assert order.created

        async def waits_for(key: str) -> bool:
            metadata = await t.observer.get_metadata("order", "1")
            return metadata is not None and metadata.waiting_on == [key]

        await until(lambda: waits_for("note"), "the point 'note' is open")
        await order.signal(NOTE, "fragile")
        t.ledger.noted.set()
        await until(lambda: waits_for("approval"), "the point 'approval' is open")
        await t.customer.signal("order", "1", APPROVAL, True, signal_id="from the manager")
        await t.lets_an_hour_pass_at("order", "pause")
        with pytest.raises(WorkflowFailed, match="no van"):
            await order.result()
        await order.resume()
        assert await order.result() == [7, "charged", "fragile", "packed", True, "shipped"]

        # the end is told at the moment at which its reply is on the way
        await until(lambda: t.cuts >= LOSSES[name], "each call has lost its connection")
        assert t.ledger.calls == {"charge": 1, "pack": 1, "ship": 2}
        await expect_one_order(t)
        # each signal was one, and is known
        await t.observer.signal("order", "1", APPROVAL, True, signal_id="from the manager")
        with pytest.raises(SignalSuperseded):
            await t.observer.signal("order", "1", NOTE, "fragile")
        with pytest.raises(SignalSuperseded):
            await t.observer.signal("order", "1", APPROVAL, True)


async def expect_one_order(t: Trade) -> None:
    (metadata,) = (await t.observer.list_instances()).items
    # until it waits for approval, until it pauses, until it fails, and when it was resumed
    assert metadata.attempt == 4
    records = {each.key: (each.kind, each.state, each.attempts) for each in await t.observer.steps("order", "1")}
    assert records == {
        "charge": (StepKind.STEP, StepState.COMPLETED, 1),
        "note": (StepKind.SIGNAL, StepState.COMPLETED, 1),
        "pack": (StepKind.STEP, StepState.COMPLETED, 1),
        "approval": (StepKind.SIGNAL, StepState.COMPLETED, 1),
        "pause": (StepKind.TIMER, StepState.COMPLETED, 1),
        "ship": (StepKind.STEP, StepState.COMPLETED, 1),
    }


KEPT_LOSSES = {"signal": 1, "send": 4, "open": 1, "park": 1, "fire_timer": 1}


@CUTS
@pytest.mark.parametrize("name", KEPT_LOSSES)
async def test_what_comes_early_or_never_is_read_once_or_timed_out_once(
    trade: StartTrade, name: str, where: Cut
) -> None:
    """A signal and messages that are kept, messages for open receives, a timeout."""
    async with trade() as t:
        t.lose(name, where)
        support = await t.customer.invoke("support", id="1")
        await support.signal(NOTE, "early", buffer=True)
        for word in ("hello", "anybody there?"):
            await support.send("chat", word)

        async def waits_for_two() -> bool:
            metadata = await t.observer.get_metadata("support", "1")
            return metadata is not None and metadata.waiting_on == ["third", "fourth"]

        await until(waits_for_two, "both receives are open")
        for word in ("no?", "bye"):
            await support.send("chat", word)
        t.ledger.noted.set()
        await t.lets_an_hour_pass_at("support", "nobody")
        assert await support.result() == ["early", "hello", "anybody there?", "no?", "bye", "packed", "nobody"]
        await until(lambda: t.cuts >= KEPT_LOSSES[name], "each call has lost its connection")
        assert {each.attempts for each in await t.observer.steps("support", "1")} == {1}


RACES_LOST = {"choose": 1, "park": 2, "signal": 1, "fire_timer": 1}


@CUTS
@pytest.mark.parametrize("name", RACES_LOST)
async def test_of_several_the_first_is_chosen_once(trade: StartTrade, name: str, where: Cut) -> None:
    async with trade() as t:
        t.lose(name, where)
        race = await t.customer.invoke("race", id="1")
        async for state in t.observer.get("race", "1").states():
            if state.key == NOTE.key:
                break
        await race.signal(NOTE, "fragile")
        with pytest.raises(SignalSuperseded):
            await t.observer.signal("race", "1", APPROVAL, True)
        await t.lets_an_hour_pass_at("race", "pause")
        assert await race.result() == [["step", "charged"], ["note", "fragile"], ["pause", None]]
        await until(lambda: t.cuts >= RACES_LOST[name], "each call has lost its connection")
        assert t.ledger.calls == {"charge": 1}
        records = {
            each.key: each.result for each in await t.observer.steps("race", "1") if each.kind is StepKind.CHOICE
        }
        assert records == {"by step": "step", "by signal": "note", "by timer": "pause"}


@CUTS
async def test_invoke_many_starts_each_once_and_says_so(trade: StartTrade, where: Cut) -> None:
    async with trade() as t:
        await t.observer.invoke("parcel", 0, id="0")
        await t.observer.invoke("parcel", 1, id="1")
        t.lose("invoke", where)
        handles = await t.customer.invoke_many("parcel", [0, 100, *range(2, 20)], ids=[str(n) for n in range(20)])
        assert t.cuts
        refused = handles.pop(1)
        assert isinstance(refused, InputConflict)
        invocations = [each for each in handles if not isinstance(each, InputConflict)]
        assert [each.created for each in invocations] == [False, *[True] * 18]
        assert await asyncio.gather(*(each.result() for each in invocations)) == [0, *range(2, 20)]
        assert await t.observer.get("parcel", "1").result() == 1
        assert t.ledger.calls == {f"send {number}": 1 for number in range(20)}
        page = await t.observer.list_instances()
        assert {(each.instance_id, each.attempt) for each in page.items} == {(str(n), 1) for n in range(20)}
        assert len(page.items) == 20


@CUTS
async def test_what_is_run_again_is_run_once_more_and_what_is_deleted_is_gone(trade: StartTrade, where: Cut) -> None:
    async with trade() as t:
        t.lose("invoke", where)
        parcel = await t.customer.invoke("parcel", 1, id="1", labels={"van": "7"})
        assert (await parcel.result(), parcel.created, t.cuts) == (1, True, 1)
        assert len((await t.observer.list_instances(labels={"van": "7"})).items) == 1
        t.lose("resume", where)
        await parcel.resume(rerun=["send"])
        assert await parcel.result() == 1
        assert (t.cuts, t.ledger.calls) == (2, {"send 1": 2})
        t.lose("delete", where)
        await t.customer.delete("parcel", "1")
        assert t.cuts == 3
        assert await t.observer.get_metadata("parcel", "1") is None
        assert not (await t.observer.list_instances(labels={"van": "7"})).items
        assert (await t.customer.invoke("parcel", 2, id="1")).created


@CUTS
async def test_a_fork_is_started_once(trade: StartTrade, where: Cut) -> None:
    async with trade() as t:
        await (await t.customer.invoke("parcel", 1, id="1")).result()
        for lost in ("copy", "invoke"):
            t.lose(lost, where)
            fork = await t.customer.fork("parcel", "1", before="send")
            assert (fork.created, await fork.result()) == (True, 1)
        assert t.cuts == 2
        assert t.ledger.calls == {"send 1": 3}
        assert len((await t.observer.list_instances()).items) == 3


@CUTS
async def test_what_is_handed_back_goes_on_at_once_and_once(trade: StartTrade, where: Cut) -> None:
    async with trade(shutdown_grace=0) as t:
        slow = await t.customer.invoke("slow", id="1")
        await until(lambda: t.ledger.calls["pack"] == 1, "the step is in flight")
        t.lose("release", where)
        await t.worker.stop()
        assert t.cuts == 1
        assert str(await state_of(t.observer, "slow")) == "queued"
        t.ledger.noted.set()
        async with Engine(t.app, url=t.observer._url, settings=t.settings):
            assert await slow.result(timeout=LONG_S / 2) == "packed"
        # once more: it was in flight, and had no record
        assert t.ledger.calls == {"pack": 2}
        (metadata,) = (await t.observer.list_instances()).items
        assert metadata.attempt == 2


async def state_of(client: Client, workflow: str) -> memable.WorkflowState:
    metadata = await client.get_metadata(workflow, "1")
    assert metadata is not None
    return metadata.state


@CUTS
async def test_a_delivery_that_gets_lost_is_delivered_again(trade: StartTrade, where: Cut) -> None:
    """Redis has given the entry to this worker, which knows nothing of it; so nobody renews it, for a lease."""
    async with trade(lease=1) as t:
        t.lose("XREADGROUP", where)
        # a read blocks on the connection that was there before: it is the next one that is lost
        for number in range(3):
            await t.customer.invoke("parcel", number, id=str(number))
            assert await t.customer.get("parcel", str(number)).result() == number
        assert t.cuts == 1
        assert t.ledger.calls == {f"send {number}": 1 for number in range(3)}
        assert {each.attempt for each in (await t.observer.list_instances()).items} == {1}


@pytest.mark.parametrize("where", [Cut.REPLY, Cut.INSIDE_REPLY])
async def test_those_who_look_on_see_the_end_and_nothing_twice(trade: StartTrade, where: Cut) -> None:
    """What their pub/sub connection was bringing is lost with it."""
    async with trade() as t:
        handle = await t.customer.invoke("slow", id="1")
        states = handle.states()
        seen = [str(await anext(states))]
        while seen[-1] != "running":
            seen.append(str(await anext(states)))
        cut = t.customers_line.cut_next(where)
        t.ledger.noted.set()
        seen += [str(state) async for state in states]
        assert seen[seen.index("running") :] == ["running", "completed"]
        assert cut.done()
