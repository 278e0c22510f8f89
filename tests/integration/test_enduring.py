"""arq's client, which waits for Redis: each of arq's transactions, cut at each place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
from arq.worker import get_kwargs
from redis._parsers import base
from redis.asyncio import Redis
from redis.exceptions import WatchError

import memable
from memable import App, Settings, StorageError
from memable.embedded import TemporaryServer
from memable.endpoint import OUTAGES, Endpoint
from memable.runtime.enduring import EnduringClient, EnduringPool, Phase, is_outage
from tests.proxy import Cut, Proxy

CUTS = list(Cut)


BaseParser: Any = base.BaseParser


def never(error: StorageError) -> NoReturn:
    raise AssertionError(error)


@asynccontextmanager
async def enduring(url: str, phase: Phase = Phase.RUNNING) -> AsyncGenerator[Any]:
    pool = EnduringPool(Endpoint.from_url(url), never)
    pool.enter(phase)
    try:
        yield EnduringClient(connection_pool=pool)
    finally:
        await pool.disconnect()


@asynccontextmanager
async def plain(url: str) -> AsyncGenerator[Any]:
    client: Any = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


@pytest.mark.parametrize("code", sorted(OUTAGES))
def test_every_refusal_that_passes_is_known_however_redis_py_says_it(code: str) -> None:
    error = BaseParser.parse_error(f"{code} the reason of it")
    assert is_outage(error)
    EnduringClient(connection_pool=EnduringPool(Endpoint.from_url("redis://h"), never)).pipeline().annotate_exception(
        error, 1, ("PSETEX", "key", "1", "value")
    )
    assert is_outage(error)


@pytest.mark.parametrize("text", ["WRONGTYPE Operation against a key", "ERR unknown command", "NOPERM no right"])
def test_other_refusals_are_the_callers(text: str) -> None:
    assert not is_outage(BaseParser.parse_error(text))


@pytest.mark.parametrize("where", CUTS)
async def test_a_command_is_answered_after_a_cut(redis_url: str, namespace: str, where: Cut) -> None:
    async with Proxy(redis_url) as proxy, enduring(proxy.url) as client:
        assert await client.set(namespace, "1", ex=60)
        cut = proxy.cut_next(where)
        assert await client.get(namespace) == b"1"
        assert cut.done()


@pytest.mark.parametrize("where", CUTS)
async def test_a_transaction_is_answered_after_a_cut(redis_url: str, namespace: str, where: Cut) -> None:
    async with Proxy(redis_url) as proxy, enduring(proxy.url) as client:
        await client.ping()
        cut = proxy.cut_next(where)
        async with client.pipeline() as pipe:
            pipe.set(namespace, "1", ex=60)
            pipe.get(namespace)
            assert await pipe.execute() == [True, b"1"]
        assert cut.done()


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("moment", ["watch", "first read", "second read", "exec"])
async def test_a_watch_that_is_lost_is_told_at_the_end_and_nowhere_else(
    redis_url: str, namespace: str, where: Cut, moment: str
) -> None:
    async with Proxy(redis_url) as proxy, enduring(proxy.url) as client:
        await client.ping()
        cut: asyncio.Future[None] | None = None

        def at(this: str) -> None:
            nonlocal cut
            if this == moment:
                cut = proxy.cut_next(where)

        async with client.pipeline() as pipe:
            at("watch")
            await pipe.watch(namespace)
            at("first read")
            assert await pipe.exists(namespace) == 0
            at("second read")
            assert await pipe.zscore(f"{namespace}:other", "x") is None
            pipe.multi()
            pipe.psetex(namespace, 60_000, "1")
            at("exec")
            if moment == "watch":
                # nothing had been read yet: the watch was simply begun again
                assert await pipe.execute() == [True]
            else:
                with pytest.raises(WatchError):
                    await pipe.execute()
                assert client.lost_watches > 0
        assert cut is not None
        assert cut.done()
        # the connection goes back to the pool as good as new
        assert await client.ping()


async def test_a_key_that_changed_meanwhile_is_a_watch_error_as_ever(redis_url: str, namespace: str) -> None:
    async with enduring(redis_url) as client, plain(redis_url) as other, client.pipeline() as pipe:
        await pipe.watch(namespace)
        await other.set(namespace, "2", ex=60)
        pipe.multi()
        pipe.psetex(namespace, 60_000, "1")
        with pytest.raises(WatchError):
            await pipe.execute()


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("message", range(4))
async def test_a_job_is_enqueued_once_wherever_the_connection_is_cut(
    server: TemporaryServer, where: Cut, message: int
) -> None:
    async with Proxy(server.url) as proxy:
        queue: Any = get_kwargs(memable.worker_settings(App(), settings=Settings(redis_url=proxy.url)))["redis_pool"]
        queue.connection_pool.enter(Phase.RUNNING)
        await queue.ping()
        seen, cut = len(proxy.requests), None

        async def cut_at_the_message() -> None:
            nonlocal cut
            while len(proxy.requests) < seen + message:
                await asyncio.sleep(0)
            cut = proxy.cut_next(where)

        cutter = asyncio.create_task(cut_at_the_message())
        await queue.enqueue_job("add", 1, 2, _job_id="job")
        cutter.cancel()
        async with plain(server.url) as other:
            assert await other.zrange("arq:queue", 0, -1) == [b"job"]
            assert await other.exists("arq:job:job")
        await queue.aclose(close_connection_pool=True)


REFUSALS = {
    "OOM": ("maxmemory", "1", "0"),
    "NOREPLICAS": ("min-replicas-to-write", "1", "0"),
}


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_refusal_is_waited_for_and_while_watching_told_at_the_end(
    server: TemporaryServer, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, refuse, serve = REFUSALS[code]
    async with enduring(server.url) as client, plain(server.url) as admin:
        await admin.config_set(name, refuse)
        async with client.pipeline() as pipe:
            await pipe.watch("key")
            pipe.multi()
            pipe.psetex("key", 60_000, "1")
            with pytest.raises(WatchError):
                await pipe.execute()
        async with client.pipeline() as pipe:
            pipe.psetex("key", 60_000, "1")
            waiting = asyncio.ensure_future(pipe.execute())
            while "cannot serve" not in caplog.text:
                await asyncio.sleep(0.01)
            await admin.config_set(name, serve)
            assert await waiting == [True]
        assert "serves arq again" in caplog.text


async def test_a_client_that_is_to_stop_gives_up_and_answers_none(server: TemporaryServer) -> None:
    async with enduring(server.url, Phase.STOPPING) as client:
        server.kill()
        async with client.pipeline() as pipe:
            pipe.get("a")
            pipe.get("b")
            assert await pipe.execute() == [None, None]
        assert await client.get("a") is None
