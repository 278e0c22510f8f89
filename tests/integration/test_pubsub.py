"""What a listener can rely on: it hears everything, or is told that it may have missed something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis

from memable.connection import Endpoint, ScriptConnection
from memable.embedded import TemporaryServer
from memable.errors import StorageError
from memable.pubsub import Subscriptions
from tests.proxy import Cut, Proxy
from tests.worker_process import TOO_LONG_S


@asynccontextmanager
async def subscribed(url: str, *, give_up_after_s: float | None = 10.0) -> AsyncIterator[Subscriptions]:
    subscriptions = Subscriptions(Endpoint.from_url(url), give_up_after_s=give_up_after_s)
    try:
        yield subscriptions
    finally:
        await subscriptions.close()


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[ScriptConnection]:
    """Publishes to the shared server, past any proxy."""
    connection = ScriptConnection(Endpoint.from_url(redis_url), give_up_after_s=10)
    await connection.start()
    yield connection
    await connection.close()


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(redis_url) as proxy:
        yield proxy


class Ear:
    """A listener that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[bytes | None] = []
        self._news = asyncio.Event()

    def __call__(self, message: bytes | None) -> None:
        self.heard.append(message)
        self._news.set()

    async def until(self, last: bytes | None) -> list[bytes | None]:
        """What was heard, when the last of it is `last`."""
        async with asyncio.timeout(TOO_LONG_S):
            while not self.heard or self.heard[-1] != last:
                self._news.clear()
                await self._news.wait()
        return self.heard


def calls_of(admin: redis.Redis, command: str) -> int:
    statistics: Any = admin.info("commandstats")
    return int(statistics[f"cmdstat_{command}"]["calls"])


async def test_what_is_published_after_open_is_heard(
    redis_url: str, connection: ScriptConnection, namespace: str
) -> None:
    async with subscribed(redis_url) as subscriptions:
        for number in range(20):
            ear = Ear()
            await subscriptions.open(f"{namespace}:{number}", ear)
            await connection.command("PUBLISH", f"{namespace}:{number}", "news")
            assert await ear.until(b"news") == [b"news"]


async def test_all_listeners_of_a_channel_hear_until_they_close(
    redis_url: str, connection: ScriptConnection, namespace: str
) -> None:
    async with subscribed(redis_url) as subscriptions:
        ears = [Ear() for _ in range(3)]
        first, second, third = [await subscriptions.open(namespace, ear) for ear in ears]
        await connection.command("PUBLISH", namespace, "1")
        for ear in ears:
            await ear.until(b"1")
        second.close()
        second.close()
        assert await connection.command("PUBLISH", namespace, "2") == 1
        await ears[0].until(b"2")
        await ears[2].until(b"2")
        assert ears[1].heard == [b"1"]
        first.close()
        third.close()
        async with asyncio.timeout(TOO_LONG_S):
            while await connection.command("PUBLISH", namespace, "3"):
                await asyncio.sleep(0.002)


async def test_the_openings_of_one_turn_share_a_command(server: TemporaryServer) -> None:
    admin = Endpoint.from_url(server.url).sync_client()
    async with subscribed(server.url) as subscriptions:
        ears = [Ear() for _ in range(1000)]
        opened = await asyncio.gather(*[subscriptions.open(f"channel:{i}", ear) for i, ear in enumerate(ears)])
        assert calls_of(admin, "subscribe") == 1
        for number in range(1000):
            admin.publish(f"channel:{number}", number)
        for number, ear in enumerate(ears):
            assert await ear.until(b"%d" % number) == [b"%d" % number]
        for each in opened:
            each.close()
        async with asyncio.timeout(TOO_LONG_S):
            while admin.pubsub_channels():
                await asyncio.sleep(0.002)
        assert calls_of(admin, "unsubscribe") == 1
    admin.close()


async def test_closed_and_opened_again_in_one_turn(
    redis_url: str, connection: ScriptConnection, namespace: str
) -> None:
    async with subscribed(redis_url) as subscriptions:
        old, ear = Ear(), Ear()
        subscription = await subscriptions.open(namespace, old)
        subscription.close()
        subscription = await subscriptions.open(namespace, ear)
        await connection.command("PUBLISH", namespace, "1")
        await ear.until(b"1")
        # and the other way round, with the UNSUBSCRIBE on its way
        subscription.close()
        await asyncio.sleep(0)
        newest = Ear()
        await subscriptions.open(namespace, newest)
        await connection.command("PUBLISH", namespace, "2")
        assert await newest.until(b"2") == [b"2"]
        assert (old.heard, ear.heard) == ([], [b"1"])


