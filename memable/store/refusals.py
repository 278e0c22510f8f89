"""What the answers of scripts mean that refuse."""

from __future__ import annotations

from memable.errors import (
    BUFFERED,
    InputConflict,
    InstanceNotFound,
    SignalRejected,
    SignalSuperseded,
    StorageError,
    TypeMismatch,
)
from memable.holding import HistoryLost, LeaseLost
from memable.keys import InstanceKeys
from memable.lua import Answer


def text(value: bytes | str | None) -> str:
    return "" if value is None else value.decode() if isinstance(value, bytes) else value


def refuse(
    answer: int, keys: InstanceKeys, key: str = "", detail: str = "", found: str = "", what: str = "signal"
) -> Exception:
    """The exception that an answer stands for."""
    workflow, instance_id = keys.workflow, keys.instance_id
    match answer:
        case Answer.LEASE_LOST | Answer.STALE:
            return LeaseLost(keys.name)
        case Answer.FORGOTTEN:
            return HistoryLost(keys.name)
        case Answer.CONFLICT if not key:
            return InputConflict(workflow, instance_id)
        case Answer.UNKNOWN if not key:
            return InstanceNotFound(workflow, instance_id)
        case Answer.UNKNOWN | Answer.TERMINAL | Answer.NOT_REACHED | Answer.CONFLICT:
            return SignalRejected(workflow, instance_id, key, _reason(answer, detail), what=what)
        case Answer.SUPERSEDED:
            return SignalSuperseded(workflow, instance_id, key, is_kept=detail == "kept")
        case Answer.MISMATCH:
            return TypeMismatch(f"signal {key!r} to {keys.name}", expected=detail, found=found)
        case _:
            return StorageError(f"a script gave an answer that has no meaning for {keys.name}: {answer}")


def _reason(answer: int, detail: str) -> str:
    """Why a signal or a message is rejected."""
    match answer:
        case Answer.UNKNOWN:
            return "there is no such instance"
        case Answer.TERMINAL:
            return f"the instance is {detail}"
        case Answer.NOT_REACHED:
            return f"the instance does not wait at this point ({BUFFERED} the signal is kept until it does)"
        case _ if detail:
            return f"this key waits for a {detail}, not for a signal"
        case _:
            return "this key is a step, not a point to wait at"
