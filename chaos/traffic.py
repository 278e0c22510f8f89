"""The client in the storm: starts instances, does to each what its workflow needs, and cancels some of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from typing import Any, Final

from chaos.acting import Job
from chaos.client import Dealings, persist
from chaos.evidence import Invoked, Signalled
from chaos.roles import BLOCKER, POISON, ROLES, Role
from memable import Client, Invocation, MemableError, Status, WorkflowCancelled, WorkflowFailed

_TAKES_S: Final = (0.01, 0.3)
_WAITS_S: Final = (0.1, 3.0)
_POISON_WITHIN: Final = 0.7
"""The part of the time in which poison comes: it takes a while to fail."""
_DELAYED: Final = 0.1
"""The part of the instances that are started with a delay."""
_CANCELLED: Final = 0.1
"""The part that is cancelled, of those that may be."""
_CANCELLED_WITHIN_S: Final = 4.0
_THINKS_S: Final = 1.0
_RESUMED: Final = 0.5
"""The part that goes on after that, of those that nobody needs to answer any more."""


class Traffic:
    """Instances by a seed; `invoked` and `signalled` are what the client knows of them."""

    def __init__(self, client: Client, seed: int, *, lease_s: float) -> None:
        self._client, self._lease_s = client, lease_s
        # of its own, so that the same instances come whatever happens to them
        self._jobs = random.Random(seed)
        self._moods = random.Random(seed + 1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._instead: dict[int, Role] = {}
        self.invoked: list[Invoked] = []
        self.signalled: list[Signalled] = []
        self.surprises: list[str] = []

    async def flow(self, seconds: float, per_second: float, poisons: int = 0, blockers: int = 0) -> None:
        """Start instances evenly for so long; so many of them kill their workers, and so many block the event loops."""
        begun_s, total = time.monotonic(), round(seconds * per_second)
        for number in _spread(blockers, total):
            self._instead[number] = BLOCKER
        for number in _spread(poisons, round(total * _POISON_WITHIN)):
            self._instead[number] = POISON
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
        (role,) = self._jobs.choices(ROLES, [each.weight for each in ROLES])
        takes_s, waits_s = self._jobs.uniform(*_TAKES_S), self._jobs.uniform(*_WAITS_S)
        delay_s = self._jobs.uniform(*_WAITS_S) if self._jobs.random() < _DELAYED else None
        cancel_after_s = self._jobs.uniform(0.0, _CANCELLED_WITHIN_S) if self._jobs.random() < _CANCELLED else None
        is_resumed = self._jobs.random() < _RESUMED
        role = self._instead.get(number, role)
        job = Job(number, takes_s if role.leases is None else role.leases * self._lease_s, waits_s)
        try:
            dealings = await self._invoke(role, job, delay_s)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_do(role.deeds(dealings, job)))
                if role.may_be_cancelled and cancel_after_s is not None:
                    tasks.create_task(_cancel(dealings, cancel_after_s, resumes=role.may_be_resumed and is_resumed))
            try:
                dealings.known.result = await persist(dealings.invocation.result)
            except (WorkflowFailed, WorkflowCancelled) as error:
                dealings.known.result = str(error)
        except* MemableError as errors:
            for each in errors.exceptions:
                self.surprises.append(f"the client was told of {role.workflow.name}/job-{number}: {each!r}")

    async def _invoke(self, role: Role, job: Job, delay_s: float | None) -> Dealings:
        tries = 0

        def invoke() -> Awaitable[Invocation[list[str]]]:
            nonlocal tries
            tries += 1
            return self._client.invoke(role.workflow, job, id=f"job-{job.number}", delay=delay_s)

        invocation = await persist(invoke)
        name = f"{invocation.workflow_name}/{invocation.instance_id}"
        known = Invoked(name, role.output(job), tries, invocation.created, fails=role.fails, lives=role.lives)
        self.invoked.append(known)
        return Dealings(invocation, known, self._moods, self.signalled)


async def _do(deeds: Awaitable[Any]) -> None:
    await deeds


async def _cancel(dealings: Dealings, after_s: float, *, resumes: bool) -> None:
    await asyncio.sleep(after_s)
    known = dealings.known
    known.cancelled_s = time.time()
    state = await persist(lambda: dealings.invocation.cancel(reason="the client's mood"))
    known.told = str(state.status)
    if resumes and state.status is Status.CANCELLED:
        await dealings.think(_THINKS_S)
        known.resumed_s.append(time.time())
        await persist(dealings.invocation.resume)
        known.cancelled_s = known.told = None


def _spread(count: int, total: int) -> list[int]:
    """So many numbers below `total`, evenly."""
    return [round((n + 0.5) / count * total) for n in range(count)]
