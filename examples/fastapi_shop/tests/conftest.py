"""The shop without a network: its routes, and its workflows on a private server."""

from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import pytest

from fastapi_shop import web, workflows
from memable.testing import TestEngine

SECRET = "a secret"


@pytest.fixture
async def engine() -> AsyncIterator[TestEngine]:
    """A client and a worker: what the web application and `memable worker` are together."""
    async with TestEngine(workflows.app) as engine:
        yield engine


@pytest.fixture
async def shop(engine: TestEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[httpx.AsyncClient]:
    """Calls the routes."""
    monkeypatch.setitem(web.app.dependency_overrides, web.get_client, lambda: engine)
    monkeypatch.setitem(web.app.dependency_overrides, web.get_settings, lambda: web.Settings(webhook_secret=SECRET))
    transport = httpx.ASGITransport(web.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client
