"""What the client in the storm does for one instance, and remembers of it.

Whatever ends in a `StorageError` is repeated with the same ids until it is acknowledged; so each instance is to be
there once, each signal and each message too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from chaos.evidence import Answer, Invoked, Signalled
from memable import Invocation, SignalRejected, SignalSuperseded, StorageError, SuspendPoint, WorkflowFailed

T = TypeVar("T")

_AGAIN_S: Final = 0.05
_RIVALS: Final = (1, 1, 1, 2, 3)
"""How many signals are sent to one point at the same time; one of them is to be accepted."""
_REPEATED: Final = 0.3
"""Of what was acknowledged, the part that is sent again, as by a caller that does not know it."""


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` returns, as soon as it does: while it ends in a `StorageError` it is made again."""
    while True:
        try:
            return await call()
        except StorageError:
            await asyncio.sleep(_AGAIN_S)


class Dealings:
    """With one instance; `known` is what was learned of it."""

    def __init__(
        self, invocation: Invocation[Any], known: Invoked, moods: random.Random, signalled: list[Signalled]
    ) -> None:
        self.invocation, self.known = invocation, known
        self._moods, self._signalled = moods, signalled

    async def think(self, at_most_s: float) -> None:
        """Wait for as long as the mood is."""
        await asyncio.sleep(self._moods.uniform(0.0, at_most_s))

    async def signal(
        self, point: SuspendPoint[str], text: str, *, rivals: int | None = None, buffer: bool = False
    ) -> str | None:
        """Send a signal, or several at the same time, each with an id and a text of its own: that which was accepted.

        Without `buffer` each is sent until the point is reached.
        """
        count = self._moods.choice(_RIVALS) if rivals is None else rivals
        texts = [f"{text} of {rival}" for rival in range(count)]
        answers = await asyncio.gather(*(self._signal(point, each, buffer=buffer) for each in texts))
        accepted = [each for each, answer in zip(texts, answers, strict=True) if answer is Answer.ACCEPTED]
        return accepted[0] if accepted else None

    async def _signal(self, point: SuspendPoint[str], text: str, *, buffer: bool) -> Answer:
        answer = await self._send_signal(point, text, buffer=buffer)
        self._note(point, text, answer)
        if answer is Answer.ACCEPTED and self._moods.random() < _REPEATED:
            await self.repeat(point, text)
        return answer

    async def repeat(self, point: SuspendPoint[str], text: str) -> None:
        """Send a signal again that was accepted, as by a caller that does not know it."""
        self._note(point, text, await self._send_signal(point, text, buffer=False))

    def _note(self, point: SuspendPoint[str], text: str, answer: Answer) -> None:
        self._signalled.append(Signalled(self.known.name, point.key, _id_of(text), text, answer))

    async def _send_signal(self, point: SuspendPoint[str], text: str, *, buffer: bool) -> Answer:
        while True:
            try:
                await persist(lambda: self.invocation.signal(point, text, buffer=buffer, signal_id=_id_of(text)))
            except SignalSuperseded:
                return Answer.SUPERSEDED
            except SignalRejected:
                if await self._is_over():
                    return Answer.REJECTED
                # not reached yet
                await asyncio.sleep(_AGAIN_S)
            else:
                return Answer.ACCEPTED

    async def send(self, mailbox: str, texts: Sequence[str]) -> None:
        """Send messages one after the other, some of them twice."""
        for text in texts:
            for _ in self._once_or_twice():
                if not await self._send(mailbox, text):
                    return
            await self.think(0.3)

    async def _send(self, mailbox: str, text: str) -> bool:
        """Whether it was taken."""
        try:
            await persist(lambda: self.invocation.send(mailbox, text, message_id=_id_of(text)))
        except SignalRejected:
            if not await self._is_over():
                raise
            return False
        return True

    def _once_or_twice(self) -> Iterator[int]:
        return iter(range(2 if self._moods.random() < _REPEATED else 1))

    async def _is_over(self) -> bool:
        """Whether it was cancelled: nothing else ends an instance that is still to be signalled."""
        if self.known.cancelled_s is None:
            return False
        metadata = await persist(self.invocation.metadata)
        return metadata is not None and metadata.state.status.is_terminal

    async def resume_once_failed(self, mend: Callable[[], None]) -> None:
        """Mend what is broken as soon as it has failed for it, and have it go on."""
        try:
            await persist(self.invocation.result)
        except WorkflowFailed:
            mend()
            self.known.resumed_s.append(time.time())
            await persist(self.invocation.resume)


def _id_of(text: str) -> str:
    return text.replace(" ", "-")
