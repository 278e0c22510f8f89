"""What every test has: a real server of its own process, and a namespace of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from memable.connection import Endpoint, ScriptConnection
from memable.embedded import TemporaryServer, stop_server
from memable.keys import Keys
from tests.lua import invariants
from tests.proxy import Proxy
from tests.worker_process import Started, WorkerProcess


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "disorderly: breaks its namespace on purpose, which is not checked then")
    config.addinivalue_line("markers", "spec(statement, ...): shows these statements of tests/spec.toml")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server shared by the tests of this pytest process: MEMABLE_TEST_REDIS_URL, else a temporary one."""
    if given := os.environ.get("MEMABLE_TEST_REDIS_URL"):
        yield given
        return
    with TemporaryServer() as server:
        yield server.url


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses, nor this one the next time."""
    return f"test-{uuid4().hex}"


@pytest.fixture
def server() -> Iterator[TemporaryServer]:
    """A server for this test alone, to kill and restart: what it has acknowledged it keeps."""
    with TemporaryServer(appendonly=True) as server:
        yield server


@pytest.fixture
def admin(server: TemporaryServer) -> Iterator[redis.Redis]:
    """The test's own hand on its server."""
    with Endpoint.from_url(server.url).sync_client() as client:
        yield client


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
def worker(server: TemporaryServer, tmp_path: Path) -> Started:
    """Makes worker processes of `tests.apps.hosted`, on the test's own server; what they tell is in `tmp_path`."""

    def make(*command: str, **environment: str) -> WorkerProcess:
        return WorkerProcess(tmp_path, server.url, *command, **environment)

    return make


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory to be, whose embedded server, which outlives its starter, is stopped at the end."""
    directory = tmp_path / "data"
    yield directory
    stop_server(directory)


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that had a namespace, it is in order, and all that is left in it has an end or is permanent."""
    if not {"redis_url", "namespace"} <= set(request.fixturenames) or request.node.get_closest_marker("disorderly"):
        yield
        return
    # asked for here, so that they outlast whatever else the test uses
    url, namespace = request.getfixturevalue("redis_url"), request.getfixturevalue("namespace")
    yield
    # a loop of our own, which pytest-asyncio does not see. No Runner: it asks for the handler of SIGINT, and after a
    # test that was cut off by its timeout, Python makes a text of that, with all tasks of the test: gigabytes
    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(_check_left(url, namespace))


async def _check_left(url: str, namespace: str) -> None:
    connection = ScriptConnection(Endpoint.from_url(url), give_up_after_s=20)
    await connection.start()
    try:
        partitions = await connection.command("HGET", Keys.meta(namespace), "partitions")
        if partitions is not None:
            keys = Keys(namespace, partitions=int(partitions))
            scene = await invariants.check(connection, keys)
            # what no script writes and no retention ends
            leaders = {partition.leader for partition in keys.partitions} & scene.strings.keys()
            assert leaders <= scene.expires_ms.keys(), "a leader would lead for ever"
    finally:
        await connection.close()
