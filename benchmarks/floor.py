"""The floor: what an instance costs when nothing is done but its script calls.

`invoke` makes instances, `work` claims, records and finishes them, each over one connection that gathers the calls of
one loop turn. No retries, no types, no logging, no index by status, no recovery: no worker on redis-py can be much
faster, so memable is compared with this, in the same run and on the same server. With `--listed` it also does what
everything else needs of Redis: a listing by status, an event for each state, and an end to what has ended.

    python benchmarks/floor.py invoke --url redis://localhost:6379/15 --instances 10000
    python benchmarks/floor.py work --url redis://localhost:6379/15 --instances 10000 --steps 1
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Self
from urllib.parse import urlsplit

import hiredis
import orjson
import redis.asyncio as redis
import uvloop

SCRIPTS = {
    "invoke": """
        if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
        local entry = redis.call('XADD', KEYS[2], '*', 'i', ARGV[1])
        redis.call('HSET', KEYS[1], 'status', 'queued', 'lease', '0', 'input', ARGV[2], 'entry', entry)
        redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
        return 1""",
    "claim": """
        local known = redis.call('HMGET', KEYS[1], 'entry', 'status', 'input')
        if known[1] ~= ARGV[1] then return false end
        local lease = redis.call('HINCRBY', KEYS[1], 'lease', 1)
        redis.call('HSET', KEYS[1], 'status', 'running', 'worker', ARGV[2])
        return {lease, known[3], redis.call('HGETALL', KEYS[2])}""",
    "record": """
        if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then return 0 end
        redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
        return 1""",
    "finish": """
        if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then return 0 end
        redis.call('HSET', KEYS[1], 'status', 'completed', 'output', ARGV[4])
        redis.call('XACK', KEYS[2], ARGV[3], ARGV[2])
        redis.call('XDEL', KEYS[2], ARGV[2])
        redis.call('PUBLISH', ARGV[5], 'completed')
        return 1""",
}
LISTED = {
    **SCRIPTS,
    "claim": """
        local known = redis.call('HMGET', KEYS[1], 'entry', 'status', 'input')
        if known[1] ~= ARGV[1] then return false end
        local lease = redis.call('HINCRBY', KEYS[1], 'lease', 1)
        redis.call('HSET', KEYS[1], 'status', 'running', 'worker', ARGV[2])
        redis.call('ZREM', KEYS[3], ARGV[3])
        redis.call('ZADD', KEYS[4], ARGV[4], ARGV[3])
        redis.call('PUBLISH', ARGV[5], 'running')
        return {lease, known[3], redis.call('HGETALL', KEYS[2])}""",
    "finish": """
        if redis.call('HGET', KEYS[1], 'lease') ~= ARGV[1] then return 0 end
        redis.call('HSET', KEYS[1], 'status', 'completed', 'output', ARGV[4])
        redis.call('XACK', KEYS[2], ARGV[3], ARGV[2])
        redis.call('XDEL', KEYS[2], ARGV[2])
        redis.call('ZREM', KEYS[4], ARGV[6])
        redis.call('ZADD', KEYS[5], ARGV[7], ARGV[6])
        redis.call('ZADD', KEYS[6], ARGV[8], ARGV[6])
        redis.call('PEXPIREAT', KEYS[1], ARGV[8])
        redis.call('PEXPIREAT', KEYS[3], ARGV[8])
        redis.call('PUBLISH', ARGV[5], 'completed')
        return 1""",
}
"""Scripts that also keep a listing by status, tell each state, and let go of what has ended."""
TAG = "floor:{0}:"
STREAM, INDEX, GROUP, WORKER = TAG + "stream", TAG + "index", "workers", "w1"
RUNNING, COMPLETED, EXPIRY = TAG + "running", TAG + "completed", TAG + "expiry"
KEPT_MS = 7 * 24 * 3600 * 1000
BATCH = 500
SLOTS = 100


class Line:
    """One connection; the calls of one loop turn leave in one write."""

    def __init__(self, url: str, scripts: dict[str, str]) -> None:
        self.client = redis.Redis.from_url(url)
        self._scripts = scripts
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._wake = asyncio.Event()
        self._shas: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for name, source in self._scripts.items():
            self._shas[name] = await self.client.script_load(source)
        self._connection = self.client.connection_pool.make_connection()
        await self._connection.connect()
        self._pumping = asyncio.create_task(self._pump())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pumping.cancel()
        await self._connection.disconnect()
        await self.client.aclose()

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            packed = self._connection.pack_commands([call for call, _ in batch])
            await self._connection.send_packed_command(packed, check_health=False)
            for _, future in batch:
                reply = await self._connection.read_response(disable_decoding=True)
                if not future.done():
                    future.set_result(reply)

    def call(self, script: str, key_count: int, *arguments: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._waiting.append((("EVALSHA", self._shas[script], key_count, *arguments), future))
        self._wake.set()
        return future


class Bare(asyncio.Protocol):
    """One socket and hiredis, nothing else: replies come in order, and an error is a reply. For one round trip's cost.

    The calls of one loop turn leave in one write.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []

    @classmethod
    async def connect(cls, url: str) -> Self:
        address = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, bare = await loop.create_connection(cls, address.hostname or "localhost", address.port or 6379)
        return bare

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        while (reply := self._parser.gets()) is not False:
            self._waiting.popleft().set_result(reply)

    def call(self, *words: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(future)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(words))
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def close(self) -> None:
        self._transport.close()


