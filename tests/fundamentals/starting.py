"""How the lessons start an engine."""

from __future__ import annotations

from typing import Any, Protocol

from memable import App, Engine


class Start(Protocol):
    """`async with start(app) as engine`: an engine on the tests' server, in a namespace of the test's own."""

    def __call__(self, app: App, **settings: Any) -> Engine: ...
