"""What the tests of the connections share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha1

import redis

from memable.connection import Endpoint, Script, ScriptConnection
from tests.worker_process import TOO_LONG_S


def script(name: str, source: str, key_count: int) -> Script:
    return Script(name, source, sha1(source.encode()).hexdigest(), key_count)


ECHO = script("echo", "return ARGV", 0)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TOO_LONG_S):
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


def refuses(admin: redis.Redis) -> bool:
    try:
        admin.ping()
    except redis.ResponseError:
        return True
    return False
