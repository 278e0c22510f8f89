"""Servers and connections for the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from memable.connection import Endpoint
from memable.embedded import TemporaryServer
from tests.proxy import Proxy


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
