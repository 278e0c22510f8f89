"""Calls on their way to Redis: what the batching connection keeps in line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from memable.endpoint import Word, pack
from memable.errors import StorageError


class AnyScript(Protocol):
    """What a call needs to know of a script."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def sha(self) -> str: ...
    @property
    def key_count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Script:
    """A script by its parts; `sha` is the SHA-1 of `source` in hexadecimal."""

    name: str
    source: str
    sha: str
    key_count: int


class Call:
    """A command from being asked for to being answered."""

    __slots__ = ("expires_s", "future", "packed", "refusals", "script", "words")

    def __init__(
        self,
        words: tuple[Word, ...],
        packed: bytes,
        script: AnyScript | None,
        future: asyncio.Future[Any],
        expires_s: float,
    ) -> None:
        self.words, self.packed, self.script = words, packed, script
        self.future, self.expires_s = future, expires_s
        self.refusals = 0

    @property
    def name(self) -> str:
        if self.script is not None:
            return f"script {self.script.name}"
        word = self.words[0]
        return word.decode(errors="replace") if isinstance(word, bytes) else str(word)

    def carry_source(self) -> None:
        """Send the script itself from now on, not its digest."""
        if self.script is not None and self.words[0] != "EVAL":
            self.words = ("EVAL", self.script.source, *self.words[2:])
            self.packed = pack(self.words)

    def fail(self, error: StorageError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
