"""What each part of the store has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from memable import lua
from memable.calls import AnyScript
from memable.keys import Keys


class Connection(Protocol):
    """What the store needs of a connection: see connection.py."""

    def call(self, script: AnyScript, arguments: Sequence[lua.Argument]) -> asyncio.Future[Any]: ...

    def command(self, *words: lua.Argument) -> asyncio.Future[Any]: ...


class StoreBase:
    """The operations of one namespace go over one connection."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self.connection = connection
        self.keys = keys
