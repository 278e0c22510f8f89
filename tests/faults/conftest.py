"""What the tests of faults share: the client of an application that real worker processes run."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

import memable
from memable import Client
from memable.embedded import TemporaryServer
from tests.apps import hosted


@pytest.fixture
async def client(server: TemporaryServer) -> AsyncGenerator[Client]:
    async with await memable.connect(server.url, app=hosted.app) as client:
        yield client
