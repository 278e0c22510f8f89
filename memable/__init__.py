"""Durable execution for Python on Redis: ordinary async functions that outlive their process.

Importing memable loads what authors declare; what talks to Redis or runs workflows is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from memable.context import Context
from memable.current_step import CurrentStep, current_step
from memable.errors import (
    ChildFailed,
    DuplicateStep,
    InputConflict,
    InputMissing,
    InstanceBusy,
    InstanceNotFound,
    InvalidCursor,
    InvalidKey,
    InvalidLabel,
    MemableError,
    NotStarted,
    PayloadTooLarge,
    PermanentError,
    RecordNotFound,
    RetriesExhausted,
    RetryableError,
    SerializationError,
    SettingsError,
    SignalRejected,
    SignalSuperseded,
    StepConflict,
    StepFailed,
    StepTimeout,
    StorageError,
    SuspendTimeout,
    TooManyRecords,
    TypeMismatch,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowNotFound,
)
from memable.retry import RetryPolicy
from memable.state import Page, Status, StepKind, StepRecord, StepState, WorkflowMetadata, WorkflowState
from memable.workflow import App, SuspendPoint, Workflow

if TYPE_CHECKING:
    from memable.client import Client, connect
    from memable.engine import Engine
    from memable.invocation import Invocation
    from memable.runtime.arq_host import worker_settings
    from memable.settings import Settings, load_settings

_LAZY: Final = {
    "Client": "memable.client",
    "Engine": "memable.engine",
    "Invocation": "memable.invocation",
    "Settings": "memable.settings",
    "connect": "memable.client",
    "load_settings": "memable.settings",
    "worker_settings": "memable.runtime.arq_host",
}

__all__ = [
    "App",
    "ChildFailed",
    "Client",
    "Context",
    "CurrentStep",
    "DuplicateStep",
    "Engine",
    "InputConflict",
    "InputMissing",
    "InstanceBusy",
    "InstanceNotFound",
    "InvalidCursor",
    "InvalidKey",
    "InvalidLabel",
    "Invocation",
    "MemableError",
    "NotStarted",
    "Page",
    "PayloadTooLarge",
    "PermanentError",
    "RecordNotFound",
    "RetriesExhausted",
    "RetryPolicy",
    "RetryableError",
    "SerializationError",
    "Settings",
    "SettingsError",
    "SignalRejected",
    "SignalSuperseded",
    "Status",
    "StepConflict",
    "StepFailed",
    "StepKind",
    "StepRecord",
    "StepState",
    "StepTimeout",
    "StorageError",
    "SuspendPoint",
    "SuspendTimeout",
    "TooManyRecords",
    "TypeMismatch",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowMetadata",
    "WorkflowNotFound",
    "WorkflowState",
    "connect",
    "current_step",
    "load_settings",
    "worker_settings",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        from memable.extras import what_to_install

        if (line := what_to_install(error)) is None:
            raise
        raise ModuleNotFoundError(f"memable.{name}: {line}", name=error.name) from None
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
