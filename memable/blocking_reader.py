"""Reads that block in the server (`XREADGROUP … BLOCK`), on a connection of their own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from typing import Any

from memable.endpoint import OUTAGES, Endpoint, Refusal, ServerRefused, Wire, Word, backoff_s
from memable.errors import StorageError

logger = logging.getLogger("memable.connection")

CLOSE_S = 2.0


class BlockingReader:
    """One read at a time, and nothing that the server gave is lost with a caller that was cancelled.

    A read that has been sent is always read to its end: `XREADGROUP` has then given entries to this consumer, whether
    somebody waits or not. The reply that a cancelled caller left behind is what the next `read` or `close` hands back.
    """

    def __init__(self, endpoint: Endpoint, *, silence_s: float = 30.0) -> None:
        """`silence_s`: how long a server may say nothing before it counts as lost; longer than any BLOCK in use."""
        self._endpoint = endpoint
        self._silence_s = silence_s
        self._wire: Wire | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._is_sent = False
        self._is_awaited = False
        self._is_closed = False
        self._attempt = 0
        self._is_troubled = False
        self.client_id: int | None = None
        """Redis's number of this connection, for CLIENT UNBLOCK: a read is ended from outside, never cancelled."""

    async def read(self, *words: Word) -> Any:
        """The reply to the command, or the one that a cancelled caller left behind.

        A lost connection is a `StorageError`; the next read connects again, after a back-off that grows with each loss.
        What the server refuses is `ServerRefused`, with its `code`.
        """
        if self._is_closed:
            raise StorageError(f"the blocking connection to {self._endpoint.safe_url} is closed")
        if self._is_awaited:
            raise RuntimeError("a BlockingReader reads one thing at a time")
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(
                self._exchange(words), name="memable blocking read", context=contextvars.Context()
            )
        reading = self._reading
        self._is_awaited = True
        try:
            await asyncio.wait([reading])
            self._reading = None
        finally:
            self._is_awaited = False
        if reading.cancelled():
            raise StorageError(f"the blocking connection to {self._endpoint.safe_url} was closed")
        return reading.result()

    async def _exchange(self, words: tuple[Word, ...]) -> Any:
        try:
            if self._wire is None:
                await asyncio.sleep(backoff_s(self._attempt))
                self._wire = await Wire.open(self._endpoint)
                async with asyncio.timeout(self._silence_s):
                    client_id = await self._wire.exchange("CLIENT", "ID")
                # a user may have no right to ask
                self.client_id = client_id if isinstance(client_id, int) else None
            self._is_sent = True
            async with asyncio.timeout(self._silence_s):
                reply = await self._wire.exchange(*words)
        except (StorageError, TimeoutError) as error:
            raise await self._lost(error) from error
        finally:
            self._is_sent = False
        if isinstance(reply, Refusal):
            refused = ServerRefused(self._endpoint.safe_url, str(words[0]), reply.text)
            if refused.code in OUTAGES:
                # after a failover the address may lead to another server
                raise await self._lost(refused)
            # a server that refuses whatever it is asked must not be asked in a hot loop either
            await asyncio.sleep(backoff_s(self._attempt))
            self._attempt += 1
            raise refused
        self._attempt = 0
        if self._is_troubled:
            self._is_troubled = False
            logger.warning("the blocking connection to %s is back", self._endpoint.safe_url)
        return reply

    async def _lost(self, error: Exception) -> StorageError:
        self._attempt += 1
        wire, self._wire, self.client_id = self._wire, None, None
        if wire is not None:
            wire.abort()
            await wire.close()
        if not isinstance(error, StorageError):
            error = StorageError(f"Redis at {self._endpoint.safe_url} said nothing for {self._silence_s:g} s")
        if not self._is_troubled:
            self._is_troubled = True
            logger.warning("the blocking connection is lost: %s", error)
        return error

    async def close(self) -> Any:
        """Close, after the end of a read under way (at most 2 s); hands back a reply that nobody took, or None."""
        self._is_closed = True
        reading, reply = self._reading, None
        if reading is not None:
            if self._is_sent:
                await asyncio.wait([reading], timeout=CLOSE_S)
            if reading.done() and not reading.cancelled() and not self._is_awaited:
                with contextlib.suppress(StorageError):
                    reply = reading.result()
            reading.cancel()
            await asyncio.wait([reading])
        if self._wire is not None:
            await self._wire.close()
            self._wire = None
        return reply
