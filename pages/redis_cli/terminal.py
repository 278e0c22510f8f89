"""A terminal for the guide: runs its lines as a shell with redis-cli would, piped into `paste` and `sort`."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from memable.connection import Endpoint, ScriptConnection
from memable.pubsub import Subscriptions
from memable.store import new_token

PROMPT = "$ "


@dataclass(frozen=True)
class Line:
    """What stands behind a prompt."""

    words: list[str]
    columns: int
    """How many lines `paste` makes one of."""
    is_sorted: bool
    comment: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ValueError` for what this terminal cannot do."""
        text, _, comment = text.partition("  # ")
        program, *pipes = (shlex.split(part) for part in text.split(" | "))
        if program[0] != "redis-cli" or len(pipes) > 2:
            raise ValueError(text)
        columns, is_sorted = 1, False
        for words in pipes:
            match words:
                case ["paste", *dashes] if set(dashes) == {"-"}:
                    columns = len(dashes)
                case ["sort"]:
                    is_sorted = True
                case _:
                    raise ValueError(text)
        return cls([word for word in program[1:] if word != "--raw"], columns, is_sorted, comment.strip())

    def piped(self, lines: list[str]) -> list[str]:
        """What comes out of the pipe."""
        pasted = ["\t".join(lines[at : at + self.columns]) for at in range(0, len(lines), self.columns)]
        return sorted(pasted) if self.is_sorted else pasted


def raw(reply: Any) -> Iterator[str]:
    """The lines that `redis-cli --raw` prints of a reply."""
    match reply:
        case list():
            for each in reply or [None]:
                yield from raw(each)
        case None:
            yield ""
        case bytes():
            yield from reply.decode().split("\n")
        case _:
            yield str(reply)


class Terminal:
    """One connection to the server of a story."""

    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint.from_url(url)
        self._connection = ScriptConnection(self._endpoint, give_up_after_s=60)

    async def __aenter__(self) -> Self:
        await self._connection.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def run(self, line: Line, meanwhile: Callable[[], Awaitable[Any]]) -> list[str]:
        """What is printed; of SUBSCRIBE, what comes until `meanwhile` is over."""
        if line.words[0] == "SUBSCRIBE":
            return line.piped(await self._heard(line.words[1], meanwhile))
        await meanwhile()
        return line.piped(list(raw(await self.command(*line.words))))

    async def command(self, *words: str) -> Any:
        """The reply as it comes."""
        return await self._connection.command(*words)

    async def _heard(self, channel: str, meanwhile: Callable[[], Awaitable[Any]]) -> list[str]:
        heard, marked, marker = list[bytes](), asyncio.Event(), new_token().encode()

        def hear(message: bytes | None) -> None:
            if message == marker:
                marked.set()
            elif message is not None and not marked.is_set():
                heard.append(message)

        subscriptions = Subscriptions(self._endpoint)
        try:
            await subscriptions.open(channel, hear)
            await meanwhile()
            # the last to come: what was published before is here then
            await self.command("PUBLISH", channel, marker.decode())
            async with asyncio.timeout(60):
                await marked.wait()
        finally:
            await subscriptions.close()
        return ["subscribe", channel, "1", *(word for each in heard for word in ("message", channel, each.decode()))]
