"""A reply is lost, and the retry comes when the instance has moved on: nothing happens twice, nobody is told a lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from memable import App, Client, Context, Engine, PermanentError, Settings, Status
from memable.errors import InstanceNotFound, SignalRejected
from memable.holding import Held, LeaseLost
from memable.keys import InstanceKeys
from memable.state import WorkflowState
from memable.store import Store, new_token
from tests.faults.losing import EachCall
from tests.integration.connecting import connected
from tests.lua.stage import DONE, LONG_MS, STEP, YES, Stage, approval
from tests.proxy import Cut, Proxy
from tests.worker_process import until


@pytest.fixture
def stage(own_stage: Stage) -> Stage:
    return own_stage


# ── one call, whatever its instance has come to meanwhile ────────────────────────────────────────────────────────────


async def a_new_id(stage: Stage) -> InstanceKeys:
    return stage.of()


async def delivered(stage: Stage) -> Held:
    (held,) = await stage.deliver(await stage.invoke())
    return held


async def running(stage: Stage) -> Held:
    return await stage.run()


async def life(stage: Stage) -> tuple[InstanceKeys, str]:
    held = await stage.run()
    return held.keys, await stage.life(held.keys)


async def parked(stage: Stage) -> InstanceKeys:
    return (await stage.parked()).keys


@dataclass(frozen=True)
class Late:
    """A call whose first try is carried out, and what its caller is told, the further the instance has moved on."""

    before: Callable[[Stage], Awaitable[Any]]
    call: Callable[[Store, Any], Awaitable[Any]]
    claimed: Any = LeaseLost
    finished: Any = LeaseLost
    anew: Any = LeaseLost


NO_MORE = WorkflowState(Status.CANCELLED, "no more")


LATE = {
    "invoke": Late(
        a_new_id,
        lambda store, keys: store.invoke(keys, new_token(), b'{"id":"42"}'),
        claimed=True,
        finished=True,
        anew=False,  # and so it is: the instance of that id is not the caller's
    ),
    "signal": Late(
        parked,
        lambda store, keys: store.signal(keys, "approval", "s1", YES),
        claimed=None,
        finished=None,
        anew=SignalRejected,
    ),
    "resume": Late(parked, lambda store, keys: store.resume(keys, new_token()), claimed=None, finished=None, anew=None),
    "cancel": Late(
        life,
        lambda store, life: store.cancel(life[0], life[1], new_token(), "no more", LONG_MS),
        claimed=NO_MORE,
        finished=NO_MORE,
        anew=InstanceNotFound,
    ),
    "claim": Late(delivered, lambda store, held: store.claim(held, "w1")),
    "record": Late(running, lambda store, held: store.record(held, "charge", STEP, 5)),
    "open": Late(running, lambda store, held: store.open(held, [approval()], [])),
    "set_status": Late(running, lambda store, held: store.set_status(held, "charging")),
    "park": Late(running, lambda store, held: store.park(held, [approval()], [], ""), claimed={}),
    "finish": Late(running, lambda store, held: store.finish(held, DONE, LONG_MS), claimed=None),
    "release": Late(running, lambda store, held: store.release(held), claimed=None),
}


async def claimed(stage: Stage) -> None:
    """Signalled, where it waits, and in the hands of another run."""
    if await stage.status(stage.of()) is Status.SUSPENDED:
        await stage.store.signal(stage.of(), "approval", "of another", YES)
    await stage.claimed_by_another(stage.of())


async def finished(stage: Stage) -> None:
    await claimed(stage)
    fields = await stage.fields(stage.of())
    await stage.store.finish(Held(stage.of(), fields["entry"], fields["lease"]), DONE, LONG_MS)


async def invoked_again(stage: Stage) -> None:
    await finished(stage)
    await stage.delete(stage.of())
    await stage.invoke()


async def invoked_again_and_run(stage: Stage) -> None:
    await invoked_again(stage)
    await stage.take(stage.of(), "w2")


WAYS: dict[str, tuple[Callable[[Stage], Awaitable[None]], Callable[[Late], Any]]] = {
    "claimed by another": (claimed, lambda late: late.claimed),
    "finished": (finished, lambda late: late.finished),
    "invoked again": (invoked_again, lambda late: late.anew),
    "invoked again and run": (invoked_again_and_run, lambda late: late.anew),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LATE)
async def test_the_retry_changes_nothing_and_is_told_what_is_true(
    stage: Stage, proxy: Proxy, name: str, way: str
) -> None:
    late, (move_on, expected) = LATE[name], WAYS[way]
    of = await late.before(stage)
    async with connected(proxy.url) as connection:
        proxy.stop_listening()  # no retry before the end of this block's first half
        cut = proxy.cut_next(Cut.REPLY)
        call: asyncio.Future[Any] = asyncio.ensure_future(late.call(Store(connection, stage.keys), of))
        await cut
        await move_on(stage)
        before = await stage.check()
        await proxy.listen()
        told: Any = (await asyncio.gather(call, return_exceptions=True))[0]
        assert (type(told) if isinstance(told, Exception) else told) == expected(late)
        assert await stage.check() == before


# ── a run, whose worker comes back when another has its instance ─────────────────────────────────────────────────────


@dataclass
class Ledger:
    """What was called, and by which worker."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    may_charge: asyncio.Event = field(default_factory=asyncio.Event)
    may_ship: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self, worker: str) -> App:
        app = App()

        async def charge() -> None:
            self.calls.append((worker, "charge"))
            await self.may_charge.wait()

        async def ship() -> None:
            self.calls.append((worker, "ship"))
            if worker == "old":
                raise PermanentError("no van")
            await self.may_ship.wait()

        @app.workflow("order")
        async def order(ctx: Context) -> str:
            await ctx.step("charge", charge)
            await ctx.suspend("approval")
            await ctx.step("ship", ship)
            return "shipped"

        return app


