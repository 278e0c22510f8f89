"""Each workflow of the storm from the client's side: how often it comes, what it is to return, what is done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from chaos.acting import ANSWER, Job, mended
from chaos.client import Dealings
from chaos.endless import LIVES, doomed, lives
from chaos.kin import clan, family, repair
from chaos.plain import ask, blocker, chain, crowd, long, mend, nap, poison
from chaos.waits import LEFT, MAILBOX, RIGHT, SECOND, early, hurry, patient, race, talk
from memable import Workflow

AnyWorkflow = Workflow[Job, list[str]]
_THINKS_S: Final = 1.0


async def _nothing(_: Dealings, __: Job) -> None:
    pass


@dataclass(frozen=True)
class Role:
    """A workflow as the client knows it."""

    workflow: AnyWorkflow
    output: Callable[[Job], list[str]]
    """What it returns; the deeds put into it what was accepted."""
    deeds: Callable[[Dealings, Job], Awaitable[Any]] = _nothing
    weight: int = 0
    """How often it comes, beside the others; 0: by number."""
    fails: str | None = None
    lives: int = 1
    leases: float | None = None
    """How many leases its steps take, if that is no matter of chance."""
    may_be_cancelled: bool = True

    @property
    def may_be_resumed(self) -> bool:
        """Whether it comes to its end, though it was cancelled: that nobody has to do anything for it meanwhile."""
        return self.deeds is _nothing and self.fails is None


# ── deeds ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _answer(dealings: Dealings, job: Job) -> None:
    await dealings.think(_THINKS_S)
    accepted = await dealings.signal(ANSWER, f"answer {job.number}")
    dealings.known.output = [accepted or "" if each == "?" else each for each in dealings.known.output]


async def _answer_early(dealings: Dealings, job: Job) -> None:
    first = await dealings.signal(ANSWER, f"answer {job.number}", buffer=True)
    second = await dealings.signal(SECOND, f"second {job.number}", buffer=True)
    before, _, _, after = dealings.known.output
    dealings.known.output = [before, first or "", second or "", after]


async def _answer_or_not(dealings: Dealings, job: Job) -> None:
    await dealings.think(2 * job.waits_s)
    accepted = await dealings.signal(ANSWER, f"answer {job.number}")
    if accepted is not None:
        dealings.known.output = [accepted, *dealings.known.output[1:]]


async def _answer_left_and_right(dealings: Dealings, job: Job) -> None:
    last = f"last {job.number}"
    known = dealings.known
    known.or_else = [["child", f"part {job.number}.0", last], ["step", f"step {job.number}", last]]
    await dealings.think(2 * job.waits_s)
    sides = [(LEFT, f"left {job.number}"), (RIGHT, f"right {job.number}")]
    sides = sides if job.number % 4 < 2 else sides[::-1]
    accepted = await asyncio.gather(*(dealings.signal(point, text) for point, text in sides))
    for (point, _), text in zip(sides, accepted, strict=True):
        if text is not None:
            known.output, known.or_else = [point.key, text, last], ()


async def _say(dealings: Dealings, job: Job) -> None:
    await dealings.think(_THINKS_S)
    await dealings.send(MAILBOX, [f"message {job.number}.{at}" for at in range(3)])


async def _lead_a_life(dealings: Dealings, job: Job) -> None:
    await dealings.send(MAILBOX, [f"message {job.number}.1"])
    accepted = await dealings.signal(ANSWER, f"answer {job.number}", rivals=1, buffer=True)
    dealings.known.output = [accepted or "" if each == "?" else each for each in dealings.known.output]
    await dealings.think(0.3)
    await dealings.send(MAILBOX, [f"message {job.number}.2"])
    if accepted is not None:
        await dealings.repeat(ANSWER, accepted)
    await dealings.send(MAILBOX, [f"message {job.number}.3"])


async def _mend(dealings: Dealings, job: Job) -> None:
    await dealings.resume_once_failed(mended(f"job-{job.number}").touch)


# ── roles ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_lives(job: Job) -> list[str]:
    n = job.number
    said = [f"message {n}.1", f"work {n}", "?", f"message {n}.2", f"work {n}.2", "silence"]
    return [*said, f"message {n}.3", f"work {n}.3"]


def _of_talk(job: Job) -> list[str]:
    first, second, third = (f"message {job.number}.{at}" for at in range(3))
    return [first, f"think {job.number}", second, third, "silence"]


def _of_family(job: Job) -> list[str]:
    parts = [f"part {job.number}.{at}" for at in range(6)]
    return [*parts, "unlucky 1", "mixed 0", f"part {job.number}.10", f"last {job.number}"]


def _said(*words: str) -> Callable[[Job], list[str]]:
    """Steps say what they are, and the number of the job; what comes after `=` is said by others."""
    return lambda job: [each[1:] if each.startswith("=") else f"{each} {job.number}" for each in words]


def _parts_and_last(job: Job) -> list[str]:
    return [*(f"part {job.number}.{at}" for at in range(3)), f"last {job.number}"]


ROLES: Final = [
    Role(chain, _said("first", "flaky", "thread", "=never", "last"), weight=12),
    Role(ask, _said("ask", "=?", "thank"), _answer, weight=10),
    Role(nap, _said("wake"), weight=8),
    Role(crowd, _said("one", "two", "three", "=?", "last"), _answer, weight=10),
    Role(mend, _said("before", "broken", "after"), _mend, weight=6, may_be_cancelled=False),
    Role(long, _said("task", "thread"), weight=2, leases=1.2),
    Role(early, _said("before", "=?", "=?", "after"), _answer_early, weight=4),
    Role(hurry, _said("=too late", "last"), _answer_or_not, weight=4),
    Role(race, _said("=timer", "=", "last"), _answer_left_and_right, weight=5),
    Role(talk, _of_talk, _say, weight=4),
    Role(lives, _of_lives, _lead_a_life, weight=4, lives=LIVES),
    Role(doomed, _said(), weight=2, fails="DeadlineExceeded"),
    Role(patient, _said("patient", "=3 attempts"), weight=2),
    Role(family, _of_family, weight=2),
    Role(clan, lambda job: [f"first {job.number}", *_of_family(job)], weight=1),
    Role(repair, _parts_and_last, _mend, weight=1, may_be_cancelled=False),
]
POISON: Final = Role(poison, _said(), fails="WorkerLost", may_be_cancelled=False)
BLOCKER: Final = Role(blocker, _said("block"), leases=1.4, may_be_cancelled=False)