async def invoke(url: str, instances: int) -> dict[str, float]:
    async with Line(url, SCRIPTS) as line:
        await line.client.xgroup_create(STREAM, GROUP, "0", mkstream=True)
        payload = orjson.dumps({"order": 1, "items": [1, 2, 3]})
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        for first in range(0, instances, BATCH):
            names = range(first, min(instances, first + BATCH))
            calls = [line.call("invoke", 3, f"{TAG}instance:{i}", STREAM, INDEX, i, payload, first) for i in names]
            await asyncio.gather(*calls)
        return {"elapsed_s": time.perf_counter() - begin_s, "cpu_s": time.process_time() - begin_cpu_s}


def _claim(line: Line, name: str, entry: bytes) -> asyncio.Future[Any]:
    return line.call("claim", 2, f"{TAG}instance:{name}", f"{TAG}steps:{name}", entry, WORKER)


def _claim_listed(line: Line, name: str, entry: bytes) -> asyncio.Future[Any]:
    keys = f"{TAG}instance:{name}", f"{TAG}steps:{name}", INDEX, RUNNING
    return line.call("claim", 4, *keys, entry, WORKER, name, name, f"{TAG}events:{name}")


def _finish(line: Line, name: str, lease: int, entry: bytes) -> asyncio.Future[Any]:
    output, events = orjson.dumps({"ok": 1}), f"{TAG}events:{name}"
    return line.call("finish", 2, f"{TAG}instance:{name}", STREAM, lease, entry, GROUP, output, events)


def _finish_listed(line: Line, name: str, lease: int, entry: bytes) -> asyncio.Future[Any]:
    output, events = orjson.dumps({"ok": 1}), f"{TAG}events:{name}"
    keys = f"{TAG}instance:{name}", STREAM, f"{TAG}steps:{name}", RUNNING, COMPLETED, EXPIRY
    expires_ms = _now_ms() + KEPT_MS
    return line.call("finish", 6, *keys, lease, entry, GROUP, output, events, name, name, expires_ms)


async def work(url: str, instances: int, steps: int, is_listed: bool) -> dict[str, float]:
    async with Line(url, LISTED if is_listed else SCRIPTS) as line:
        claim, finish = (_claim_listed, _finish_listed) if is_listed else (_claim, _finish)
        free, all_done = asyncio.Semaphore(SLOTS), asyncio.Event()
        left = instances

        async def nothing() -> dict[str, int]:
            return {"a": 1}

        async def run(entry: bytes, name: str) -> None:
            nonlocal left
            instance, records = f"{TAG}instance:{name}", f"{TAG}steps:{name}"
            lease, _, found = await claim(line, name, entry)
            journal = dict(zip(found[::2], found[1::2], strict=True))
            for number in range(steps):
                key = b"s%d" % number
                if key not in journal:
                    record = {"state": "completed", "type": "dict", "result": await nothing(), "at": _now_ms()}
                    await line.call("record", 2, instance, records, lease, key, orjson.dumps(record))
            await finish(line, name, lease, entry)
            free.release()
            left -= 1
            if not left:
                all_done.set()

        async def feed() -> None:
            running = set[asyncio.Task[None]]()
            while True:
                await free.acquire()
                count = 1
                while count < SLOTS and not free.locked():
                    await free.acquire()
                    count += 1
                reply = await line.client.xreadgroup(GROUP, WORKER, {STREAM: ">"}, count=count, block=1000)
                entries = reply[0][1] if reply else []
                for entry, fields in entries:
                    task = asyncio.create_task(run(entry, fields[b"i"].decode()))
                    running.add(task)
                    task.add_done_callback(running.discard)
                for _ in range(count - len(entries)):
                    free.release()

        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        feeding = asyncio.create_task(feed())
        await all_done.wait()
        measured = {"elapsed_s": time.perf_counter() - begin_s, "cpu_s": time.process_time() - begin_cpu_s}
        feeding.cancel()
        return measured


def _now_ms() -> int:
    return int(time.time() * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("role", choices=["invoke", "work"])
    parser.add_argument("--url", required=True, help="a database that may be filled with what this leaves behind")
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--listed", action="store_true", help="keep a listing, tell each state, let ends expire")
    given = parser.parse_args()
    role: Coroutine[Any, Any, dict[str, float]]
    if given.role == "invoke":
        role = invoke(given.url, given.instances)
    else:
        role = work(given.url, given.instances, given.steps, given.listed)
    print(json.dumps(uvloop.run(role)))


if __name__ == "__main__":
    main()
