"""Every error that memable raises, and its text.

MemableError
├── NotStarted                the engine or client is not running
├── WorkflowNotFound          nobody has announced this workflow
├── InstanceNotFound          no such instance
├── InstanceBusy              the instance is not at rest, or has not ended
├── RecordNotFound            the instance has no record under this key
├── InvalidKey                a name, key or id that cannot be one
├── InvalidLabel              a label that cannot be one
├── InputConflict             the id is taken by an instance with another input
├── InputMissing              the workflow takes an input and got none
├── SerializationError        a value that has no exact JSON form
├── TypeMismatch              a value of another type than declared
├── PayloadTooLarge           a value over the limit
├── InvalidCursor             a cursor that no page gave
├── SettingsError             a setting that is not allowed
├── StorageError              Redis cannot be reached, or refuses
├── StepFailed                a step's recorded failure
│   ├── RetriesExhausted      … after all its retries
│   └── StepTimeout           … because one attempt took too long
├── ChildFailed               a child instance failed
├── DuplicateStep             a key used twice in one run
├── StepConflict              a key used for two different kinds of call
├── TooManyRecords            an instance with more durable calls than allowed
├── SignalRejected            nobody waits for this signal, or will receive this message
├── SignalSuperseded          another signal (or the timer) was first
├── SuspendTimeout            a wait that reached its timeout
├── WorkflowFailed            the instance failed
├── WorkflowCancelled         the instance was cancelled
├── RetryableError            for authors: try again
└── PermanentError            for authors: never try again

Messages name the workflow, the instance and the key concerned, and are written here only. Where one ends with advice
for who writes Python, its `fact` is what stands before that, for those who do not.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST_TEXT = 10_000

BUFFERED = "with buffer=True"
"""How a signal that comes too early is kept, for who has Python before them."""


def presentable(text: str) -> str:
    """`text` as it can be stored and shown: a lone surrogate (of a file name, say) escaped, and cut when very long."""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}… ({len(text):,} characters in all)"
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """What an exception of an author says, whatever its `__str__` does."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"(its text cannot be had: {type(failure).__name__})"
    return presentable(text)


class MemableError(Exception):
    """The base of every error of memable."""


class NotStarted(MemableError):
    """The engine or client is not running: before `start()`, after `stop()`, or after `wait_all()`."""


class WorkflowNotFound(MemableError):
    """Neither this client's app nor any worker of the namespace has announced the workflow."""

    def __init__(self, workflow: str, namespace: str) -> None:
        self.fact = f"workflow {workflow!r} is not known in namespace {namespace!r}: no worker has announced it"
        super().__init__(f"{self.fact} (start one that has it, or pass the Workflow object instead of its name)")
        self.workflow = workflow


class InstanceNotFound(MemableError):
    """There is no such instance: never invoked, deleted, or past its retention."""

    def __init__(self, workflow: str, instance_id: str) -> None:
        super().__init__(
            f"there is no instance {workflow}/{instance_id}: never invoked, deleted, or past its retention"
        )
        self.workflow, self.instance_id = workflow, instance_id


class InstanceBusy(MemableError):
    """The call needs an instance at rest, or one that has ended, and this one is not."""

    def __init__(self, workflow: str, instance_id: str, status: str, *, awaited: str = "come to rest") -> None:
        super().__init__(f"instance {workflow}/{instance_id} is {status}: wait for it to {awaited}, or cancel it")
        self.workflow, self.instance_id, self.status = workflow, instance_id, status


class RecordNotFound(MemableError):
    """The instance has recorded nothing under these keys, so that there is nothing to drop, or to begin before."""

    def __init__(self, workflow: str, instance_id: str, keys: Sequence[str]) -> None:
        shown = " or ".join(map(repr, keys))
        self.fact = f"instance {workflow}/{instance_id} has no record under {shown}"
        super().__init__(f"{self.fact}: client.steps() has its keys")
        self.workflow, self.instance_id, self.keys = workflow, instance_id, tuple(keys)


class InvalidKey(MemableError):
    """A name, key or id that is empty, too long, reserved, or has a forbidden character."""

    def __init__(self, label: str, value: object) -> None:
        hint = ": pass what @app.workflow(…) or app.register(…) has made of it, or its name" if callable(value) else ""
        super().__init__(
            f"invalid {label} {value!r}: it must be a string of 1 to 200 characters without '/', '~' or control "
            f"characters, and a key must not start with '_'{hint if label == 'workflow' else ''}"
        )
        self.label, self.value = label, value


class InvalidLabel(MemableError, ValueError):
    """A label whose name or value cannot be one, or too many of them; the text says which."""


class InputConflict(MemableError):
    """The id belongs to another instance: one that was invoked with another input, or is not the fork asked for."""

    def __init__(self, workflow: str, instance_id: str, found: str = "with another input") -> None:
        super().__init__(f"instance {workflow}/{instance_id} exists already, {found}: choose another id")
        self.workflow, self.instance_id, self.found = workflow, instance_id, found


class InputMissing(MemableError):
    """The workflow takes an input, and none was given."""

    def __init__(self, workflow: str) -> None:
        super().__init__(f"workflow {workflow!r} takes an input, and none was given")
        self.workflow = workflow


