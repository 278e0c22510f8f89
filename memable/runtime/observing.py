"""What a worker process tells those who watch it. The runtime calls an `Observer`; metrics and traces are observers.

Every call comes from the event loop's thread, and is made between two steps of the runtime: an observer must be quick,
and must not raise. Where nobody watches a run, its `RunObserver` is None, and asking that is all it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from memable.connection import Traffic
from memable.holding import Claim, Held


class RunOutcome(StrEnum):
    """How a run ended, as its worker saw it."""

    __hash__ = str.__hash__  # Enum's own is Python code, and a worker counts by these

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The instance was cancelled while it ran here."""
    SUSPENDED = "suspended"
    """It parked: for a signal, a timer, a message, its children, or the next attempt of a step."""
    CONTINUED = "continued"
    """It ended with `continue_as`: the next life is queued."""
    HANDED_BACK = "handed_back"
    """Another worker is to go on: this one stops, or lets a suspect go."""
    LOST = "lost"
    """The lease: another worker has the instance, or it was deleted."""
    BROKEN = "broken"
    """Redis refused what the run had to write, or memable failed; it is left to its lease."""


class StepOutcome(StrEnum):
    """How a step of a run ended that was called, and not handed back from its record."""

    __hash__ = str.__hash__

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Nothing was recorded: its author gave it up, or its run ended."""


class RunObserver:
    """Is told what one run does."""

    __slots__ = ()

    def enters(self) -> None:
        """The workflow's function is called next, in this context and task."""

    def attempt_begins(self, key: str, attempt: int) -> Any:
        """A step's function is called next, from this context; what is returned comes back with `attempt_ended`."""

    def attempt_ended(self, begun: Any, elapsed_s: float, error: BaseException | None) -> None:
        """… it has returned or raised, or was cancelled."""

    def step_ended(self, outcome: StepOutcome) -> None:
        """A step's end is recorded; or, when it was cancelled, is not."""

    def failed(self, error: BaseException) -> None:
        """The workflow's function has raised what fails the instance."""

    def ended(self, outcome: RunOutcome) -> None:
        """The run is over."""


def queued_s(held: Held, claim: Claim) -> float:
    """For how long a claimed instance was ready to run, by Redis's clock: since its entry was made."""
    return max(0, claim.now_ms - int(held.entry.partition("-")[0])) / 1000


class Observer:
    """Is told what a worker process does. This one tells nobody."""

    def run_begins(self, held: Held, claim: Claim) -> RunObserver | None:
        """An instance was claimed."""

    def claim_refused(self, workflow: str) -> None:
        """A delivery was of the past, or another worker has the instance."""

    def recovered(self, workflow: str, *, has_failed: bool) -> None:
        """The leader took an instance from a dead worker: it is queued again, or has failed for good."""

    def expired(self, workflow: str) -> None:
        """The leader failed an instance whose deadline had come."""

    def timer_fired(self, workflow: str, late_s: float) -> None:
        """The leader fired a timer, so long after it was due."""


class WatchedWorker(Protocol):
    """What is asked of a worker when somebody looks, from another thread."""

    worker: str

    @property
    def slots(self) -> int: ...

    @property
    def running(self) -> int: ...

    @property
    def partitions_led(self) -> int: ...

    @property
    def leads_first(self) -> bool: ...

    @property
    def is_connected(self) -> bool: ...

    @property
    def traffic(self) -> Traffic: ...

    @property
    def trouble(self) -> str | None: ...

    @property
    def fault(self) -> str | None: ...


NOBODY = Observer()


def all_of(observers: Sequence[Observer]) -> Observer:
    """One that tells all of them."""
    match observers:
        case []:
            return NOBODY
        case [only]:
            return only
        case _:
            return _All(observers)


class _All(Observer):
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def run_begins(self, held: Held, claim: Claim) -> RunObserver | None:
        found = [run for each in self._observers if (run := each.run_begins(held, claim)) is not None]
        return found[0] if len(found) == 1 else _AllOfRun(found) if found else None

    def claim_refused(self, workflow: str) -> None:
        for each in self._observers:
            each.claim_refused(workflow)

    def recovered(self, workflow: str, *, has_failed: bool) -> None:
        for each in self._observers:
            each.recovered(workflow, has_failed=has_failed)

    def expired(self, workflow: str) -> None:
        for each in self._observers:
            each.expired(workflow)

    def timer_fired(self, workflow: str, late_s: float) -> None:
        for each in self._observers:
            each.timer_fired(workflow, late_s)


class _AllOfRun(RunObserver):
    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[RunObserver]) -> None:
        self._runs = runs

    def enters(self) -> None:
        for each in self._runs:
            each.enters()

    def attempt_begins(self, key: str, attempt: int) -> Any:
        return [each.attempt_begins(key, attempt) for each in self._runs]

    def attempt_ended(self, begun: Any, elapsed_s: float, error: BaseException | None) -> None:
        for each, own in zip(self._runs, begun, strict=True):
            each.attempt_ended(own, elapsed_s, error)

    def step_ended(self, outcome: StepOutcome) -> None:
        for each in self._runs:
            each.step_ended(outcome)

    def failed(self, error: BaseException) -> None:
        for each in self._runs:
            each.failed(error)

    def ended(self, outcome: RunOutcome) -> None:
        for each in self._runs:
            each.ended(outcome)
