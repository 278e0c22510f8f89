"""What a caller of the batching connection can rely on, whatever happens to the connection and to the server."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from enum import IntEnum
from hashlib import sha1
from typing import Any

import pytest
import redis

import memable.connection
from memable.connection import BlockingReader, Endpoint, Script, ScriptConnection, ServerRefused
from memable.embedded import TemporaryServer
from memable.errors import StorageError
from tests.proxy import Cut, Proxy


def script(name: str, source: str, key_count: int) -> Script:
    return Script(name, source, sha1(source.encode()).hexdigest(), key_count)


# May be carried out twice, and shows in which order the first times were
APPEND = script(
    "append",
    "if redis.call('SADD', KEYS[2], ARGV[1]) == 1 then redis.call('RPUSH', KEYS[1], ARGV[1]) end return ARGV[1]",
    2,
)
ECHO = script("echo", "return ARGV", 0)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def connected(url: str, *, give_up_after_s: float | None = None) -> AsyncIterator[ScriptConnection]:
    connection = ScriptConnection(Endpoint.from_url(url), give_up_after_s=give_up_after_s)
    await connection.start()
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def own_proxy(server: TemporaryServer) -> AsyncIterator[Proxy]:
    """A proxy before a server of this test alone."""
    async with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def admin(server: TemporaryServer) -> Iterator[redis.Redis]:
    """The test's own hand on its server."""
    with Endpoint.from_url(server.url).sync_client() as client:
        yield client


class Log:
    """A list in Redis to which calls append, each once."""

    def __init__(self, connection: ScriptConnection, namespace: str) -> None:
        self.connection, self.keys = connection, (f"{namespace}:list", f"{namespace}:seen")

    def append(self, number: int) -> asyncio.Future[Any]:
        return self.connection.call(APPEND, (*self.keys, number))

    async def read(self) -> list[int]:
        return [int(each) for each in await self.connection.command("LRANGE", self.keys[0], 0, -1)]


# --- batching


async def test_every_caller_gets_its_own_reply(redis_url: str) -> None:
    async with connected(redis_url) as connection:
        replies = await asyncio.gather(*[connection.call(ECHO, (i, f"text {i}")) for i in range(2000)])
        assert replies == [[b"%d" % i, b"text %d" % i] for i in range(2000)]


async def test_the_calls_of_one_turn_leave_in_one_write(proxy: Proxy) -> None:
    async with connected(proxy.url) as connection:
        await connection.command("PING")
        proxy.requests.clear()

        async def caller(number: int) -> None:
            await connection.command("ECHO", number)

        await asyncio.gather(*[caller(i) for i in range(100)])
        assert len(proxy.requests) == 1


async def test_all_kinds_of_arguments_arrive(redis_url: str) -> None:
    class Code(IntEnum):
        SEVEN = 7

    async with connected(redis_url) as connection:
        assert await connection.call(ECHO, ("é", b"\x00\r\n", 2**60, 0.1 + 0.2, Code.SEVEN)) == [
            "é".encode(),
            b"\x00\r\n",
            b"%d" % 2**60,
            b"0.30000000000000004",
            b"7",
        ]
        with pytest.raises(TypeError):
            connection.call(ECHO, (None,))  # type: ignore[arg-type]  # the mistake under test
        with pytest.raises(TypeError):
            connection.call(ECHO, (True,))