@dataclass
class Takeover:
    """An order that an old worker has, and a new worker takes."""

    ledger: Ledger
    old: Engine
    old_line: Proxy
    client: Client
    new: Engine
    stopping: asyncio.Future[None] | None = None

    async def lose_reply_to(self, name: str) -> None:
        """Of the old worker, which is cut off from then on."""
        await until(lambda: self.old._runtime._reader.client_id is not None, "all its connections stand")
        self.old_line.stop_listening()
        self.old_line.cut_each(Cut.REPLY, EachCall(name))

    async def cut_off(self) -> None:
        await until(lambda: self.old_line.cuts > 0, "the reply is lost")
        self.old_line.cut()

    async def is_suspended(self) -> bool:
        metadata = await self.client.get_metadata("order", "1")
        return metadata is not None and metadata.status is Status.SUSPENDED

    async def approve(self) -> None:
        await until(self.is_suspended, "the order waits for approval")
        await self.client.signal("order", "1", "approval")


@pytest.fixture
async def takeover(redis_url: str, namespace: str) -> AsyncGenerator[Takeover]:
    ledger = Ledger()

    def settings(lease: float) -> Settings:
        return Settings(namespace=namespace, lease=lease, shutdown_grace=0)

    @asynccontextmanager
    async def engine(url: str, worker: str) -> AsyncGenerator[Engine]:
        engine = Engine(ledger.app(worker), url=url, settings=settings(1))
        try:
            yield engine
        finally:
            await engine.stop()

    async with (
        Proxy(redis_url) as old_line,
        Client(redis_url, app=ledger.app("nobody"), namespace=namespace) as client,
        engine(redis_url, "new") as new,
        engine(old_line.url, "old") as old,
    ):
        await old.start()
        yield Takeover(ledger, old, old_line, client, new)


async def begun(t: Takeover, lost: str) -> None:
    t.ledger.may_charge.set()
    await t.lose_reply_to(lost)
    await t.client.invoke("order", id="1")


async def taken_meanwhile(t: Takeover, lost: str) -> None:
    """A lease after its loss, or at once when it has parked."""
    await begun(t, lost)
    await t.cut_off()
    await t.new.start()
    await t.approve()


async def resumed_after_it_failed(t: Takeover, lost: str) -> None:
    await begun(t, lost)
    await t.approve()
    await t.cut_off()
    await t.new.start()
    await t.client.resume("order", "1")


async def handed_back_while_it_charges(t: Takeover, lost: str) -> None:
    await t.client.invoke("order", id="1")
    await until(lambda: t.ledger.calls == [("old", "charge")], "it charges")
    await t.lose_reply_to(lost)
    t.stopping = asyncio.ensure_future(t.old.stop())
    await t.cut_off()
    t.ledger.may_charge.set()
    await t.new.start()
    await t.approve()


TAKEOVERS: dict[str, tuple[Callable[[Takeover, str], Awaitable[None]], list[tuple[str, str]]]] = {
    "claim": (taken_meanwhile, [("new", "charge"), ("new", "ship")]),
    "record": (taken_meanwhile, [("old", "charge"), ("new", "ship")]),
    "park": (taken_meanwhile, [("old", "charge"), ("new", "ship")]),
    "finish": (resumed_after_it_failed, [("old", "charge"), ("old", "ship"), ("new", "ship")]),
    # in flight when it was handed back, so without a record
    "release": (handed_back_while_it_charges, [("old", "charge"), ("new", "charge"), ("new", "ship")]),
}


@pytest.mark.parametrize("name", TAKEOVERS)
async def test_the_old_run_is_over_and_nothing_runs_beside_the_new_one(takeover: Takeover, name: str) -> None:
    t, (happens, expected) = takeover, TAKEOVERS[name]
    await happens(t, name)
    await until(lambda: t.ledger.calls == expected, "the new worker ships")
    assert t.old._runtime.running == 1  # it knows nothing yet
    await t.old_line.listen()
    await until(lambda: t.old._runtime.running == 0, "the old run learns that it is over")
    assert t.new._runtime.running == 1
    t.ledger.may_ship.set()
    assert await t.client.get("order", "1").result() == "shipped"
    assert t.ledger.calls == expected
    (metadata,) = (await t.client.list_instances()).items
    assert metadata.attempt == (2 if name == "park" else 3)
    # and it takes new work
    await t.new.stop()
    if t.stopping is not None:
        await t.stopping
    await t.old.start()
    await t.client.invoke("order", id="2")
    await until(lambda: t.ledger.calls[len(expected) :] == [("old", "charge")], "the old worker has begun the next one")
