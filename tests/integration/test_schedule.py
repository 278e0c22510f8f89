"""What waits for a time: what each of it is, in order, page by page in every partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import memable
from memable import App, Client, Context, Engine, RetryPolicy, Settings
from memable.errors import InvalidCursor
from memable.listening import listen
from memable.schedule import Awaited, Scheduled, scheduled
from tests.worker_process import until

app = App()


@app.workflow("waiting", deadline=7200)
async def waiting(ctx: Context) -> None:
    async def fail() -> None:
        raise ConnectionError("away")

    await asyncio.gather(
        ctx.timer("timer:v1", 600),
        ctx.suspend("signal:v1", timeout=1200),
        ctx.receive("message:v1", "chat", timeout=1800),
        ctx.suspend("for-ever:v1"),
        ctx.step("step:v1", fail, retry=RetryPolicy.fixed(2, 2400)),
    )


@pytest.fixture(params=[1, 3], ids=["one partition", "three partitions"])
async def client(redis_url: str, namespace: str, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    settings = Settings(namespace=namespace, partitions=request.param, redis_url=redis_url)
    async with Engine(app, url=redis_url, settings=settings), memable.connect(settings=settings, app=app) as client:
        yield client


def told(each: Scheduled) -> tuple[str, str | None]:
    return each.what, each.key


async def test_each_is_told_by_what_happens_when_its_time_has_come(client: Client) -> None:
    store = client._online().store
    await client.invoke(waiting, id="now")
    await client.invoke(waiting, id="later", delay=3000)

    async def are_there() -> bool:
        # the deadline of a delayed one counts from its invoke, too
        return len((await scheduled(store, 100)).items) == 7

    await until(are_there, "all that waits for a time")
    page = await scheduled(store, 100)
    assert [(each.instance_id, *told(each)) for each in page.items[:5]] == [
        ("now", Awaited.TIMER, "timer:v1"),
        ("now", Awaited.TIMEOUT, "signal:v1"),
        ("now", Awaited.TIMEOUT, "message:v1"),
        ("now", Awaited.RETRY, "step:v1"),
        ("later", Awaited.DELAY, None),
    ]
    assert {(each.instance_id, *told(each)) for each in page.items[5:]} == {
        ("now", Awaited.DEADLINE, None),
        ("later", Awaited.DEADLINE, None),
    }
    assert 0 < page.items[0].in_s <= 600
    assert page.cursor is None


async def test_pages_lose_nothing_also_of_the_same_moment(client: Client) -> None:
    store = client._online().store
    for partition in store.keys.partitions:
        for number in range(5):
            due_ms = 4e12 if number < 4 else 4e12 + 1
            await store.connection.command("ZADD", partition.timers, due_ms, f"none/{partition.prefix}{number}/_delay")
    try:
        every = (await scheduled(store, 100)).items
        assert len(every) == 5 * len(store.keys.partitions)
        for limit in (1, 2, 3, 100):
            found, cursor = list[Scheduled](), None
            while True:
                page = await scheduled(store, limit, cursor)
                found += page.items
                if (cursor := page.cursor) is None:
                    break
                assert len(page.items) == limit
            assert [each.instance_id for each in found] == [each.instance_id for each in every]
    finally:
        for partition in store.keys.partitions:
            await store.connection.command("DEL", partition.timers)
    with pytest.raises(InvalidCursor):
        await scheduled(store, 1, "nowhere")


async def test_a_lost_connection_is_told_to_whoever_listens(client: Client) -> None:
    online = client._online()
    changes = listen(online.subscriptions.endpoint, online.store.keys)
    try:
        assert await anext(changes) is None
        await online.connection.command("CLIENT", "KILL", "TYPE", "pubsub")
        assert await anext(changes) is None
        await client.invoke(waiting, id="heard")
        news = await anext(changes)
        assert news is not None
        assert news.instance_id == "heard"
    finally:
        await changes.aclose()
