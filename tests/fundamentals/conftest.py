"""What the lessons share. Read them in the order of their numbers: each uses only what those before it have shown."""

from __future__ import annotations

from typing import Any

import pytest

from memable import App, Engine, Settings
from tests.fundamentals.starting import Start


@pytest.fixture
def start(redis_url: str, namespace: str) -> Start:
    """Starts an engine like `Engine(app)`, but on a server that the tests share, which is quicker.

    Two engines that a test starts see the same instances, like two worker processes of one deployment.
    """

    def start(app: App, **settings: Any) -> Engine:
        return Engine(app, url=redis_url, settings=Settings(namespace=namespace, **settings))

    return start
