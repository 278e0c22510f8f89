"""What is known inside a step of the step itself: `current_step()`."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from typing import NamedTuple

from memable.errors import NotStarted


class CurrentStep(NamedTuple):
    """The step that is being called."""

    key: str
    attempt: int
    """From 1."""
    workflow_name: str
    instance_id: str
    life: str

    @property
    def idempotency_key(self) -> str:
        """The same string in every attempt and every run of this step in this life of the instance.

        Hand it to payment APIs and the like: a step is called at least once, and this is what makes its effect happen
        once.
        """
        name = f"{self.workflow_name}/{self.instance_id}/{self.life}/{self.key}"
        return hashlib.sha256(name.encode()).hexdigest()[:40]


_current_step: ContextVar[CurrentStep | None] = ContextVar("memable_current_step", default=None)


def current_step() -> CurrentStep:
    """The step that is being called, also in the thread of a sync step; `NotStarted` outside of one.

    >>> async def charge(amount: float) -> str:
    ...     return await payments.charge(amount, idempotency_key=current_step().idempotency_key)
    """
    step = step_in_progress()
    if step is None:
        raise NotStarted("current_step() is for functions that are called as a step, and none is running here")
    return step


def step_in_progress() -> CurrentStep | None:
    """The step that is being called here, if there is one."""
    return _current_step.get()


def enter_step(step: CurrentStep) -> None:
    """Make `step` the current one of this context."""
    _current_step.set(step)
