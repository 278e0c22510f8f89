"""How Redis is reached: what is told at start, and what is never shown."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
import redis

import memable.connection
from memable.connection import Endpoint, ScriptConnection, ServerRefused
from memable.embedded import TemporaryServer
from memable.endpoint import STOPPED_S, Wire
from memable.errors import StorageError
from tests.integration.connecting import connected, refuses, script, wait_until
from tests.proxy import Cut, Proxy
from tests.worker_process import TOO_LONG_S


async def started(url: str, give_up_after_s: float | None) -> None:
    """Start a connection and close it again."""
    async with connected(url, give_up_after_s=give_up_after_s):
        pass


async def test_before_start_a_call_is_refused(redis_url: str) -> None:
    connection = ScriptConnection(Endpoint.from_url(redis_url), give_up_after_s=None)
    with pytest.raises(StorageError, match="not started"):
        await connection.command("PING")


@pytest.mark.parametrize("give_up_after_s", [0.2, None])
async def test_an_unreachable_server_is_told_at_start(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, give_up_after_s: float | None
) -> None:
    monkeypatch.setattr(memable.connection, "FIRST_CONNECT_S", 0.2)
    proxy.stop_listening()
    with pytest.raises(StorageError, match=f"cannot reach Redis at {proxy.url}"):
        await started(proxy.url, give_up_after_s)


async def test_start_waits_a_little_for_a_server_that_comes_up(proxy: Proxy) -> None:
    proxy.turn_away()
    starting = asyncio.create_task(started(proxy.url, None))
    await wait_until(lambda: proxy.turned_away > 1)
    proxy.turn_away(False)
    await starting


async def test_start_waits_for_a_server_that_cannot_serve_yet(
    own_proxy: Proxy, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memable.connection, "FIRST_CONNECT_S", 0.2)
    admin.config_set("busy-reply-threshold", 1)
    async with connected(own_proxy.url) as hog:
        endless = hog.call(script("endless", "while true do end", 0), ())
        await wait_until(lambda: refuses(admin))
        with pytest.raises(StorageError, match="BUSY"):
            await started(own_proxy.url, 0.2)
        own_proxy.requests.clear()
        starting = asyncio.create_task(started(own_proxy.url, None))
        await wait_until(lambda: len(own_proxy.requests) > 5)  # 0, 50, 100, 200, 400 ms apart
        admin.script_kill()
        await starting
        with pytest.raises(ServerRefused):
            await endless


async def test_a_server_that_says_nothing_is_told_at_start(proxy: Proxy) -> None:
    proxy.pause()
    with pytest.raises(StorageError, match=r"no answer within 0\.2 s"):
        await started(proxy.url, 0.2)


async def test_what_is_not_redis_is_told_at_once() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web_server:
        port = web_server.sockets[0].getsockname()[1]
        with pytest.raises(StorageError, match="is not Redis"):
            await started(f"redis://127.0.0.1:{port}", None)


async def test_a_wrong_password_is_told_at_once_and_not_shown(
    server: TemporaryServer, own_proxy: Proxy, admin: redis.Redis
) -> None:
    admin.config_set("requirepass", "right")
    for url in (own_proxy.url, server.url):
        for login in ("", ":wr0ng@", "me:wr0ng@"):
            with pytest.raises(StorageError, match="refused the login") as caught:
                await started(url.replace("//", f"//{login}"), None)
            assert "wr0ng" not in str(caught.value)
            assert ".;" not in str(caught.value)
        await started(url.replace("//", "//:right@"), None)


async def test_a_database_that_is_not_there_is_told_at_once(proxy: Proxy) -> None:
    with pytest.raises(StorageError, match="refused the connection"):
        await started(proxy.url + "/99999", None)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://:pa55@localhost",
        "redis://:pa55@localhost:port",
        "redis://:pa55/word@localhost:6379",
        "redis://:pa55@localhost:99999",
        "redis://:pa55@localhost/zero",
        "redis://:pa55@localhost/?db=zero",
        "redis://:pa55@localhost/?pa55wd=1",
        "redis://[:pa55@localhost",
        "unix://",
        None,
    ],
)
def test_a_wrong_url_is_one_clear_line_without_the_password(url: Any) -> None:
    with pytest.raises(StorageError, match="the Redis URL is wrong: ") as caught:
        Endpoint.from_url(url)
    text = str(caught.value)
    assert "\n" not in text
    assert "pa55" not in text.replace("pa55wd", "")


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://", "redis://localhost:6379"),
        ("redis://me:pa55@example.org:1/2?socket_timeout=1", "redis://example.org:1/2"),
        ("rediss://:pa55@[::1]/", "rediss://[::1]:6379"),
        ("unix://:pa55@/tmp/r.sock?db=1", "unix:///tmp/r.sock"),
    ],
)
def test_an_endpoint_shows_no_credentials(url: str, safe: str) -> None:
    endpoint = Endpoint.from_url(url)
    assert endpoint.safe_url == safe
    assert "pa55" not in repr(endpoint)


async def test_the_connections_of_an_endpoint_repeat_nothing_by_themselves(proxy: Proxy) -> None:
    url = proxy.url + "?socket_timeout=1&retry_on_timeout=yes&health_check_interval=1&protocol=3&max_connections=7"
    endpoint = Endpoint.from_url(url)
    connection = endpoint.connection()
    assert (connection.retry._retries, connection.protocol, connection.health_check_interval) == (0, 2, 0)
    assert connection.socket_timeout is None
    async with connected(url) as batching:
        assert await batching.command("PING") == b"PONG"
    with_thread = endpoint.sync_client()
    assert await asyncio.to_thread(with_thread.ping)
    done = proxy.cut_next(Cut.REPLY)
    with pytest.raises(redis.ConnectionError):
        await asyncio.to_thread(with_thread.incr, "nothing")
    assert done.done()
    with_thread.close()


def test_a_threads_client_that_is_closed_leaves_no_connection(server: TemporaryServer, admin: redis.Redis) -> None:
    """Else a worker that has stopped is still somebody who uses the server, as long as its process lives."""
    client = Endpoint.from_url(server.url, client_name="thread").sync_client()

    def connections() -> int:
        clients: Any = admin.client_list()
        return sum(each["name"] == "thread" for each in clients)

    client.ping()
    assert connections() == 1
    client.close()
    deadline_s = time.monotonic() + TOO_LONG_S
    while connections():
        assert time.monotonic() < deadline_s, "the connection is still there"


async def test_the_time_for_which_a_process_was_stopped_is_no_time_in_which_redis_did_not_answer(proxy: Proxy) -> None:
    limit_s = 0.3
    proxy.turn_away()

    def stand_still() -> None:
        proxy.turn_away(False)
        time.sleep(limit_s + 2 * STOPPED_S)

    asyncio.get_running_loop().call_later(limit_s / 3, stand_still)
    wire = await Wire.first(Endpoint.from_url(proxy.url), limit_s, waits_out_outages=False)
    await wire.close()
    proxy.turn_away()
    with pytest.raises(StorageError, match=r"cannot reach Redis|closed the connection"):
        await Wire.first(Endpoint.from_url(proxy.url), limit_s, waits_out_outages=False)


async def test_a_server_that_reads_its_data_may_take_long_to_say_so_and_one_that_is_gone_may_not(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_s, long_s = 0.1, 1.3  # longer than the limit and the longest pause between two tries
    endpoint, opened = Endpoint.from_url(redis_url), Wire.open
    loads = ServerRefused("redis://h", "to serve", "LOADING Redis is loading the dataset in memory")
    gone = StorageError("cannot reach Redis: gone")

    def answer(*answers: tuple[float, StorageError | None]) -> None:
        left = iter(answers)

        async def open_after_a_while(endpoint: Endpoint) -> Wire:
            after_s, error = next(left, (0.0, gone))
            await asyncio.sleep(after_s)
            if error is not None:
                raise error
            return await opened(endpoint)

        monkeypatch.setattr(Wire, "open", open_after_a_while)

    answer((0.0, loads), (long_s, None))
    wire = await Wire.first(endpoint, limit_s, waits_out_outages=True)
    await wire.close()
    answer((0.0, loads), (long_s, gone))
    with pytest.raises(StorageError, match="gone"):
        await Wire.first(endpoint, limit_s, waits_out_outages=True)
    answer((0.0, loads), (long_s, None))
    with pytest.raises(StorageError, match="LOADING"):
        await Wire.first(endpoint, limit_s, waits_out_outages=False)


async def test_connecting_can_be_cancelled_at_every_moment(redis_url: str) -> None:
    endpoint = Endpoint.from_url(redis_url)
    for turns in itertools.count():
        connecting = asyncio.create_task(Wire.open(endpoint))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_done = connecting.done()
        connecting.cancel()
        await asyncio.wait([connecting])
        if was_done:
            await connecting.result().close()
            break
        # a cancellation that gets lost here would keep a closing connection alive for ever
        assert connecting.cancelled(), f"after {turns} turns"
