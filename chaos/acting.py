"""What the workflows of the storm share: the app, what an instance is to do, steps, and the ledger in CHAOS_DIR.

Every run, every call of a step and every worker that may lead is written to that ledger. With CHAOS_BREAK=fence the
workers of this app do not heed leases any more: see breakage.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from chaos.breakage import break_on_request
from chaos.ledger import Ledger, What
from chaos.names import life_name
from memable import App, Context, PermanentError, RetryPolicy, SuspendPoint, current_step

break_on_request()


@asynccontextmanager
async def _tell_who_leads(_: App) -> AsyncIterator[Mapping[str, Any]]:
    """Have the leaders of this worker put their tokens into the ledger: of who leads, Redis has the token alone."""
    # workers only: a client does not import it
    from memable.runtime.leader import Leader

    start: Any = Leader.start

    async def tell_and_start(leader: Any, *args: Any) -> None:
        _ledger().write(What.MAY_LEAD, leader._token, 0)
        await start(leader, *args)

    patched: Any = Leader
    patched.start = tell_and_start
    yield {}


app = App(lifespan=_tell_who_leads)
ANSWER = SuspendPoint("answer:v1", str)
PERSISTENT: Final = RetryPolicy.fixed(3, 0.02)


@dataclass(frozen=True)
class Job:
    """What an instance is to do."""

    number: int
    takes_s: float
    """How long each of its steps takes."""
    waits_s: float
    """How long each of its timers is."""
    life: int = 1
    said: tuple[str, ...] = ()
    """What its earlier lives have come to."""

    def __str__(self) -> str:
        return f"{self.number}" if self.life == 1 else f"{self.number}.{self.life}"


def directory() -> Path:
    """Where all processes of a performance meet."""
    return Path(os.environ["CHAOS_DIR"])


def mended(instance_id: str) -> Path:
    """The file whose being there mends the broken step of an instance, or of its children."""
    return directory() / f"mended-{instance_id}"


@cache
def _ledger() -> Ledger:
    return Ledger(directory() / "ledger")


@contextmanager
def running(ctx: Context, life: int = 1) -> Iterator[int]:
    """The number of this run. Only the claim knows it: no public name says which of two runs is the later one."""
    run: Any = ctx._run
    number: int = run._claim.attempt
    name = life_name(f"{ctx.workflow_name}/{ctx.instance_id}", life)
    _ledger().write(What.RUN, name, number)
    try:
        yield number
    finally:
        _ledger().write(What.REST, name, number)


@contextmanager
def calling(run: int, life: int = 1) -> Iterator[int]:
    """The attempt of this call."""
    step = current_step()
    called = (life_name(f"{step.workflow_name}/{step.instance_id}", life), run, step.key, step.attempt)
    _ledger().write(What.BEGIN, *called)
    try:
        yield step.attempt
    finally:
        _ledger().write(What.END, *called)


async def act(run: int, job: Job, failures: int = 0) -> str:
    with calling(run, job.life) as attempt:
        await asyncio.sleep(job.takes_s)
        if attempt <= failures:
            raise ConnectionError("try again")
    return f"{current_step().key} {job}"


def act_in_thread(run: int, job: Job, failures: int = 0) -> str:
    with calling(run, job.life) as attempt:
        time.sleep(job.takes_s)
        if attempt <= failures:
            raise ConnectionError("try again")
    return f"{current_step().key} {job}"


async def refuse(run: int) -> str:
    with calling(run):
        raise PermanentError("never")
