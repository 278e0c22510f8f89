"""What an instance, a step and a listing look like from outside: enums and frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Self


class Status(StrEnum):
    """Where an instance is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the instance is over: completed, failed or cancelled."""
        return self in _TERMINAL

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing happens until somebody acts: terminal, or suspended."""
        return self in _TERMINAL or self is Status.SUSPENDED


_TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """The state of an instance at one moment; `str()` is the line that people read."""

    status: Status
    message: str | None = None
    key: str | None = None
    """The first point waited for, while suspended."""

    @classmethod
    def of(cls, status: Status, message: str | None, waiting: str | None = None) -> Self:
        """From an instance's fields; `waiting` has the keys of open points, one a line. An empty one is none."""
        key = waiting.split("\n")[0] if waiting and status is Status.SUSPENDED else None
        return cls(status, message or None, key)

    @property
    def is_terminal(self) -> bool:
        """Whether the instance is over: completed, failed or cancelled."""
        return self.status.is_terminal

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing happens until somebody acts: terminal, or suspended."""
        return self.status.is_at_rest

    def __str__(self) -> str:
        message = self.message
        if message is None and self.status is Status.SUSPENDED:
            message = self.key
        if not message:
            return str(self.status)
        return f"{'in progress' if self.status is Status.RUNNING else self.status}: {message}"


@dataclass(frozen=True, slots=True)
class WorkflowMetadata:
    """What is known of an instance; times are aware and in UTC, by Redis's clock."""

    workflow: str
    instance_id: str
    status: Status
    state: WorkflowState
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    attempt: int
    """How many runs have been started."""
    worker: str | None
    """Who runs it now."""
    error: str | None
    parent: str | None = None
    """Of a child, the instance that has started it: `WORKFLOW/ID`."""
    waiting_on: list[str] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing, newest first; pass `cursor` to get the next, `None` means that there is none."""

    items: list[WorkflowMetadata]
    cursor: str | None


class StepKind(StrEnum):
    """Which durable call a record belongs to."""

    STEP = "step"
    SIGNAL = "signal"
    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    CHOICE = "choice"


STEP: Final = StepKind.STEP
"""The kind that is asked for with each step: an enum's member takes as long to find as a function to call."""


class StepState(StrEnum):
    """How far a durable call has come."""

    COMPLETED = "completed"
    FAILED = "failed"
    SUSPENDED = "suspended"
    RETRYING = "retrying"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One record of an instance's journal, as `client.steps` shows it."""

    key: str
    kind: StepKind
    state: StepState
    result: Any
    """The plain JSON value that was recorded."""
    error: str | None
    attempts: int
    started_at: datetime | None
    completed_at: datetime | None
