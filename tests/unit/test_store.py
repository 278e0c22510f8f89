"""What the store makes of a connection that fails; the tokens that it hands out."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

import pytest

from memable.errors import StorageError
from memable.keys import Keys, check_key
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


def test_tokens_are_short_never_the_same_and_no_option_of_a_command_line() -> None:
    tokens = [new_token() for _ in range(10_000)]
    assert len(set(tokens)) == len(tokens)
    for token in tokens:
        assert re.fullmatch("[A-Za-z0-9]{16}", token)
        assert check_key("id", token) == token
