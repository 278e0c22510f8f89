"""The arq worker process that this repository deploys, with two workflows to run and to copy from.

`arq worker.WorkerSettings` or `python -m worker` starts it; `worker.app:app` is the application for `memable worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    WorkerSettings: type[Any]


def __getattr__(name: str) -> Any:
    """`WorkerSettings`, made when arq asks for it: who imports a workflow from here to invoke it needs no arq."""
    if name != "WorkerSettings":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memable import worker_settings
    from worker.app import app

    # kept, so that everybody who asks gets the same class
    globals()[name] = worker_settings(app)
    return globals()[name]
