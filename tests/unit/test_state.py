"""The lines that people read: states, and the texts of errors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import memable.errors
from memable.errors import (
    DuplicateStep,
    InputConflict,
    InputMissing,
    InstanceBusy,
    InstanceNotFound,
    InvalidKey,
    MemableError,
    PayloadTooLarge,
    RetriesExhausted,
    SignalRejected,
    SignalSuperseded,
    StepFailed,
    StepTimeout,
    TypeMismatch,
    WorkflowCancelled,
    WorkflowFailed,
    WorkflowNotFound,
)
from memable.state import Page, Status, StepKind, StepState, WorkflowMetadata, WorkflowState


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (WorkflowState(Status.QUEUED), "queued"),
        (WorkflowState(Status.QUEUED, "retrying a (3 of 5) at 12:00:05"), "queued: retrying a (3 of 5) at 12:00:05"),
        (WorkflowState(Status.RUNNING), "running"),
        (WorkflowState(Status.RUNNING, "packing"), "in progress: packing"),
        (WorkflowState(Status.SUSPENDED, key="approval:v1"), "suspended: approval:v1"),
        (WorkflowState(Status.SUSPENDED, "Waiting", "approval:v1"), "suspended: Waiting"),
        (WorkflowState(Status.COMPLETED), "completed"),
        (WorkflowState(Status.COMPLETED, "shipped"), "completed: shipped"),
        (WorkflowState(Status.FAILED, "ValueError: no"), "failed: ValueError: no"),
        (WorkflowState(Status.CANCELLED), "cancelled"),
        (WorkflowState(Status.CANCELLED, "too late"), "cancelled: too late"),
    ],
)  # fmt: skip
@pytest.mark.spec("state-queued", "state-running", "state-suspended", "state-ended")
def test_a_state_reads_as_one_line(state: WorkflowState, text: str) -> None:
    assert str(state) == text
    assert f"{state}" == text


@pytest.mark.spec("state")
def test_terminal_is_over_and_at_rest_waits_for_somebody() -> None:
    terminal = {Status.COMPLETED, Status.FAILED, Status.CANCELLED}
    for status in Status:
        state = WorkflowState(status)
        assert state.is_terminal is status.is_terminal is (status in terminal)
        assert state.is_at_rest is status.is_at_rest is (status in terminal | {Status.SUSPENDED})


@pytest.mark.spec("status", "step-kinds-and-states")
def test_the_enums_are_their_words() -> None:
    assert [str(each) for each in Status] == ["queued", "running", "suspended", "completed", "failed", "cancelled"]
    assert [str(each) for each in StepKind] == ["step", "signal", "timer", "message", "child", "choice"]
    assert [str(each) for each in StepState] == ["completed", "failed", "suspended", "retrying"]


@pytest.mark.spec("state")
def test_records_are_frozen_and_share_nothing() -> None:
    now, state = datetime.now(UTC), WorkflowState(Status.QUEUED)
    first, second = (
        WorkflowMetadata("w", "1", Status.QUEUED, state, now, None, None, attempt=0, worker=None, error=None)
        for _ in range(2)
    )
    first.waiting_on.append("a")
    assert second.waiting_on == []
    with pytest.raises(AttributeError):
        state.status = Status.RUNNING  # type: ignore[misc]
    assert Page([second], None).items == [second]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (WorkflowNotFound("order", "shop"), ["'order'", "'shop'", "not known"]),
        (InstanceNotFound("order", "42"), ["order/42", "no instance"]),
        (InstanceBusy("order", "42", "running"), ["order/42", "running"]),
        (InvalidKey("workflow name", "a/b"), ["workflow name", "'a/b'"]),
        (InputConflict("order", "42"), ["order/42", "another input"]),
        (InputMissing("order"), ["'order'", "input"]),
        (DuplicateStep("step 'a' of order/42", "a"), ["step 'a' of order/42"]),
        (TypeMismatch("the payload", expected="int", found="str"), ["type mismatch", "expected int", "found str"]),
        (PayloadTooLarge("the result", size_bytes=11, limit_bytes=10), ["11 bytes", "10", "MEMABLE_MAX_PAYLOAD"]),
        (SignalRejected("order", "42", "ok", "it is completed"), ["'ok'", "order/42", "it is completed"]),
        (SignalSuperseded("order", "42", "ok"), ["'ok'", "order/42", "superseded"]),
        (
            WorkflowFailed("order", "42", error_type="ValueError", error_message="no", failed_step=None),
            ["order/42", "ValueError: no"],
        ),
        (WorkflowCancelled("order", "42", "too late"), ["order/42", "too late"]),
        (WorkflowCancelled("order", "42", None), ["order/42", "cancelled"]),
    ],
)  # fmt: skip
def test_an_error_names_what_it_is_about(error: MemableError, words: list[str]) -> None:
    for word in words:
        assert word in str(error)


FIELDS: dict[str, Any] = {"key": "charge:v1", "attempts": 3, "error_type": "ValueError", "error_message": "no card"}


@pytest.mark.parametrize(
    ("kind", "words"), [(StepFailed, "failed on call 3"), (RetriesExhausted, "3 attempts"), (StepTimeout, "timed out")]
)
@pytest.mark.spec("step-failed", "errors-words")
def test_a_steps_failure_has_all_its_fields_in_its_text(kind: type[StepFailed], words: str) -> None:
    error = kind("step 'charge:v1' of order/42", **FIELDS)
    assert {name: getattr(error, name) for name in FIELDS} == FIELDS
    for part in ("charge:v1", "order/42", "ValueError", "no card", "3", words):
        assert part in str(error)
    assert ("attempts" in str(error)) is (kind is RetriesExhausted)


@pytest.mark.spec("errors")
def test_every_error_derives_from_the_base_and_is_in_the_tree_at_the_top() -> None:
    tree = memable.errors.__doc__ or ""
    for name, each in vars(memable.errors).items():
        if isinstance(each, type) and each.__module__ == memable.errors.__name__:
            assert issubclass(each, MemableError), name
            assert name in tree
