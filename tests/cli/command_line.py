"""What the tests of the `memable` command share: what it printed, and worker processes of `tests.apps.shop`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.worker_process import WorkerProcess

APP = "tests.apps.shop:app"
INSTANCE_FIELDS = {
    "workflow", "instance_id", "status", "state", "created_at", "started_at", "completed_at", "attempt", "worker",
    "error", "waiting_on", "labels", "parent",
}  # fmt: skip
STEP_FIELDS = {
    "key", "kind", "state", "result", "error", "attempts", "started_at", "completed_at", "duration_s", "children",
}  # fmt: skip


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document that was printed."""
        assert self.err == ""
        return json.loads(self.out)

    def is_refused(self, *texts: str) -> None:
        """One clear line on stderr, nothing on stdout, exit code 2."""
        assert self.code == 2, self
        assert self.out == ""
        assert len(self.err.splitlines()) == 1, self.err
        assert self.err.startswith("memable: ")
        for text in texts:
            assert text in self.err


Cli = Callable[..., Ran]
AsyncCli = Callable[..., Awaitable[Ran]]


def memable_worker(directory: Path, url: str, namespace: str, *options: str) -> WorkerProcess:
    return WorkerProcess(
        directory, url, "-m", "memable", "worker", APP, *options, MEMABLE_NAMESPACE=namespace, MEMABLE_LEASE="1"
    )
