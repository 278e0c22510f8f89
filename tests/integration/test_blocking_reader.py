"""Reads that block in the server: nothing given is lost, and nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from memable.connection import BlockingReader, Endpoint, ScriptConnection, ServerRefused
from memable.embedded import TemporaryServer
from memable.errors import StorageError
from tests.integration.connecting import connected, wait_until
from tests.proxy import Proxy
from tests.worker_process import TOO_LONG_S


@asynccontextmanager
async def blocking(url: str) -> AsyncIterator[BlockingReader]:
    reader = BlockingReader(Endpoint.from_url(url))
    try:
        yield reader
    finally:
        await reader.close()


def group_read(stream: str, block_ms: int = 20_000) -> tuple[str | int, ...]:
    return ("XREADGROUP", "GROUP", "workers", "me", "COUNT", 10, "BLOCK", block_ms, "STREAMS", stream, ">")


async def blocked_on(admin: ScriptConnection) -> None:
    """Return when a client waits in the server."""
    async with asyncio.timeout(TOO_LONG_S):
        while b"blocked_clients:0" in await admin.command("INFO", "clients"):
            await asyncio.sleep(0.002)


async def test_a_blocking_read_waits_and_hands_back(server: TemporaryServer) -> None:
    async with connected(server.url) as connection, blocking(server.url) as reader:
        await connection.command("XGROUP", "CREATE", "stream", "workers", "0", "MKSTREAM")
        assert await reader.read(*group_read("stream", 1)) is None
        reading = asyncio.create_task(reader.read(*group_read("stream")))
        await blocked_on(connection)
        entry = await connection.command("XADD", "stream", "*", "a", "1")
        assert await reading == [[b"stream", [[entry, [b"a", b"1"]]]]]


async def test_a_cancelled_blocking_read_loses_nothing(server: TemporaryServer) -> None:
    async with connected(server.url) as connection, blocking(server.url) as reader:
        await connection.command("XGROUP", "CREATE", "stream", "workers", "0", "MKSTREAM")
        reading = asyncio.create_task(reader.read(*group_read("stream")))
        await blocked_on(connection)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        first = await connection.command("XADD", "stream", "*", "a", "1")
        second = await connection.command("XADD", "stream", "*", "a", "2")
        given = [*await reader.read(*group_read("stream")), *(await reader.read(*group_read("stream", 1)) or [])]
        assert [entry for _, entries in given for entry, _ in entries] == [first, second]

        reading = asyncio.create_task(reader.read(*group_read("stream")))
        await blocked_on(connection)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        third = await connection.command("XADD", "stream", "*", "a", "3")
        [[_, [[entry, _]]]] = await reader.close()
        assert entry == third


async def test_what_a_blocking_read_is_refused_has_a_code(redis_url: str, namespace: str) -> None:
    async with blocking(redis_url) as reader:
        with pytest.raises(ServerRefused) as caught:
            await reader.read(*group_read(namespace))
        assert caught.value.code == "NOGROUP"
        assert await reader.read("PING") == b"PONG"


async def test_a_lost_blocking_read_is_told_and_the_next_connects_again(own_proxy: Proxy) -> None:
    async with connected(own_proxy.url) as connection, blocking(own_proxy.url) as reader:
        await connection.command("XGROUP", "CREATE", "stream", "workers", "0", "MKSTREAM")
        reading = asyncio.create_task(reader.read(*group_read("stream")))
        await blocked_on(connection)
        own_proxy.stop_listening()
        own_proxy.cut()
        for _ in range(2):
            with pytest.raises(StorageError):
                await reading
            reading = asyncio.create_task(reader.read(*group_read("stream", 1)))
        await asyncio.wait([reading])
        await own_proxy.listen()
        with pytest.raises(StorageError):
            await reading
        assert await reader.read(*group_read("stream", 1)) is None


async def test_a_blocking_reader_closes_in_the_middle_of_a_read(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memable.blocking_reader.CLOSE_S", 0.05)
    async with blocking(proxy.url) as reader:
        reading = asyncio.create_task(reader.read("BLPOP", namespace, 0))
        await wait_until(lambda: any(b"BLPOP" in each for each in proxy.requests))
        await reader.close()
        with pytest.raises(StorageError, match="closed"):
            await reading
        with pytest.raises(StorageError, match="closed"):
            await reader.read("PING")
