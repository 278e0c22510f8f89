"""What a caller of the batching connection can rely on, whatever happens to the connection and to the server."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from enum import IntEnum
from typing import Any

import pytest
import redis

import memable.connection
from memable.connection import ScriptConnection, ServerRefused
from memable.embedded import TemporaryServer
from memable.errors import StorageError
from tests.integration.connecting import ECHO, connected, refuses, script, wait_until
from tests.proxy import Cut, Proxy

# May be carried out twice, and shows in which order the first times were
APPEND = script(
    "append",
    "if redis.call('SADD', KEYS[2], ARGV[1]) == 1 then redis.call('RPUSH', KEYS[1], ARGV[1]) end return ARGV[1]",
    2,
)


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


async def test_no_call_is_forgotten_when_a_refusal_drops_the_connection(
    server: TemporaryServer, admin: redis.Redis, namespace: str
) -> None:
    async with connected(server.url) as connection:
        await connection.call(ECHO, ("known",))
        Outage(admin).begin("READONLY")
        calls = [
            connection.command("SCRIPT", "FLUSH"),
            connection.call(ECHO, ("forgotten script",)),
            connection.command("SET", namespace, "refused"),
            connection.command("ECHO", "answered"),
        ]
        await wait_until(lambda: not connection.is_healthy)
        Outage(admin).end()
        assert await asyncio.gather(*calls) == [b"OK", [b"forgotten script"], b"OK", b"answered"]


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
