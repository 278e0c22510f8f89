"""Following an instance: subscribe first, then read its state, then follow its channel.

In this order nothing that happens in between is missed. Pub/sub may lose messages, so the state is read anew whenever
the subscription was interrupted, and slowly all the time. Versions order what comes by both ways: nothing ever goes
back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from enum import Enum
from typing import Final

from memable.endpoint import ServerRefused
from memable.errors import NotStarted, StorageError
from memable.keys import InstanceKeys
from memable.pubsub import Subscriptions
from memable.reading import Reader, Seen, parse_event

_log = logging.getLogger("memable.watching")

REREAD_S: Final = 30.0
"""How long a state is believed that no event confirms."""

_AGAIN_S: Final = 1.0
"""How long to wait before reading again what could not be read."""

_MAX_UNREAD: Final = 256
"""Events kept for a slow reader; of more the oldest go, since the newest tells where the instance is."""


class Aim(Enum):
    """What an instance is waited for to be."""

    AT_REST = "at rest"
    OVER = "over"

    def is_reached_by(self, seen: Seen) -> bool:
        return seen.state.is_at_rest if self is Aim.AT_REST else seen.says_how_it_ended


class _Inbox:
    """What one watcher has heard and not read yet; `None` asks it to read the state."""

    def __init__(self) -> None:
        self._messages: deque[bytes | None] = deque(maxlen=_MAX_UNREAD)
        self._waiter: asyncio.Future[None] | None = None
        self.is_closed = False

    def put(self, message: bytes | None) -> None:
        self._messages.append(message)
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self, timeout_s: float) -> bytes | None:
        """The next message; `None` as well when none came in time."""
        if not self._messages and not self.is_closed:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake)
            try:
                await waiter
            finally:
                timer.cancel()
        return self._messages.popleft() if self._messages else None


class Watcher:
    """Follows instances for all callers of one client, over one pub/sub connection."""

    def __init__(self, subscriptions: Subscriptions, reader: Reader) -> None:
        self._subscriptions, self._reader = subscriptions, reader
        self._inboxes: set[_Inbox] = set()

    def close(self) -> None:
        """End every `follow` with `NotStarted`."""
        for inbox in self._inboxes:
            inbox.close()

    async def follow(self, keys: InstanceKeys) -> AsyncGenerator[Seen]:
        """The instance as it is now, then each later state, in order, until a terminal one.

        `InstanceNotFound` if there is none, or none any more. An outage of Redis is waited out, once the first state is
        known. Close the iterator when leaving it early.
        """
        inbox = _Inbox()
        self._inboxes.add(inbox)
        subscription = None
        try:
            subscription = await self._subscriptions.open(keys.events, inbox.put)
            seen = await self._reader.seen(keys)
            version = seen.version
            yield seen
            while not seen.state.is_terminal:
                message = await inbox.get(REREAD_S)
                if inbox.is_closed:
                    raise NotStarted(f"the client was closed while {keys.name} was waited for")
                news = None if message is None else parse_event(message)
                if news is not None:
                    if news.version <= version:
                        continue
                else:
                    reread = await self._reread(keys, inbox)
                    if reread is None:
                        continue
                    news = reread
                    if news.version < version and not news.state.is_terminal:
                        # Redis has lost what it had told us (a failover): what comes next counts from here, but what
                        # has been shown is not taken back
                        version = news.version
                        continue
                    if news.version == version:
                        continue
                seen, version = news, news.version
                yield seen
        finally:
            self._inboxes.discard(inbox)
            if subscription is not None:
                subscription.close()

    async def _reread(self, keys: InstanceKeys, inbox: _Inbox) -> Seen | None:
        """The state as it is now; nothing while Redis is away, after a little while."""
        try:
            return await self._reader.seen(keys)
        except ServerRefused:
            raise
        except StorageError as error:
            if not inbox.is_closed:
                _log.debug("%s could not be read: %s", keys.name, error)
                asyncio.get_running_loop().call_later(_AGAIN_S, inbox.put, None)
            return None

    async def first(self, keys: InstanceKeys, aim: Aim, timeout_s: float | None) -> Seen:
        """The first state that reaches `aim`; `InstanceNotFound`, or `TimeoutError`. With no time left it asks once."""
        if timeout_s is None or timeout_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await self._first(keys, aim)
        elif aim.is_reached_by(seen := await self._reader.seen(keys)):
            return seen
        raise TimeoutError(f"instance {keys.name} is not {aim.value} after {timeout_s:g} s")

    async def _first(self, keys: InstanceKeys, aim: Aim) -> Seen:
        while True:
            async with aclosing(self.follow(keys)) as states:
                async for seen in states:
                    if aim.is_reached_by(seen):
                        return seen
            # over, and what it ended with was too large for the event
            seen = await self._reader.seen(keys)
            if aim.is_reached_by(seen):
                return seen
            # resumed meanwhile: that was not the end