async def test_more_than_a_socket_holds(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection:
        payloads = [bytes([i]) * 300_000 for i in range(60)]
        assert await asyncio.gather(*[connection.command("ECHO", each) for each in payloads]) == payloads


async def test_an_error_is_told_to_its_own_caller_only(redis_url: str, namespace: str) -> None:
    wrong = script("wrong", "return redis.call('LPUSH', KEYS[1], 'x')", 1)
    async with connected(redis_url) as connection:
        await connection.command("SET", namespace, "text")
        calls = [
            connection.call(ECHO, ("before",)),
            connection.call(wrong, (namespace,)),
            connection.call(script("broken", "return (", 0), ()),
            connection.command("NOSUCHCOMMAND", "secret argument"),
            connection.call(ECHO, ("after",)),
        ]
        before, wrong_type, broken, unknown, after = await asyncio.gather(*calls, return_exceptions=True)
        assert (before, after) == ([b"before"], [b"after"])
        assert isinstance(wrong_type, ServerRefused)
        assert wrong_type.code == "WRONGTYPE"
        assert "script wrong" in str(wrong_type)
        assert isinstance(broken, ServerRefused)
        assert "script broken" in str(broken)
        assert isinstance(unknown, ServerRefused)
        assert "NOSUCHCOMMAND" in str(unknown)
        assert connection.is_healthy


async def test_a_cancelled_caller_leaves_the_stream_in_step_and_its_call_is_carried_out(
    proxy: Proxy, namespace: str
) -> None:
    async with connected(proxy.url) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        proxy.pause()
        futures = [log.append(i) for i in range(1, 50)]
        await asyncio.sleep(0)
        futures += [log.append(i) for i in range(50, 100)]
        for future in futures[::2]:
            future.cancel()
        proxy.resume()
        assert await asyncio.gather(*futures[1::2]) == [b"%d" % i for i in range(2, 100, 2)]
        assert await log.read() == list(range(100))


# --- lost connections


@pytest.mark.parametrize("where", list(Cut))
async def test_calls_survive_cuts_in_order_and_once(proxy: Proxy, namespace: str, where: Cut) -> None:
    async with connected(proxy.url) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        futures: list[asyncio.Future[Any]] = []
        for _ in range(4):
            cut = proxy.cut_next(where)
            while not cut.done():
                futures += [log.append(len(futures) + i + 1) for i in range(20)]
                await asyncio.wait([futures[-1], cut], return_when=asyncio.FIRST_COMPLETED)
        assert await asyncio.gather(*futures) == [b"%d" % (i + 1) for i in range(len(futures))]
        assert await log.read() == list(range(len(futures) + 1))


async def test_calls_made_while_redis_is_away_wait_for_it(proxy: Proxy, namespace: str) -> None:
    async with connected(proxy.url) as connection:
        log = Log(connection, namespace)
        first = connection.connected_at_s or math.inf
        proxy.stop_listening()
        proxy.cut()
        await wait_until(lambda: connection.connected_at_s is None)
        assert not connection.is_healthy
        futures = [log.append(i) for i in range(30)]
        await proxy.listen()
        await asyncio.gather(*futures)
        assert await log.read() == list(range(30))
        assert connection.is_healthy
        assert (connection.connected_at_s or 0) > first


async def test_an_idle_connection_comes_back_by_itself(proxy: Proxy) -> None:
    async with connected(proxy.url) as connection:
        first = connection.connected_at_s
        proxy.cut()
        await wait_until(lambda: connection.connected_at_s not in (first, None))


async def test_a_killed_server_loses_no_acknowledged_call(server: TemporaryServer, namespace: str) -> None:
    async with connected(server.url) as connection:
        log = Log(connection, namespace)
        done: list[int] = []
        stop = asyncio.Event()

        async def worker(number: int) -> None:
            while not stop.is_set():
                done.append(int(await log.append(number)))
                number += 1000

        workers = [asyncio.create_task(worker(i)) for i in range(20)]

        async def more() -> None:
            enough = len(done) + 200
            await wait_until(lambda: len(done) >= enough)

        for _ in range(2):
            await more()
            await asyncio.to_thread(server.restart)
        await more()
        stop.set()
        await asyncio.gather(*workers)
        assert sorted(await log.read()) == sorted(done)


async def test_a_host_that_vanishes_is_given_up_for_a_new_connection(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memable.connection, "ANSWER_S", 0.4)
    async with connected(proxy.url) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        proxy.freeze()
        assert await log.append(1) == b"1"
        assert await log.read() == [0, 1]


async def test_one_line_is_logged_on_loss_and_one_on_return(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "memable.connection")
    async with connected(proxy.url) as connection:
        proxy.turn_away()
        proxy.cut()
        await wait_until(lambda: proxy.turned_away > 3)
        future = connection.command("PING")
        proxy.turn_away(False)
        assert await future == b"PONG"
    loss, back = caplog.messages
    assert "trying again" in loss
    assert "serves again" in back


# --- scripts that the server has forgotten, and servers that cannot serve


async def test_forgotten_scripts_are_sent_again(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        flushed = connection.command("SCRIPT", "FLUSH")
        numbers = await asyncio.gather(flushed, *[log.append(i) for i in range(1, 50)])
        assert numbers[1:] == [b"%d" % i for i in range(1, 50)]
        assert await log.read() == list(range(50))


class Outage:
    """Ways to make a real server refuse writes, and to mend it."""

    def __init__(self, admin: redis.Redis) -> None:
        self.admin = admin

    def begin(self, code: str) -> None:
        if code == "OOM":
            self.admin.config_set("maxmemory", 1)
        elif code == "NOREPLICAS":
            self.admin.config_set("min-replicas-to-write", 1)
        else:
            self.admin.replicaof("127.0.0.1", "1")

    def end(self) -> None:
        self.admin.config_set("maxmemory", 0)
        self.admin.config_set("min-replicas-to-write", 0)
        self.admin.replicaof("NO", "ONE")


@pytest.mark.parametrize("code", ["OOM", "NOREPLICAS", "READONLY"])
async def test_a_server_that_cannot_serve_is_waited_for(
    own_proxy: Proxy, admin: redis.Redis, namespace: str, code: str
) -> None:
    outage = Outage(admin)
    async with connected(own_proxy.url) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        outage.begin(code)
        own_proxy.requests.clear()
        futures = [log.append(i) for i in range(1, 30)]
        await wait_until(lambda: not connection.is_healthy)
        futures += [log.append(i) for i in range(30, 60)]
        await wait_until(lambda: b"".join(own_proxy.requests).count(b"*6\r\n") > 3 * 29)
        # tried some times with growing waits, not in a loop that heats the machine
        assert len(own_proxy.requests) < 100
        assert not any(future.done() for future in futures)
        outage.end()
        await asyncio.gather(*futures)
        assert await log.read() == list(range(60))
        assert connection.is_healthy


async def test_a_busy_server_is_waited_for(server: TemporaryServer, admin: redis.Redis, namespace: str) -> None:
    admin.config_set("busy-reply-threshold", 1)
    async with connected(server.url) as connection, connected(server.url) as hog:
        log = Log(connection, namespace)
        endless = hog.call(script("endless", "while true do end", 0), ())
        await wait_until(lambda: refuses(admin))
        waiting = log.append(1)
        await wait_until(lambda: not connection.is_healthy)
        admin.script_kill()
        assert await waiting == b"1"
        with pytest.raises(ServerRefused):
            await endless


def refuses(admin: redis.Redis) -> bool:
    try:
        admin.ping()
    except redis.ResponseError:
        return True
    return False


async def test_reads_go_on_while_writes_are_refused(
    server: TemporaryServer, admin: redis.Redis, namespace: str
) -> None:
    async with connected(server.url) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        admin.config_set("maxmemory", 1)
        refused = log.append(1)
        await wait_until(lambda: not connection.is_healthy)
        assert await log.read() == [0]
        admin.config_set("maxmemory", 0)
        await refused


# --- giving up


async def test_a_client_gives_up_and_is_told_why(proxy: Proxy, namespace: str) -> None:
    async with connected(proxy.url, give_up_after_s=0.3) as connection:
        log = Log(connection, namespace)
        await log.append(0)
        proxy.pause()
        with pytest.raises(StorageError, match=r"did not answer script append within 0\.3 s"):
            await log.append(1)
        proxy.resume()
        # the late reply of the call given up is not taken for another's
        assert [await log.append(i) for i in (2, 3)] == [b"2", b"3"]


async def test_a_client_gives_up_when_redis_is_away(proxy: Proxy, namespace: str) -> None:
    async with connected(proxy.url, give_up_after_s=0.3) as connection:
        log = Log(connection, namespace)
        proxy.stop_listening()
        proxy.cut()
        futures = [log.append(i) for i in range(10)]
        for error in await asyncio.gather(*futures, return_exceptions=True):
            assert isinstance(error, StorageError)
            assert proxy.url in str(error)
        await proxy.listen()
        await wait_until(lambda: connection.is_healthy)
        await log.append(10)
        assert await log.read() == [10]


async def test_a_client_gives_up_on_a_server_that_cannot_serve(
    server: TemporaryServer, admin: redis.Redis, namespace: str
) -> None:
    async with connected(server.url, give_up_after_s=0.3) as connection:
        log = Log(connection, namespace)
        admin.config_set("maxmemory", 1)
        with pytest.raises(StorageError, match="OOM"):
            await log.append(1)
        assert await log.read() == []
        admin.config_set("maxmemory", 0)
        await log.append(2)
        assert await log.read() == [2]


# --- closing


async def test_close_waits_for_what_was_asked_for(redis_url: str, namespace: str) -> None:
    async with connected(redis_url) as connection:
        log = Log(connection, namespace)
        futures = [log.append(i) for i in range(100)]
        await connection.close()
        assert all(future.done() and not future.exception() for future in futures)
        with pytest.raises(StorageError, match="is closed"):
            await log.append(100)


async def test_close_fails_what_cannot_be_answered(
    proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memable.connection, "CLOSE_S", 0.1)
    async with connected(proxy.url) as connection:
        log = Log(connection, namespace)
        proxy.pause()
        sent = log.append(0)
        await asyncio.sleep(0)
        await asyncio.gather(connection.close(), connection.close())
        with pytest.raises(StorageError, match="closed before Redis answered script append"):
            await sent


async def test_close_while_redis_is_away(proxy: Proxy, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memable.connection, "CLOSE_S", 0.1)
    async with connected(proxy.url) as connection:
        proxy.stop_listening()
        proxy.cut()
        await wait_until(lambda: not connection.is_healthy)
        waiting = Log(connection, namespace).append(0)
        await connection.close()
        with pytest.raises(StorageError, match="closed before"):
            await waiting


async def test_nothing_is_left_running(redis_url: str) -> None:
    before = asyncio.all_tasks()
    async with connected(redis_url) as connection:
        await connection.command("PING")
    assert asyncio.all_tasks() == before


# --- starting


async def started(url: str, give_up_after_s: float | None) -> None:
    connection = ScriptConnection(Endpoint.from_url(url), give_up_after_s=give_up_after_s)
    try:
        await connection.start()
    finally:
        await connection.close()


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
    for connection in (endpoint.connection(), endpoint.connection(blocking=True)):
        assert (connection.retry._retries, connection.protocol, connection.health_check_interval) == (0, 2, 0)
    assert endpoint.connection(blocking=True).socket_timeout is None
    async with connected(url) as batching:
        assert await batching.command("PING") == b"PONG"
    with_thread = endpoint.sync_client()
    assert await asyncio.to_thread(with_thread.ping)
    done = proxy.cut_next(Cut.REPLY)
    with pytest.raises(redis.ConnectionError):
        await asyncio.to_thread(with_thread.incr, "nothing")
    assert done.done()
    with_thread.close()


# --- reads that block


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
    async with asyncio.timeout(10):
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


async def test_a_stopped_server_counts_as_newly_connected(server: TemporaryServer) -> None:
    async with connected(server.url) as connection:
        first = connection.connected_at_s
        os.kill(server.pid, signal.SIGSTOP)
        answer = connection.command("PING")
        try:
            await asyncio.sleep(1.1)  # the silence itself is what is tested
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await answer
        assert (connection.connected_at_s or 0) > (first or math.inf)
