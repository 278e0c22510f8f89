"""What the store makes of a connection that fails."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from memable.errors import StorageError
from memable.keys import Keys
from memable.store import Store, new_token


class Failing:
    def call(self, *_: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(StorageError("Redis is away"))
        return future

    def command(self, *_: Any) -> asyncio.Future[Any]:
        return self.call()


async def test_a_batch_that_fails_says_so_once() -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    keys = Keys("ns", partitions=1)
    connection: Any = Failing()
    with pytest.raises(StorageError, match="Redis is away"):
        await Store(connection, keys).invoke_many([(keys.of("order", str(n)), new_token(), b"1") for n in range(20)])
    gc.collect()
    await asyncio.sleep(0)
    assert told == []
