"""Redis is away for a while, and comes back with all that it has acknowledged."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import redis

import memable.client
from memable import Client, Invocation, Status, StepKind, StepState, StorageError
from memable.embedded import TemporaryServer
from memable.keys import Keys
from tests.apps import errands
from tests.lua.stage import Stage
from tests.proxy import Proxy
from tests.resting import hasten, rests_at
from tests.worker_process import TOO_LONG_S, Started, WorkerProcess, until

LEASE_S = 1.0

Away = Callable[[TemporaryServer, Proxy], AbstractAsyncContextManager[None]]


@pytest.fixture
def errand_worker(own_proxy: Proxy, worker: Started) -> Started:
    """Makes workers that do errands, and reach Redis through the proxy."""

    def make(**environment: str) -> WorkerProcess:
        settings = {"MEMABLE_REDIS_URL": own_proxy.url, "MEMABLE_LEASE": f"{LEASE_S:g}", **environment}
        return worker("-m", "arq", "tests.apps.errands.WorkerSettings", **settings)

    return make


# ── for longer than a lease ──────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def killed(server: TemporaryServer, _: Proxy) -> AsyncIterator[None]:
    await asyncio.to_thread(server.kill)
    yield
    await asyncio.to_thread(server.start)


@asynccontextmanager
async def out_of_reach(_: TemporaryServer, proxy: Proxy) -> AsyncIterator[None]:
    proxy.stop_listening()
    proxy.cut()
    yield
    await proxy.listen()


@pytest.mark.parametrize("away", [killed, out_of_reach])
async def test_nothing_is_taken_from_those_who_held_it_when_redis_went_away(
    server: TemporaryServer,
    own_proxy: Proxy,
    errand_worker: Started,
    client: Client,
    stage: Stage,
    tmp_path: Path,
    away: Away,
) -> None:
    names = [f"held-{number}" for number in range(10)]
    # full, so that nobody else is given what comes after these
    slots = {"MEMABLE_CONCURRENCY": "5"}
    async with errand_worker(**slots) as one, errand_worker(**slots) as other:
        invocations = await client.invoke_many(errands.wait, names, ids=names)
        await until(lambda: len(errands.calls(tmp_path)) == len(names), "all of them in flight")
        # last in its stream: once the leader has come to it, it has come to all that look abandoned
        names.append("orphan")
        invocations += await client.invoke_many(errands.wait, names[-1:], ids=names[-1:])
        await stage.take(stage.keys.of("wait", "orphan"), "dead")
        async with away(server, own_proxy):
            await asyncio.sleep(2 * LEASE_S)  # now every lease is over
        await until(lambda: "wait/orphan was abandoned" in one.log + other.log, "the sweep of the leader")
        (tmp_path / "go").touch()
        for invocation in invocations:
            assert isinstance(invocation, Invocation)
            await invocation.result(timeout=TOO_LONG_S)
        done = sorted(call.split()[0] for call in errands.calls(tmp_path))
        assert done == sorted(f"{name}-{which}" for name in names for which in ("first", "second"))
        assert (one.log + other.log).count("was abandoned") == 1
        assert "Traceback" not in one.log + other.log


# ── again and again, under load ──────────────────────────────────────────────────────────────────────────────────────


class Customers:
    """Who send for errands, one after the other, until told to stop."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._is_over = False
        self._tasks = [asyncio.ensure_future(self._keep_asking(str(number))) for number in range(count)]
        self.results: dict[str, list[str]] = {}

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    def raise_if_failed(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _keep_asking(self, name: str) -> None:
        count = 0
        while not self._is_over:
            count += 1
            await self._ask(f"{name}.{count}")

    async def _ask(self, name: str) -> None:
        invocation = await self._client.invoke(errands.errand, name, id=name)
        assert invocation.created, "whoever invokes is told that it was somebody else"
        assert (await invocation.wait(timeout=TOO_LONG_S)).status is Status.SUSPENDED
        await invocation.signal(errands.NEXT, "second")
        self.results[name] = await invocation.result(timeout=TOO_LONG_S)


async def test_everything_acknowledged_is_there_when_redis_is_killed_again_and_again_under_load(
    server: TemporaryServer, errand_worker: Started, client: Client, tmp_path: Path
) -> None:
    async with errand_worker() as one, errand_worker() as other:
        customers = Customers(client, 8)
        for _ in range(5):
            ahead = len(customers.results) + 10

            def is_ahead(ahead: int = ahead) -> bool:
                customers.raise_if_failed()
                return len(customers.results) >= ahead

            await until(is_ahead, "the work going on")
            await asyncio.sleep(random.uniform(0, 0.05))  # anywhere in an errand
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(random.uniform(0, LEASE_S / 2))
            await asyncio.to_thread(server.start)
        await customers.stop()
        assert one.is_alive
        assert other.is_alive
        assert "Traceback" not in one.log + other.log
    # each step was called once, and what it handed back then is what its instance goes by
    assert sorted(errands.calls(tmp_path)) == sorted(call for calls in customers.results.values() for call in calls)
    for name, calls in customers.results.items():
        assert [call.split()[0] for call in calls] == [f"{name}-{which}" for which in ("first", "second", "third")]


async def test_a_client_gives_up_after_its_bounded_time_and_not_before(
    server: TemporaryServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memable.client, "GIVE_UP_S", 1.0)
    loop = asyncio.get_running_loop()
    async with await memable.connect(server.url, app=errands.app) as hasty:
        await asyncio.to_thread(server.kill)
        begun_s = loop.time()
        with pytest.raises(StorageError, match=r"did not answer script invoke within 1 s .*cannot reach Redis"):
            await hasty.invoke(errands.errand, "x", id="x")
        assert 0.9 < loop.time() - begun_s < 10
        await asyncio.to_thread(server.start)
        # it comes back by itself; and what was not acknowledged may be asked for again
        assert (await hasty.invoke(errands.errand, "x", id="x")).instance_id == "x"


# ── a timer that is due meanwhile ────────────────────────────────────────────────────────────────────────────────────

HOUR_S = 3600.0
SOON_S = 3.0
"""Time enough to kill a server, on a slow machine."""


async def fired_once(invocation: Invocation[str], client: Client, admin: redis.Redis, tmp_path: Path) -> bool:
    """Whether the nap is over, with all that belongs to that, and once."""
    assert await invocation.result(timeout=TOO_LONG_S) in errands.calls(tmp_path)
    (partition,) = Keys("memable", partitions=1).partitions
    records = [(each.key, each.kind, each.state) for each in await client.steps(errands.nap, invocation.instance_id)]
    return (
        len(errands.calls(tmp_path)) == 1
        and records
        == [("asleep:v1", StepKind.TIMER, StepState.COMPLETED), ("awake:v1", StepKind.STEP, StepState.COMPLETED)]
        and not admin.exists(partition.timers)
    )


# a lease that no test lasts: what waits for its end is not prompt
ENDLESS = {"MEMABLE_LEASE": "600"}


async def test_a_timer_that_is_due_while_redis_is_down_fires_once_and_promptly_after(
    server: TemporaryServer, errand_worker: Started, client: Client, admin: redis.Redis, tmp_path: Path
) -> None:
    async with errand_worker(**ENDLESS), errand_worker(**ENDLESS):
        invocation = await client.invoke(errands.nap, HOUR_S)
        await rests_at(invocation, "asleep:v1")
        await hasten(client, HOUR_S - SOON_S)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(SOON_S)
        assert not errands.calls(tmp_path)
        await asyncio.to_thread(server.start)
        assert await fired_once(invocation, client, admin, tmp_path)


@pytest.mark.parametrize(
    ("number", "lease"), [(signal.SIGTERM, ENDLESS), (signal.SIGKILL, {})], ids=["told to stop", "killed"]
)
@pytest.mark.spec("timer")
async def test_a_timer_that_is_due_while_all_workers_are_down_fires_once_and_promptly_after(
    errand_worker: Started,
    client: Client,
    admin: redis.Redis,
    tmp_path: Path,
    number: signal.Signals,
    lease: dict[str, str],
) -> None:
    async with errand_worker(**lease) as one, errand_worker(**lease) as other:
        invocation = await client.invoke(errands.nap, HOUR_S)
        await rests_at(invocation, "asleep:v1")
        for process in (one, other):
            process.process.send_signal(number)
        for process in (one, other):
            await process.ended()
    await hasten(client, HOUR_S)
    assert not errands.calls(tmp_path)
    async with errand_worker(**lease):
        assert await fired_once(invocation, client, admin, tmp_path)