async def test_opened_and_closed_many_times_without_waiting(
    redis_url: str, connection: ScriptConnection, namespace: str
) -> None:
    async with subscribed(redis_url) as subscriptions:
        for turns in range(20):
            opening = asyncio.create_task(subscriptions.open(namespace, Ear()))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.result().close()
        ear = Ear()
        await subscriptions.open(namespace, ear)
        await connection.command("PUBLISH", namespace, "1")
        assert await ear.until(b"1") == [b"1"]


async def test_after_a_lost_connection_every_listener_is_told(
    proxy: Proxy, connection: ScriptConnection, namespace: str
) -> None:
    async with subscribed(proxy.url) as subscriptions:
        ears = [Ear() for _ in range(20)]
        for number, ear in enumerate(ears):
            await subscriptions.open(f"{namespace}:{number % 10}", ear)
        for _ in range(3):
            proxy.cut()
            for ear in ears:
                await ear.until(None)
            for number in range(10):
                assert await connection.command("PUBLISH", f"{namespace}:{number}", "again") == 1
            for ear in ears:
                await ear.until(b"again")
        assert all(ear.heard == [None, b"again"] * 3 for ear in ears)


async def test_a_killed_server_is_subscribed_to_again(server: TemporaryServer, namespace: str) -> None:
    async with subscribed(server.url) as subscriptions:
        ear = Ear()
        await subscriptions.open(namespace, ear)
        await asyncio.to_thread(server.restart)
        assert await ear.until(None) == [None]


@pytest.mark.parametrize("where", list(Cut))
async def test_an_opening_survives_a_cut(
    proxy: Proxy, connection: ScriptConnection, namespace: str, where: Cut
) -> None:
    async with subscribed(proxy.url) as subscriptions:
        await subscriptions.open(f"{namespace}:other", Ear())
        cut = proxy.cut_next(where)
        ear = Ear()
        await subscriptions.open(namespace, ear)
        assert cut.done()
        await connection.command("PUBLISH", namespace, "1")
        assert await ear.until(b"1") == [b"1"]


async def test_a_host_that_vanishes_is_noticed(proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memable.pubsub._PING_EVERY_S", 0.1)
    async with subscribed(proxy.url) as subscriptions:
        ear = Ear()
        await subscriptions.open(namespace, ear)
        proxy.freeze()
        assert await ear.until(None) == [None]


async def test_a_quiet_connection_stays(proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence counts only from a PING on: whatever the phase of the timer, nobody is dropped who was not asked."""
    monkeypatch.setattr("memable.pubsub._PING_EVERY_S", 0.5)
    async with subscribed(proxy.url) as subscriptions:
        ear = Ear()
        await subscriptions.open(namespace, ear)
        proxy.requests.clear()
        async with asyncio.timeout(TOO_LONG_S):
            while len(proxy.requests) < 5:
                await asyncio.sleep(0.02)
        assert ear.heard == []


async def test_a_listener_that_raises_harms_no_other(
    redis_url: str, connection: ScriptConnection, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(message: bytes | None) -> None:
        raise RuntimeError("broken")

    async with subscribed(redis_url) as subscriptions:
        ear = Ear()
        await subscriptions.open(namespace, broken)
        await subscriptions.open(namespace, ear)
        for text in (b"1", b"2"):
            await connection.command("PUBLISH", namespace, text)
            await ear.until(text)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


async def test_opening_gives_up_on_a_server_that_is_away(proxy: Proxy, namespace: str) -> None:
    proxy.stop_listening()
    async with subscribed(proxy.url, give_up_after_s=0.2) as subscriptions:
        with pytest.raises(StorageError, match=r"did not confirm a subscription within 0\.2 s .*cannot reach"):
            await subscriptions.open(namespace, Ear())
        await proxy.listen()
        async with asyncio.timeout(TOO_LONG_S):
            while True:  # a machine that is busy may need more than one of these short limits
                with suppress(StorageError):
                    await subscriptions.open(namespace, Ear())
                    break


async def test_a_wrong_password_is_told_at_once(server: TemporaryServer, namespace: str) -> None:
    admin: redis.Redis = Endpoint.from_url(server.url).sync_client()
    admin.config_set("requirepass", "right")
    admin.close()
    async with subscribed(server.url, give_up_after_s=None) as subscriptions:
        with pytest.raises(StorageError, match="refused the login"):
            await subscriptions.open(namespace, Ear())


async def test_close_wakes_those_who_open_and_leaves_nothing_running(proxy: Proxy, namespace: str) -> None:
    before = asyncio.all_tasks()
    proxy.pause()
    async with subscribed(proxy.url, give_up_after_s=None) as subscriptions:
        opening = asyncio.create_task(subscriptions.open(namespace, Ear()))
        await asyncio.sleep(0)
        await subscriptions.close()
        with pytest.raises(StorageError, match="were closed"):
            await opening
        with pytest.raises(StorageError, match="are closed"):
            await subscriptions.open(namespace, Ear())
    proxy.cut()
    async with asyncio.timeout(TOO_LONG_S):
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.002)
