"""A stage for every test of a script, in order when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from memable.connection import Endpoint, ScriptConnection
from memable.keys import Keys
from tests.lua.stage import Stage, Wiretap


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[ScriptConnection]:
    connection = ScriptConnection(Endpoint.from_url(redis_url), give_up_after_s=20)
    await connection.start()
    yield connection
    await connection.close()


@pytest.fixture
async def stage(connection: ScriptConnection, redis_url: str, namespace: str) -> AsyncIterator[Stage]:
    stage = Stage(Wiretap(connection), Keys(namespace, partitions=1), Endpoint.from_url(redis_url))
    yield stage
    await stage.check()