class SerializationError(MemableError):
    """A value that has no exact JSON form; the text says which, where, and what to write instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class TypeMismatch(MemableError):
    """A value of another type than the one declared."""

    def __init__(self, subject: str, *, expected: str, found: str, detail: str = "") -> None:
        super().__init__(
            f"{subject}: type mismatch: expected {expected}, found {found}" + (f" ({detail})" if detail else "")
        )
        self.subject, self.expected, self.found, self.detail = subject, expected, found, detail


class PayloadTooLarge(MemableError):
    """A value whose JSON is larger than `MEMABLE_MAX_PAYLOAD`."""

    def __init__(self, subject: str, *, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{subject} is {size_bytes} bytes as JSON, over the limit of {limit_bytes} (MEMABLE_MAX_PAYLOAD): "
            f"store it elsewhere and keep a reference"
        )
        self.subject, self.size_bytes, self.limit_bytes = subject, size_bytes, limit_bytes


class InvalidCursor(MemableError, ValueError):
    """A listing was asked to go on from a place that no page has named."""

    def __init__(self, cursor: object) -> None:
        self.fact = f"{cursor!r} is no cursor"
        super().__init__(f"{self.fact}: pass the `cursor` of the page before, or None for the first page")
        self.cursor = cursor


class SettingsError(MemableError, ValueError):
    """A setting has a value that is not allowed; one line says which, and what is."""


class StorageError(MemableError):
    """Redis cannot be reached, refuses, or holds something that memable cannot work with."""


class StepFailed(MemableError):
    """A step's failure, recorded: every replay raises the same class with the same fields."""

    def __init__(self, subject: str, *, key: str, attempts: int, error_type: str, error_message: str) -> None:
        super().__init__(self._text(subject, attempts, error_type, error_message))
        self.subject, self.key, self.attempts = subject, key, attempts
        self.error_type, self.error_message = error_type, error_message

    def _text(self, subject: str, attempts: int, error_type: str, error_message: str) -> str:
        return f"{subject} failed on call {attempts}: {error_type}: {error_message}"


class RetriesExhausted(StepFailed):
    """A step that failed in every attempt that its retry policy allows."""

    def _text(self, subject: str, attempts: int, error_type: str, error_message: str) -> str:
        return f"{subject} failed after {attempts} attempts: {error_type}: {error_message}"


class StepTimeout(StepFailed):
    """A step of which one attempt took longer than its timeout."""

    def _text(self, subject: str, attempts: int, error_type: str, error_message: str) -> str:
        return f"{subject} timed out on call {attempts}: {error_type}: {error_message}"


class ChildFailed(MemableError):
    """A child failed, or was cancelled (`error_type` is `WorkflowCancelled` then): every replay raises the same."""

    def __init__(
        self,
        subject: str,
        *,
        key: str,
        index: int,
        workflow: str,
        instance_id: str,
        error_type: str,
        error_message: str,
    ) -> None:
        super().__init__(f"{subject} failed: {error_type}: {error_message} (child {workflow}/{instance_id})")
        self.subject, self.key, self.index = subject, key, index
        self.workflow, self.instance_id = workflow, instance_id
        self.error_type, self.error_message = error_type, error_message


class DuplicateStep(MemableError):
    """A key was used twice in one run."""

    def __init__(self, subject: str, key: str) -> None:
        super().__init__(f"{subject} was already used in this run: every durable call needs a key of its own")
        self.key = key


class StepConflict(MemableError):
    """A key is used for another kind of call than the one that its record was made by, or where none may be made."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


class TooManyRecords(MemableError):
    """A durable call that would give its instance more records than `MEMABLE_MAX_RECORDS`: it is not made."""

    def __init__(self, subject: str, *, limit: int) -> None:
        super().__init__(
            f"{subject} would be too much: an instance may have {limit:,} records (MEMABLE_MAX_RECORDS), since each "
            f"run reads them all; go on in a new life with ctx.continue_as(…), or share the work out among children"
        )
        self.subject, self.limit = subject, limit


class SignalRejected(MemableError):
    """Nobody waits for this signal, or will receive this message; the text says why. `key`: the point or mailbox."""

    def __init__(self, workflow: str, instance_id: str, key: str, reason: str, *, what: str = "signal") -> None:
        super().__init__(f"{what} {key!r} to {workflow}/{instance_id} rejected: {reason}")
        self.workflow, self.instance_id, self.key, self.reason = workflow, instance_id, key, reason


class SignalSuperseded(MemableError):
    """The point was completed before this signal came, or another signal is kept for it."""

    def __init__(self, workflow: str, instance_id: str, key: str, *, is_kept: bool = False) -> None:
        why = "another signal is kept until the point is reached" if is_kept else "the point is completed already"
        super().__init__(f"signal {key!r} to {workflow}/{instance_id} superseded: {why}")
        self.workflow, self.instance_id, self.key = workflow, instance_id, key


class SuspendTimeout(MemableError):
    """A wait reached its timeout before its signal or message came; every replay raises it again."""

    def __init__(self, workflow: str, instance_id: str, key: str) -> None:
        super().__init__(f"wait {key!r} of {workflow}/{instance_id} timed out: nothing came before its deadline")
        self.workflow, self.instance_id, self.key = workflow, instance_id, key


class WorkflowFailed(MemableError):
    """The instance failed: `error_type` and `error_message` are those of the exception that escaped."""

    def __init__(
        self, workflow: str, instance_id: str, *, error_type: str, error_message: str, failed_step: str | None
    ) -> None:
        super().__init__(f"instance {workflow}/{instance_id} failed: {error_type}: {error_message}")
        self.workflow, self.instance_id = workflow, instance_id
        self.error_type, self.error_message, self.failed_step = error_type, error_message, failed_step


class WorkflowCancelled(MemableError):
    """The instance was cancelled."""

    def __init__(self, workflow: str, instance_id: str, reason: str | None) -> None:
        super().__init__(f"instance {workflow}/{instance_id} was cancelled" + (f": {reason}" if reason else ""))
        self.workflow, self.instance_id, self.reason = workflow, instance_id, reason


class RetryableError(MemableError):
    """For authors to raise in a step: this failure is worth another attempt."""


class PermanentError(MemableError):
    """For authors to raise in a step: another attempt would fail the same way."""
