"""How many commands each operation sends to Redis: a guard against one more, which no clock is needed to see.

Seen by MONITOR on a server of the test's own. What goes by the clock is left out: that a worker leads, beats, reads its
stream.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import memable
from benchmarks.bench import Monitor
from memable import App, Client, Context, PermanentError, RetryPolicy, Settings, current_step
from memable.embedded import TemporaryServer
from memable.runtime.runtime import Runtime
from tests.resting import hasten
from tests.worker_process import until

AN_HOUR = 3600.0

app = App()


async def nothing() -> None: ...


async def fail() -> None:
    raise PermanentError("no")


async def fail_at_first() -> None:
    if current_step().attempt == 1:
        raise ConnectionError("away")


@app.workflow("empty")
async def empty(ctx: Context) -> None: ...


@app.workflow("one")
async def one(ctx: Context) -> None:
    await ctx.step("a", nothing)


@app.workflow("three")
async def three(ctx: Context) -> None:
    for key in "abc":
        await ctx.step(key, nothing)


@app.workflow("three at once")
async def three_at_once(ctx: Context) -> None:
    await asyncio.gather(*(ctx.step(key, nothing) for key in "abc"))


@app.workflow("failing")
async def failing(ctx: Context) -> None:
    await ctx.step("a", fail, retry=None)


@app.workflow("talking")
async def talking(ctx: Context) -> None:
    ctx.set_status("at work")
    await ctx.step("a", nothing)


@app.workflow("approved")
async def approved(ctx: Context) -> None:
    for key in "abc":
        await ctx.step(key, nothing)
    await ctx.suspend("approval")


@app.workflow("waiting for two")
async def waiting_for_two(ctx: Context) -> None:
    await asyncio.gather(ctx.suspend("approval"), ctx.timer("later", timedelta(days=1)))


@app.workflow("listening")
async def listening(ctx: Context) -> None:
    """What it gets first is there before it begins."""
    await ctx.suspend("kept", timeout=timedelta(days=1))
    await asyncio.gather(*(ctx.receive(key, "chat") for key in "abc"))
    await ctx.suspend("approval", timeout=timedelta(days=1))


@app.workflow("mortal", deadline=3600)
async def mortal(ctx: Context) -> None: ...


@app.workflow("calling")
async def calling(ctx: Context) -> None:
    await ctx.call("child", one)


@app.workflow("fanning out")
async def fanning_out(ctx: Context) -> None:
    await ctx.fan_out("children", [None] * 3, one)


@app.workflow("sleepy")
async def sleepy(ctx: Context) -> None:
    await ctx.timer("nap", AN_HOUR)


@app.workflow("persistent")
async def persistent(ctx: Context) -> None:
    await ctx.step("a", fail_at_first, retry=RetryPolicy.fixed(1, AN_HOUR))


async def nothing_for_a_while() -> None:
    """So long that what is waited for beside it is opened, or closed."""
    for _ in range(50):
        await asyncio.sleep(0)


@app.workflow("racing waits")
async def racing_waits(ctx: Context) -> None:
    await ctx.first("race", {"approval": ctx.suspend("approval"), "late": ctx.timer("late", timedelta(days=1))})


@app.workflow("racing steps")
async def racing_steps(ctx: Context) -> None:
    await ctx.first("race", {"a": ctx.step("a", nothing), "b": ctx.step("b", nothing)})


@app.workflow("racing with a step")
async def racing_with_a_step(ctx: Context) -> None:
    """The choice withdraws the point, and nobody else has to."""
    await ctx.first("race", {"a": ctx.step("a", nothing_for_a_while), "approval": ctx.suspend("approval")})
    await ctx.step("b", nothing_for_a_while)


Sent = Counter[str]
WATCHING = Sent(SUBSCRIBE=1, HMGET=1, UNSUBSCRIBE=1)
"""What `wait` and `result` send, however long they wait."""

BY_THE_CLOCK = ("reconcile", "renew", "ZADD")
"""The leader's walk through the listing, what keeps a lease, and the test that lets time pass: all name instances."""

Does = Callable[[Client], Awaitable[Any]]


@pytest.fixture
async def client(server: TemporaryServer) -> AsyncIterator[Client]:
    async with memable.connect(server.url, app=app) as client:
        yield client


@asynccontextmanager
async def worker(server: TemporaryServer) -> AsyncIterator[None]:
    runtime = Runtime(app, Settings(redis_url=server.url))
    await runtime.start()
    try:
        yield
    finally:
        await runtime.stop()


async def sent_by(server: TemporaryServer, do: Callable[[], Awaitable[Any]]) -> list[tuple[str, tuple[str, ...]]]:
    """The names and words of the commands that are sent while `do` does it."""
    monitor = Monitor(server.url)
    await monitor.open()
    await do()
    return [(each.name, each.shown) for each in await monitor.close()]


