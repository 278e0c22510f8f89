"""Rest and time as a test wants them: no short timer says whether an instance parks, and so how often it runs.

A timer of 10 ms may be due before its run parks, on a slow machine: then it goes on, and there is no replay. So what is
to be replayed waits at a point that is signalled once it rests there, and what is to fall due has an hour, which is
brought nearer once the test has seen what it wants to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from memable import Client, Invocation, Status, WorkflowState
from memable.retry import Duration, to_seconds
from memable.testing.engine import bring_nearer
from tests.worker_process import TOO_LONG_S

O = TypeVar("O")  # noqa: E741  (as in memable/workflow.py)


async def rests_at(instance: Invocation[Any], key: str) -> None:
    """Return when it is suspended, and `key` the first that it waits for; an error if it ends instead."""
    await _until_state(
        instance, lambda state: state.status is Status.SUSPENDED and state.key == key, f"at rest at {key!r}"
    )


async def shows(instance: Invocation[Any], text: str) -> None:
    """Return when its state has this text; an error if it ends instead."""
    await _until_state(instance, lambda state: text in str(state), repr(text))


async def _until_state(instance: Invocation[Any], is_it: Callable[[WorkflowState], bool], what: str) -> None:
    seen = list[str]()
    try:
        async with asyncio.timeout(TOO_LONG_S):
            async for state in instance.states():
                if is_it(state):
                    return
                seen.append(str(state))
    except TimeoutError:
        raise AssertionError(f"not {what} within {TOO_LONG_S:g} s: {seen}") from None
    raise AssertionError(f"it was never {what}: {seen}")


async def replayed(instance: Invocation[O], *keys: str) -> O:
    """Its result, when at each of `keys` it has come to rest, and was run again because of a signal."""
    for key in keys:
        await rests_at(instance, key)
        await instance.signal(key)
    return await instance.result(timeout=TOO_LONG_S)


async def hasten(client: Client, by: Duration) -> None:
    """Let so much time pass for all timers, timeouts, delays, back-offs and deadlines that there are now.

    `TestEngine.advance` does so too, but only when nothing runs.
    """
    online = client._online()
    await bring_nearer(online.connection, online.store.keys.partitions, to_seconds(by, "the time") * 1000)
