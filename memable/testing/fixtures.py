"""A pytest fixture, for a `conftest.py`: `from memable.testing.fixtures import memable_engine`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from memable.testing.engine import TestEngine
from memable.workflow import App

StartEngine = Callable[..., AbstractAsyncContextManager[TestEngine]]


@pytest.fixture
def memable_engine() -> StartEngine:
    """Starts a `TestEngine` with a server of its own: `async with memable_engine(app, overrides={…}) as engine`."""

    @asynccontextmanager
    async def start(
        app: App, *, overrides: Mapping[str, Callable[..., Any]] | None = None
    ) -> AsyncIterator[TestEngine]:
        async with TestEngine(app, overrides=overrides) as engine:
            yield engine

    return start
