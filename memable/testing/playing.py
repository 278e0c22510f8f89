"""A workflow played to its end: once, or once for each death that it could meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar, overload

from memable.errors import SignalRejected, WorkflowCancelled, WorkflowFailed
from memable.invocation import Invocation
from memable.missing import MISSING
from memable.testing.calls import Death, When
from memable.testing.engine import TestEngine
from memable.workflow import SuspendPoint, Workflow, key_of

I = TypeVar("I")  # noqa: E741  (as in workflow.py)
O = TypeVar("O")  # noqa: E741

Overrides = Mapping[str, Callable[..., Any]]
Signals = Mapping[str, Any] | Mapping[SuspendPoint[Any], Any] | Mapping[SuspendPoint[Any] | str, Any]
Messages = Mapping[str, Sequence[Any]]

_NOTHING: Final[Mapping[Any, Any]] = {}


@overload
async def run(
    workflow: Workflow[None, O], *, overrides: Overrides = ..., signals: Signals = ..., messages: Messages = ...
) -> O: ...
@overload
async def run(
    workflow: Workflow[I, O], input: I, *, overrides: Overrides = ..., signals: Signals = ..., messages: Messages = ...
) -> O: ...


async def run(
    workflow: Workflow[Any, Any],
    input: Any = MISSING,
    *,
    overrides: Overrides = _NOTHING,
    signals: Signals = _NOTHING,
    messages: Messages = _NOTHING,
) -> Any:
    """The result of one instance, carried to its end on a private server without waiting.

    `overrides`: by key, what is called in place of steps. `signals`: by point or key, the payloads for
    what it waits at; of several at a time, the first in its order. `messages`: by mailbox, what is sent to it as soon
    as it is invoked. Where it waits for nothing that can be answered, time passes at once until the next thing is due.

    `WorkflowFailed` or `WorkflowCancelled` if it ends so; `AssertionError`, naming the point, if it waits for what
    is not in `signals` or `messages` and nothing ever falls due.
    """
    async with TestEngine(workflow.app, overrides=overrides) as engine:
        return await _play(engine, await _invoke(engine, workflow, input), signals, messages)


class _End(NamedTuple):
    """What is compared: how an instance ended, and what it recorded."""

    outcome: str
    records: Mapping[str, str]
    """By key, their states."""


async def check_replays(
    workflow: Workflow[Any, Any],
    input: Any = MISSING,
    *,
    overrides: Overrides = _NOTHING,
    signals: Signals = _NOTHING,
    messages: Messages = _NOTHING,
) -> int:
    """Prove that a workflow survives a death at each of its steps; how many deaths it died.

    It is played once undisturbed, as by `run`. Then once more for each step and each of two moments: before the step
    is called, and after it was called but before its result was recorded. There its run ends as if its process were
    killed, and it is run again. Each time it must come to the same result, or the same failure, with the same records.

    `AssertionError` tells at which death it did not, and what was different: most often code between the steps that
    is not the same every time (`random`, the clock, the order of a set, a module's variable). Put that into a step.
    """
    async with TestEngine(workflow.app, overrides=overrides) as engine:
        undisturbed = await _end(engine, await _invoke(engine, workflow, input), signals, messages)
        complaints: list[str] = []
        deaths = 0
        for when in When:
            for at in count():
                id = f"{when.name.lower()}-{at}"
                death = engine.script.death = Death(f"{workflow.name}/{id}", at, when, engine.kill)
                end = await _end(engine, await _invoke(engine, workflow, input, id), signals, messages)
                if death.at_key is None:
                    break  # it has no more steps
                deaths += 1
                complaints += _differences(death, undisturbed, end)
        if complaints:
            raise AssertionError(f"{workflow.name} does not survive every death:\n" + "\n".join(complaints))
        return deaths


def _differences(death: Death, undisturbed: _End, end: _End) -> list[str]:
    where = f"killed at step {death.at_key!r}, {death.when.value}"
    found = []
    if end.outcome != undisturbed.outcome:
        found.append(f"{where}: {end.outcome}, undisturbed: {undisturbed.outcome}")
    for key in sorted({*end.records, *undisturbed.records}):
        there, expected = end.records.get(key, "not there"), undisturbed.records.get(key, "not there")
        if there != expected:
            found.append(f"{where}: the record of {key!r} is {there}, undisturbed: {expected}")
    return found


async def _invoke(
    engine: TestEngine, workflow: Workflow[Any, Any], input: Any, id: str | None = None
) -> Invocation[Any]:
    if input is MISSING:
        return await engine.invoke(workflow, id=id)
    return await engine.invoke(workflow, input, id=id)


async def _end(engine: TestEngine, invocation: Invocation[Any], signals: Signals, messages: Messages) -> _End:
    try:
        outcome = f"the result is {await _play(engine, invocation, signals, messages)!r}"
    except (WorkflowFailed, WorkflowCancelled) as error:
        # its id is another each time
        outcome = f"{type(error).__name__}: {str(error).replace(invocation.instance_id, 'ID')}"
    records = await engine.steps(invocation.workflow_name, invocation.instance_id)
    return _End(outcome, {record.key: record.state.value for record in records})


async def _play(engine: TestEngine, invocation: Invocation[Any], signals: Signals, messages: Messages) -> Any:
    """Answer and let time pass until the end."""
    with suppress(SignalRejected):  # it is over already
        for mailbox, contents in messages.items():
            for each in contents:
                await engine.send(invocation.workflow_name, invocation.instance_id, mailbox, each)
    answers = {key_of(point): (point, payload) for point, payload in signals.items()}
    while True:
        await engine.settle()
        metadata = await invocation.metadata()
        assert metadata is not None, "an instance that is not over cannot expire"
        if metadata.status.is_terminal:
            return await invocation.result()
        if (key := next(filter(answers.__contains__, metadata.waiting_on), None)) is not None:
            # one: of those that race in a `first`, no other can be signalled after it
            await invocation.signal(*answers[key])
        elif not await engine.advance_to_next():
            waiting = ", ".join(map(repr, metadata.waiting_on))
            raise AssertionError(
                f"{metadata.workflow}/{metadata.instance_id} waits at {waiting} for ever: give its payload in "
                f"`signals`, or in `messages` if it is to be received"
            )
