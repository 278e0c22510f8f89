"""`ctx.logger`: names the instance, and is silent while replaying."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Protocol

_log = logging.getLogger("memable.workflow")


class LoggedRun(Protocol):
    """What the logger needs of its run."""

    name: str
    workflow_name: str
    instance_id: str

    @property
    def is_replaying(self) -> bool: ...


class ReplayAwareLogger(logging.LoggerAdapter[logging.Logger]):
    """Names the instance, and is silent while replaying."""

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(_log, {"workflow": run.workflow_name, "instance_id": run.instance_id})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:
        return not self._run.is_replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"[{self._run.name}] {msg}", kwargs
