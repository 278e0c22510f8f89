"""The fleet as Redis knows it: who lives, who leads, what waits; at a cost that instances do not change."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

import memable
from memable import Client, Context, Engine, Settings, Status
from memable.announcement import announcement
from memable.codec import Codec
from memable.fleet import Load, fleet, leaders, loads, workers
from memable.presence import Presence
from memable.store import Connection, Store
from tests.hand_worker import HandWorker, point
from tests.integration.applications import Order, app, order, ping
from tests.worker_process import until


@pytest.fixture(params=[1, 4], ids=["one partition", "four partitions"])
async def worker(redis_url: str, namespace: str, request: pytest.FixtureRequest) -> AsyncIterator[HandWorker]:
    async with HandWorker(redis_url, namespace, partitions=request.param) as worker:
        await worker.announce("ping", announcement(ping, Codec()))
        yield worker


@pytest.fixture
async def client(redis_url: str, namespace: str, worker: HandWorker) -> AsyncIterator[Client]:
    async with memable.connect(redis_url, app=app, namespace=namespace) as client:
        yield client


def store_of(client: Client) -> Store:
    return client._online().store


async def test_what_waits_is_told_from_what_is_run_and_what_waits_for_a_time(
    client: Client, worker: HandWorker
) -> None:
    for number in range(4):
        await client.invoke(ping, id=str(number))
    await client.invoke(ping, id="later", delay=3600)
    run = await worker.take("ping")
    await (await worker.take("ping")).park(point("answer", bool))
    (load,) = await loads(store_of(client))
    assert (load.workflow, load.waiting, load.running, load.postponed) == ("ping", 2, 1, 1)
    assert {status: count for status, count in load.counts.items() if count} == {
        Status.QUEUED: 3,
        Status.RUNNING: 1,
        Status.SUSPENDED: 1,
    }
    assert load.oldest_waiting_s is not None
    assert load.oldest_waiting_s >= 0
    await run.complete()
    (load,) = await loads(store_of(client), ["ping"])
    assert (load.waiting, load.running, load.counts[Status.COMPLETED]) == (2, 0, 1)


async def test_the_oldest_is_the_first_that_nobody_has_been_given(client: Client, worker: HandWorker) -> None:
    (load,) = await loads(store_of(client))
    assert (load.waiting, load.oldest_waiting_s) == (0, None)
    await client.invoke(ping)
    run = await worker.take("ping")
    (load,) = await loads(store_of(client))
    assert (load.waiting, load.running, load.oldest_waiting_s) == (0, 1, None)
    await run.complete()


async def test_a_workflow_that_no_worker_has_ever_read_lacks_a_group(client: Client) -> None:
    await client.invoke(order, Order(id="1", amount=1), id="1")
    (load,) = await loads(store_of(client), ["order"])
    assert (load.waiting, load.running, load.lacks_group) == (1, 0, True)
    assert load.oldest_waiting_s is not None
    assert await loads(store_of(client), ["nobody"]) == [
        Load("nobody", dict.fromkeys(Status, 0), waiting=0, lacks_group=True)
    ]


class Counting:
    """A connection that counts what is asked of it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.asked = 0

    def call(self, script: Any, arguments: Any) -> asyncio.Future[Any]:
        self.asked += 1
        return self._connection.call(script, arguments)

    def command(self, *words: Any) -> asyncio.Future[Any]:
        self.asked += 1
        return self._connection.command(*words)


async def test_what_is_asked_does_not_grow_with_the_instances(client: Client, worker: HandWorker) -> None:
    async def commands() -> int:
        connection = Counting(worker.store.connection)
        await fleet(Store(connection, worker.keys))
        return connection.asked

    await client.invoke_many(ping, [None] * 20)
    few = await commands()
    await client.invoke_many(ping, [None] * 200)
    # a partition that had nothing is asked for its oldest now
    assert await commands() <= few + len(worker.keys.partitions)


# ── workers that live ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_workers_say_who_they_are_and_who_leads(redis_url: str, namespace: str) -> None:
    own = memable.App()

    @own.workflow("idle")
    async def idle(ctx: Context) -> None: ...

    settings = Settings(namespace=namespace, concurrency=7)
    async with (
        memable.connect(redis_url, namespace=namespace) as client,
        Engine(own, url=redis_url, settings=settings) as engine,
    ):
        store = store_of(client)

        async def has_spoken() -> bool:
            seen = await fleet(store)
            return bool(seen.workers) and seen.workers[0].presence is not None and None not in seen.leaders

        await until(has_spoken, "the first beat, and a leader")
        seen = await fleet(store)
        (worker,) = seen.workers
        assert worker.presence is not None
        assert worker.name.startswith(f"{socket.gethostname()}-{os.getpid()}-")
        assert (worker.presence.host, worker.presence.pid) == (socket.gethostname(), os.getpid())
        assert (worker.presence.slots, worker.presence.workflows) == (7, ("idle",))
        assert worker.silent_s < 30
        assert (worker.leads, seen.leaders) == ((0,), [worker.name])
        assert seen.served_by("idle") == [worker]
        assert seen.served_by("other") == []
        assert [each.name for each in await workers(store)] == [worker.name]
        await engine.close()
        assert await workers(store) == []
        assert await leaders(store) == [None]
        assert await store.connection.command("EXISTS", store.keys.worker(worker.name)) == 0


async def test_a_worker_that_is_silent_for_long_is_gone_though_nobody_has_taken_it_off_the_list(
    client: Client, worker: HandWorker
) -> None:
    store = store_of(client)
    await store.beat("dead", b"{}", 30_000)
    await store.connection.command("ZADD", store.keys.workers, 1000, "dead")
    await store.beat("of-another-version", b'{"colour":"blue"}', 30_000)
    (seen,) = await workers(store)
    assert (seen.name, seen.presence, seen.leads) == ("of-another-version", None, ())


def test_what_a_worker_says_can_be_read() -> None:
    presence = Presence("box", 7, "1.0", 12.5, slots=100, in_use=3, workflows=("order", "sync"))
    assert Presence.parse(presence.said()) == presence
    for wrong in (None, b"", b"[]", b"{}", b'{"host":"box"}'):
        assert Presence.parse(wrong) is None
