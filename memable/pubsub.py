"""One pub/sub connection, shared by all who listen in a process.

`open` returns when Redis has confirmed the subscription, so that its caller can subscribe, then read the state, and
miss nothing in between. After a lost connection every listener is called with None once it hears again: what was
published meanwhile is gone, and the state must be read anew.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from typing import Any

from memable.endpoint import ANSWER_S, Endpoint, EndpointWrong, Refusal, ServerRefused, Wire, backoff_s, pack
from memable.errors import StorageError

logger = logging.getLogger("memable.connection")

Listener = Callable[[bytes | None], None]

_PING_EVERY_S = ANSWER_S / 2
_CHANNELS_A_COMMAND = 1000
_STEADY_S = 1.0


class Subscription:
    """A listener on a channel, until `close`."""

    def __init__(self, owner: Subscriptions, channel: bytes, listener: Listener) -> None:
        self._owner, self.channel, self._listener = owner, channel, listener
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    def close(self) -> None:
        """Hear nothing any more, from this moment; Redis is told at the end of the loop turn."""
        if not self.is_closed:
            self.is_closed = True
            self._owner.forget(self)

    def hear(self, message: bytes | None) -> None:
        """Call the listener; its mistakes are logged, and harm no other."""
        if self.is_closed:
            return
        try:
            self._listener(message)
        except Exception:
            logger.exception("a listener on %s raised", self.channel.decode(errors="replace"))


class _Channel:
    """What we want of a channel, and how far Redis has followed."""

    __slots__ = ("is_asked", "subscriptions", "unconfirmed")

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.is_asked = False
        """Whether SUBSCRIBE, and no UNSUBSCRIBE since, was sent on this connection."""
        self.unconfirmed = 0
        """How many of both are not confirmed yet: the confirmation of an older one says nothing of the newest."""

    @property
    def is_live(self) -> bool:
        return self.is_asked and not self.unconfirmed


class Subscriptions:
    """Listens on channels over one connection, made when the first is opened and again whenever it is lost."""

    def __init__(self, endpoint: Endpoint, *, give_up_after_s: float | None = 10.0) -> None:
        """`give_up_after_s`: how long `open` waits for Redis's confirmation; None: for as long as Redis is away."""
        self.endpoint = self._endpoint = endpoint
        self._give_up_after_s = give_up_after_s
        self._channels: dict[bytes, _Channel] = {}
        self._dirty: dict[bytes, None] = {}
        self._wire: Wire | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._context = contextvars.Context()
        self._is_closed = False
        self._attempt = 0
        self._trouble: StorageError | None = None

    async def open(self, channel: str, listener: Listener) -> Subscription:
        """Call `listener` with every message from now on: when this returns, Redis has confirmed.

        The listener is called with None whenever messages may have been missed. `StorageError` when Redis does not
        confirm in time, or never will.
        """
        if self._is_closed:
            raise StorageError(f"the subscriptions to {self._endpoint.safe_url} are closed")
        subscription = Subscription(self, channel.encode(), listener)
        state = self._channels.setdefault(subscription.channel, _Channel())
        state.subscriptions.append(subscription)
        if state.is_live:
            subscription.confirmed.set_result(None)
        else:
            self._schedule(subscription.channel)
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(
                self._keep(), name="memable subscriptions", context=contextvars.Context()
            )
        try:
            async with asyncio.timeout(self._give_up_after_s):
                await subscription.confirmed
        except TimeoutError:
            subscription.close()
            raise StorageError(
                f"Redis at {self._endpoint.safe_url} did not confirm a subscription within {self._give_up_after_s:g} s "
                f"({self._trouble or 'it is connected, and silent'}); check that the server runs"
            ) from None
        except BaseException:
            subscription.close()
            raise
        return subscription

    async def close(self) -> None:
        """Hear nothing any more, and close the connection; whoever waits in `open` gets a `StorageError`."""
        self._is_closed = True
        self._fail_unconfirmed(StorageError(f"the subscriptions to {self._endpoint.safe_url} were closed"))
        for channel in self._channels.values():
            for subscription in channel.subscriptions:
                subscription.is_closed = True
        self._channels.clear()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    def forget(self, subscription: Subscription) -> None:
        """What `Subscription.close` does."""
        channel = self._channels.get(subscription.channel)
        if channel is not None and subscription in channel.subscriptions:
            channel.subscriptions.remove(subscription)
            if not channel.subscriptions:
                self._schedule(subscription.channel)

    # --- telling Redis

    def _schedule(self, channel: bytes) -> None:
        if not self._dirty:
            asyncio.get_running_loop().call_soon(self._flush, context=self._context)
        self._dirty[channel] = None

    def _flush(self) -> None:
        """Bring Redis's subscriptions in line with ours: what was closed and opened again in one turn is no change."""
        wire = self._wire
        if wire is None:
            # when the connection stands, all channels are subscribed
            self._drop_unused(self._dirty)
            self._dirty.clear()
            return
        add: list[bytes] = []
        remove: list[bytes] = []
        for name in self._dirty:
            channel = self._channels.get(name)
            if channel is None or bool(channel.subscriptions) == channel.is_asked:
                continue
            channel.is_asked = not channel.is_asked
            channel.unconfirmed += 1
            (add if channel.is_asked else remove).append(name)
        self._drop_unused(self._dirty)
        self._dirty.clear()
        for word, names in ((b"SUBSCRIBE", add), (b"UNSUBSCRIBE", remove)):
            for first in range(0, len(names), _CHANNELS_A_COMMAND):
                wire.write(pack((word, *names[first : first + _CHANNELS_A_COMMAND])))

    def _drop_unused(self, names: Iterable[bytes]) -> None:
        for name in names:
            channel = self._channels.get(name)
            if channel is not None and not (channel.subscriptions or channel.is_asked or channel.unconfirmed):
                del self._channels[name]

    # --- hearing

    async def _keep(self) -> None:
        while True:
            try:
                await self._listen()
            except StorageError as error:
                if self._trouble is None:
                    logger.warning("the pub/sub connection is lost: %s; trying again", error)
                self._trouble = error
                if isinstance(error, EndpointWrong | ServerRefused):
                    self._fail_unconfirmed(error)
            except Exception:
                logger.exception("the pub/sub connection to %s is given up for a new one", self._endpoint.safe_url)
            await asyncio.sleep(backoff_s(self._attempt))
            self._attempt += 1

    async def _listen(self) -> None:
        """Connect, subscribe to everything wanted, and hand out messages until the connection is lost."""
        wire = await Wire.open(self._endpoint)
        loop = asyncio.get_running_loop()
        opened_at_s = due_s = loop.time()
        is_asked = False
        timer: asyncio.TimerHandle | None = None

        def ping() -> None:
            # nothing else would tell of a server whose host has vanished; silence counts only once it was asked
            nonlocal timer, due_s, is_asked
            loop_was_blocked = loop.time() - due_s > _STEADY_S  # then an answer may lie in the socket, unread
            if is_asked and not loop_was_blocked:
                wire.abort()
                return
            is_asked = True
            wire.write(pack((b"PING",)))
            due_s = loop.time() + _PING_EVERY_S
            timer = loop.call_at(due_s, ping, context=self._context)

        try:
            ping()
            self._wire = wire
            self._dirty.update(dict.fromkeys(self._channels))
            self._flush()
            if not self._channels:
                self._announce_return()
            while True:
                replies = await wire.replies()
                is_asked = False
                for reply in replies:
                    self._take(reply)
        finally:
            if timer is not None:
                timer.cancel()
            self._wire = None
            if loop.time() - opened_at_s > _STEADY_S:
                self._attempt = 0
            for channel in self._channels.values():
                channel.is_asked, channel.unconfirmed = False, 0
            self._drop_unused(list(self._channels))
            await wire.close()

    def _take(self, reply: Any) -> None:
        if isinstance(reply, Refusal):
            raise ServerRefused(self._endpoint.safe_url, "a subscription", reply.text)
        if not isinstance(reply, list):
            return  # PONG, while nothing is subscribed
        kind, name, *rest = reply
        channel = self._channels.get(name)
        if channel is None:
            return
        if kind == b"message":
            for subscription in tuple(channel.subscriptions):
                subscription.hear(rest[0])
        elif kind in (b"subscribe", b"unsubscribe"):
            channel.unconfirmed -= 1
            if channel.is_live:
                self._announce_return()
                self._confirm(channel)
            else:
                self._drop_unused((name,))

    def _confirm(self, channel: _Channel) -> None:
        """Let those who wait in `open` go on; tell the others that they may have missed something."""
        for subscription in tuple(channel.subscriptions):
            if subscription.confirmed.done():
                subscription.hear(None)
            else:
                subscription.confirmed.set_result(None)

    def _announce_return(self) -> None:
        if self._trouble is not None:
            logger.warning("the pub/sub connection to %s is back", self._endpoint.safe_url)
            self._trouble = None

    def _fail_unconfirmed(self, error: StorageError) -> None:
        for channel in self._channels.values():
            for subscription in channel.subscriptions:
                if not subscription.confirmed.done():
                    subscription.confirmed.set_exception(StorageError(str(error)))
