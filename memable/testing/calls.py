"""What steps are called in a test: replaced, remembered, and cut off by a death that was asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from memable.runtime.steps import BeforeAttempt, Failed, StepCall, StepCaller, StepEnd

_ITEM: Final = re.compile(r"\[\d+\]$")
"""Ends the key of an item of `ctx.map`."""


class Called(NamedTuple):
    """One attempt of a step."""

    workflow: str
    instance_id: str
    key: str
    attempt: int
    """From 1."""
    args: tuple[Any, ...]


class When(Enum):
    """At which moment of a step the process dies."""

    BEFORE = "before it was called"
    AFTER = "after it was called, before its result was recorded"


@dataclass(slots=True)
class Death:
    """One death of one instance: at its step number `at`, from 0, counted in the order of the calls."""

    instance: str
    at: int
    when: When
    kill: Callable[[str], None]
    """Ends the run of an instance as the death of its process would."""
    at_key: str | None = None
    """The step at which it died; nothing before that."""
    _seen: int = 0

    async def pass_by(self, call: StepCall, when: When) -> None:
        """Die, if this is the moment."""
        if call.instance != self.instance or self.at_key is not None or when is not self.when:
            return
        if self._seen == self.at:
            self.at_key = call.key
            self.kill(self.instance)
            await asyncio.get_running_loop().create_future()  # until it is cancelled
        self._seen += 1


@dataclass(slots=True)
class Script:
    """What is to happen with the steps that an engine calls, and what has happened."""

    overrides: Mapping[str, Callable[..., Any]]
    calls: list[Called] = field(default_factory=list)
    death: Death | None = None

    def __post_init__(self) -> None:
        for key, stand_in in self.overrides.items():
            if not callable(stand_in):
                raise TypeError(f"overrides[{key!r}] is called in place of the step, and cannot be {stand_in!r}")

    def replaced(self, key: str) -> Callable[..., Any] | None:
        """What stands in for the step `key`: by its key, or by that of its `ctx.map`."""
        return self.overrides.get(key) or self.overrides.get(_ITEM.sub("", key))


@dataclass(frozen=True, slots=True)
class ScriptedCaller(StepCaller):
    """Calls steps as its script says."""

    script: Script

    async def call(self, call: StepCall, before_attempt: BeforeAttempt, attempt: int = 1) -> StepEnd | Failed:
        """As the original, with what a test puts in its place; dies where it is to."""
        if (fake := self.script.replaced(call.key)) is not None:
            call = call._replace(fn=fake)
        if self.script.death is not None:
            await self.script.death.pass_by(call, When.BEFORE)
        end = await StepCaller.call(self, call, before_attempt, attempt)
        if self.script.death is not None:
            await self.script.death.pass_by(call, When.AFTER)
        return end

    async def invoke(self, call: StepCall, attempt: int, before_attempt: BeforeAttempt) -> Any:
        """One attempt, which is remembered."""
        workflow, _, instance_id = call.instance.partition("/")
        self.script.calls.append(Called(workflow, instance_id, call.key, attempt, call.args))
        return await StepCaller.invoke(self, call, attempt, before_attempt)