def of_the_instance(sent: list[tuple[str, tuple[str, ...]]]) -> Sent:
    """Those that name it, and do not go by the clock."""
    return Sent(name for name, words in sent if name not in BY_THE_CLOCK and any("/counted" in word for word in words))


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        ("empty", Sent(claim=1, finish=1)),
        ("one", Sent(claim=1, record=1, finish=1)),
        ("three", Sent(claim=1, record=3, finish=1)),
        ("three at once", Sent(claim=1, record=3, finish=1)),
        ("failing", Sent(claim=1, record=1, finish=1)),
        ("talking", Sent(claim=1, set_status=1, record=1, finish=1)),
        ("approved", Sent(claim=1, record=3, park=1)),
        ("waiting for two", Sent(claim=1, park=1)),
        # the kept signal, then all messages at once, each by an attempt to park
        ("listening", Sent(claim=1, park=3)),
        ("racing waits", Sent(claim=1, park=1)),
        ("racing steps", Sent(claim=1, record=2, choose=1, finish=1)),
        ("racing with a step", Sent(claim=1, open=1, record=2, choose=1, finish=1)),
        ("sleepy", Sent(claim=2, park=1, fire_timer=1, finish=1)),
        ("persistent", Sent(claim=2, park=1, fire_timer=1, settle=1, finish=1)),
    ],
)
async def test_a_run_sends(server: TemporaryServer, client: Client, workflow: str, expected: Sent) -> None:
    invocation = await client.invoke(workflow, id="counted")
    if workflow == "listening":
        await invocation.signal("kept", buffer=True)
        for text in ("one", "two", "three"):
            await invocation.send("chat", text)

    async def run() -> None:
        async with worker(server):
            if workflow in ("sleepy", "persistent"):
                await until(has_a_deadline, "it waits for a time")
                await hasten(client, AN_HOUR)
                await invocation.result()
            else:
                await invocation.wait()

    async def has_a_deadline() -> bool:
        online = client._online()
        return bool(await online.connection.command("ZCARD", online.store.keys.partitions[0].timers) == 1)

    assert of_the_instance(await sent_by(server, run)) == expected + WATCHING


@pytest.mark.parametrize(
    ("workflow", "of_the_parent", "of_the_children"),
    [
        # made and parked; read, recorded and finished: making the one child tells how it is, too
        ("calling", Sent(claim=2, spawn=2, park=1, HMGET=1, record=1, finish=1), 1),
        # one look before they are made
        ("fanning out", Sent(claim=2, spawn=3, park=1, HMGET=1, record=1, finish=1), 3),
    ],
)
async def test_a_parent_and_its_children_send(
    server: TemporaryServer, client: Client, workflow: str, of_the_parent: Sent, of_the_children: int
) -> None:
    async with worker(server):

        async def run() -> None:
            await (await client.invoke(workflow, id="counted")).result()

        sent = of_the_instance(await sent_by(server, run))
    children = {"claim": of_the_children, "record": of_the_children, "finish": of_the_children}
    assert sent == Sent(invoke=1) + of_the_parent + Sent(children) + WATCHING


async def test_a_run_that_goes_on_does_not_write_again_what_it_has_recorded(
    server: TemporaryServer, client: Client
) -> None:
    async with worker(server):
        invocation = await client.invoke(approved, id="counted")
        await invocation.wait()

        async def go_on() -> None:
            await invocation.signal("approval")
            await invocation.result()
            # what nobody listens to any more is said at the end of the loop turn
            await asyncio.sleep(0)

        sent = of_the_instance(await sent_by(server, go_on))
    assert sent == Sent(signal=1, claim=1, finish=1) + WATCHING


# "over" is completed and "waiting" is suspended; no worker is there
@pytest.mark.parametrize(
    ("does", "expected"),
    [
        pytest.param(lambda client: client.invoke(one), Sent(invoke=1), id="invoke"),
        pytest.param(lambda client: client.invoke(one, id="over"), Sent(invoke=1), id="invoke again"),
        pytest.param(lambda client: client.invoke(one, delay=1e6), Sent(invoke=1), id="invoke later"),
        pytest.param(lambda client: client.invoke(mortal), Sent(invoke=1), id="invoke with a deadline"),
        pytest.param(lambda client: client.invoke_many(one, [None] * 3), Sent(invoke=3), id="invoke_many of 3"),
        pytest.param(
            lambda client: client.signal(approved, "waiting", "approval"),
            Sent(signal=1),
            id="signal",
        ),
        pytest.param(
            lambda client: client.signal(approved, "waiting", "later", buffer=True), Sent(signal=1), id="signal, kept"
        ),
        pytest.param(lambda client: client.send(approved, "waiting", "chat", "hello"), Sent(send=1), id="send"),
        pytest.param(lambda client: client.resume(one, "over"), Sent(resume=1), id="resume"),
        pytest.param(
            # which life it has and how long it is kept, at once
            lambda client: client.cancel(approved, "waiting"),
            Sent(HMGET=1, HGET=1, cancel=1),
            id="cancel",
        ),
        pytest.param(lambda client: client.get_metadata(one, "over"), Sent(HMGET=1), id="get_metadata"),
        pytest.param(lambda client: client.steps(approved, "waiting"), Sent(HGETALL=1, EXISTS=1), id="steps"),
        pytest.param(
            lambda client: client.list_instances(one, status="completed"), Sent(page=1, HMGET=1), id="list_instances"
        ),
        pytest.param(
            lambda client: client.get(one, "over").result(),
            WATCHING,
            id="result",
        ),
        pytest.param(
            lambda client: client.get(approved, "waiting").wait(),
            WATCHING,
            id="wait",
        ),
    ],
)
async def test_a_call_of_a_client_sends(server: TemporaryServer, client: Client, does: Does, expected: Sent) -> None:
    async with worker(server):
        await (await client.invoke(one, id="over")).result()
        await (await client.invoke(approved, id="waiting")).wait()

    async def do() -> None:
        await does(client)
        await asyncio.sleep(0)  # as above

    sent = Sent(name for name, _ in await sent_by(server, do))
    assert sent - Sent(PING=sent["PING"], CLIENT=sent["CLIENT"]) == expected
