"""The client in the storm: starts instances, signals and resumes them, and remembers what it was told.

Whatever ends in a `StorageError` is repeated with the same ids until it is acknowledged; so each instance is to be
there once, and each signal too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from chaos.app import ANSWER, Job, ask, blocker, chain, crowd, expected, long, mend, mended, nap, poison
from chaos.evidence import Answer, Invoked, Signalled
from memable import (
    Client,
    Invocation,
    MemableError,
    SignalRejected,
    SignalSuperseded,
    Status,
    StorageError,
    Workflow,
    WorkflowFailed,
)

T = TypeVar("T")
AnyWorkflow = Workflow[Job, list[str]]

MIX: Final[list[tuple[AnyWorkflow, int]]] = [(chain, 6), (ask, 5), (nap, 4), (crowd, 5), (mend, 3), (long, 1)]
"""How often each workflow comes; but for those that come by number."""

_TAKES_S: Final = (0.0, 0.3)
_LEASES: Final = {long.name: 1.2, blocker.name: 1.4}
"""How many leases their steps take."""
_POISON_WITHIN: Final = 0.7
"""The part of the time in which poison comes: it takes a while to fail."""
_WAITS_S: Final = (0.1, 3.0)
_THINKS_S: Final = (0.0, 1.0)
_AGAIN_S: Final = 0.05
_RIVALS: Final = (1, 1, 1, 2, 3)
"""How many signals are sent to one point at the same time; one of them is to be accepted."""


class Traffic:
    """Instances by a seed; `invoked` and `signalled` are what the client knows of them."""

    def __init__(self, client: Client, seed: int, *, lease_s: float) -> None:
        self._client, self._lease_s = client, lease_s
        # of its own, so that the same instances come whatever happens to them
        self._jobs = random.Random(seed)
        self._moods = random.Random(seed + 1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._instead: dict[int, AnyWorkflow] = {}
        self._invoked: dict[str, dict[str, Any]] = {}
        self.signalled: list[Signalled] = []
        self.surprises: list[str] = []

    @property
    def invoked(self) -> list[Invoked]:
        return [Invoked(name, **known) for name, known in self._invoked.items()]

    async def flow(self, seconds: float, per_second: float, poisons: int = 0, blockers: int = 0) -> None:
        """Start instances evenly for so long; so many of them kill their workers, and so many block the event loops."""
        begun_s, total = time.monotonic(), round(seconds * per_second)
        for number in _spread(blockers, total):
            self._instead[number] = blocker
        for number in _spread(poisons, round(total * _POISON_WITHIN)):
            self._instead[number] = poison
        for number in range(total):
            await asyncio.sleep(max(0.0, begun_s + number / per_second - time.monotonic()))
            self._tasks.add(asyncio.create_task(self._live(number)))

    async def settle(self, within_s: float) -> bool:
        """Whether all instances have come to their ends in time; nobody is waited for any longer."""
        if not self._tasks:
            return True
        done, late = await asyncio.wait(self._tasks, timeout=within_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()
        return not late

    async def _live(self, number: int) -> None:
        """One instance, from its invoke to its end."""
        (workflow,) = self._jobs.choices([each for each, _ in MIX], [weight for _, weight in MIX])
        takes_s, waits_s = self._jobs.uniform(*_TAKES_S), self._jobs.uniform(*_WAITS_S)
        workflow = self._instead.get(number, workflow)
        if (leases := _LEASES.get(workflow.name)) is not None:
            takes_s = self._lease_s * leases
        job = Job(number, takes_s, waits_s)
        try:
            invocation, known = await self._invoke(workflow, job)
            if workflow in (ask, crowd):
                await self._answer(invocation, known, f"answer {number}")
            if workflow is mend:
                await self._mend(invocation, known)
            try:
                known["result"] = await persist(invocation.result)
            except WorkflowFailed as error:
                known["result"] = str(error)
        except MemableError as error:
            self.surprises.append(f"the client was told of {workflow.name}/job-{number}: {error!r}")

    async def _invoke(self, workflow: AnyWorkflow, job: Job) -> tuple[Invocation[list[str]], dict[str, Any]]:
        tries = 0

        def invoke() -> Awaitable[Invocation[list[str]]]:
            nonlocal tries
            tries += 1
            return self._client.invoke(workflow, job, id=f"job-{job.number}")

        invocation = await persist(invoke)
        known = self._invoked[f"{invocation.workflow_name}/{invocation.instance_id}"] = {
            "output": expected(workflow.name, job, f"answer {job.number}"),
            "tries": tries,
            "created": invocation.created,
            "fails": "WorkerLost" if workflow is poison else None,
            "result": None,
        }
        return invocation, known

    async def _answer(self, invocation: Invocation[Any], known: dict[str, Any], text: str) -> None:
        """Signals with ids and answers of their own, at the same time; the output must show which was accepted."""
        await asyncio.sleep(self._moods.uniform(*_THINKS_S))
        texts = [f"{text} of {rival}" for rival in range(self._moods.choice(_RIVALS))]
        answers = await asyncio.gather(*(self._signal(invocation, each) for each in texts))
        for accepted in (each for each, answer in zip(texts, answers, strict=True) if answer is Answer.ACCEPTED):
            known["output"] = [accepted if each == text else each for each in known["output"]]

    async def _signal(self, invocation: Invocation[Any], text: str) -> Answer:
        signal_id = text.replace(" ", "-")
        answer = await self._send(invocation, text, signal_id)
        name = f"{invocation.workflow_name}/{invocation.instance_id}"
        self.signalled.append(Signalled(name, ANSWER.key, signal_id, text, answer))
        if answer is Answer.ACCEPTED and self._moods.random() < 0.3:
            # a caller that does not know that it was accepted
            self.signalled.append(
                Signalled(name, ANSWER.key, signal_id, text, await self._send(invocation, text, signal_id))
            )
        return answer

    async def _send(self, invocation: Invocation[Any], text: str, signal_id: str) -> Answer:
        while True:
            try:
                await persist(lambda: invocation.signal(ANSWER, text, signal_id=signal_id))
            except SignalSuperseded:
                return Answer.SUPERSEDED
            except SignalRejected:
                # not reached yet
                await asyncio.sleep(_AGAIN_S)
            else:
                return Answer.ACCEPTED

    async def _mend(self, invocation: Invocation[Any], known: dict[str, Any]) -> None:
        state = await persist(invocation.wait)
        if state.status is Status.FAILED:
            mended(invocation.instance_id).touch()
            known["resumed_s"] = [time.time()]
            await persist(invocation.resume)


def _spread(count: int, total: int) -> list[int]:
    """So many numbers below `total`, evenly."""
    return [round((n + 0.5) / count * total) for n in range(count)]


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns, as soon as it does: while it ends in a `StorageError` it is made again."""
    while True:
        try:
            return await call()
        except StorageError:
            await asyncio.sleep(_AGAIN_S)
