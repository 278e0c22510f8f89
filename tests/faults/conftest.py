"""What the tests of faults share: the client of an application that real worker processes run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import memable
from memable import Client
from memable.connection import Endpoint
from memable.embedded import TemporaryServer
from memable.keys import Keys
from tests.apps import hosted, labour
from tests.faults.crew import Crew
from tests.integration.connecting import connected
from tests.lua.stage import Stage, Wiretap


@pytest.fixture
async def client(server: TemporaryServer) -> AsyncGenerator[Client]:
    async with await memable.connect(server.url, app=hosted.app) as client:
        yield client


@pytest.fixture
async def crew(redis_url: str, namespace: str, tmp_path: Path) -> AsyncGenerator[Crew]:
    """Workers of this test's own namespace, to start, and what they tell."""
    async with Client(redis_url, app=labour.app, namespace=namespace) as client, connected(redis_url) as connection:
        yield Crew(tmp_path, redis_url, namespace, client=client, connection=connection)


@pytest.fixture
async def stage(server: TemporaryServer) -> AsyncGenerator[Stage]:
    """What the workers of `worker` and the client of `client` see, to be played in by hand."""
    async with connected(server.url) as connection:
        yield Stage(Wiretap(connection), Keys("memable", partitions=1), Endpoint.from_url(server.url))


@pytest.fixture
async def own_stage(redis_url: str, namespace: str) -> AsyncGenerator[Stage]:
    """This test's own namespace, played by hand, and in order when the test is over."""
    async with connected(redis_url, give_up_after_s=20) as connection:
        stage = Stage(Wiretap(connection), Keys(namespace, partitions=1), Endpoint.from_url(redis_url))
        yield stage
        await stage.check()
