"""A redis-py client that outlives its server: for arq, whose main loop ends with the first error of Redis.

redis-py's own retries do not cover what arq does: they give up while connecting, know a server that refuses (LOADING,
READONLY, MISCONF) only by some of its errors, and end a WATCH with an error that arq does not expect there. So three
places wait here: getting a connection, a command, and a pipeline.

Only for callers whose every command may be carried out twice. arq's may: a job's try is then counted twice, and a
deferral added twice, which its promise ("may be run more than once") has room for.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Final, NoReturn, TypeVar, cast

from redis.asyncio.client import Pipeline, Redis
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import (
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
    WatchError,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as NoAnswer

from memable.endpoint import FIRST_CONNECT_S, OUTAGES, Endpoint, EndpointWrong, Wire, _unreachable, backoff_s
from memable.errors import StorageError

_log = logging.getLogger("memable.arq")

T = TypeVar("T")

LAST_WORDS_S: Final = 5.0

_LOST: Final = (ConnectionLost, NoAnswer, OSError)
_REFUSED: Final = (ReadOnlyError, OutOfMemoryError, ClusterDownError, TryAgainError)
_PIPELINED: Final = re.compile(r"of pipeline caused error: \(['\"](\w+)")


def is_outage(error: Exception) -> bool:
    """Whether the server is away or cannot serve now, so that the same may work later."""
    if isinstance(error, (*_LOST, *_REFUSED)):
        return True
    if not isinstance(error, ResponseError):
        return False
    # redis-py puts what it was doing in front of the text of an error inside a pipeline
    text = str(error)
    found = _PIPELINED.search(text)
    return (found[1] if found else text.partition(" ")[0]) in OUTAGES


def _typed(untyped: Any) -> Callable[..., Awaitable[Any]]:
    """A method that redis-py has not annotated."""
    return cast("Callable[..., Awaitable[Any]]", untyped)


class Phase(Enum):
    """What the worker process is doing, on which depends how long it waits for Redis."""

    STARTING = auto()
    """A server that cannot be reached is told within seconds; one that was reached is waited for."""
    RUNNING = auto()
    """It is waited for, for ever."""
    STOPPING = auto()
    """The process is to end, whether Redis is there or not."""


class GaveUp(ConnectionLost):
    """Redis was away for longer than the phase allows."""


class EnduringPool(ConnectionPool):
    """Gives a connection when there is one to be had, and waits for Redis for as long as the phase allows."""

    def __init__(self, endpoint: Endpoint, not_started: Callable[[StorageError], NoReturn]) -> None:
        """`not_started` is told why Redis cannot be reached at the start, and ends the process."""
        super().__init__()
        self._endpoint = endpoint
        self._not_started = not_started
        self._phase = Phase.STARTING
        self._is_reached = False
        self._since_s = time.monotonic()
        self._away_since_s: float | None = None

    def enter(self, phase: Phase) -> None:
        """From now on wait as is right for `phase`."""
        self._phase, self._since_s = phase, time.monotonic()

    def make_connection(self) -> AbstractConnection:
        return self._endpoint.connection()

    async def get_connection(self, *_: Any, **__: Any) -> AbstractConnection:
        if self._phase is Phase.STARTING and not self._is_reached:
            await self._reach()
        return await self._outlast(super().get_connection)

    async def _reach(self) -> None:
        try:
            wire = await Wire.first(self._endpoint, FIRST_CONNECT_S, waits_out_outages=True)
        except StorageError as error:
            self._not_started(error)
        await wire.close()
        self._is_reached = True

    async def outlast(self, do: Callable[[], Awaitable[T]]) -> T:
        """What `do` returns, once it does not meet an outage; `GaveUp` when that takes too long."""
        result = await self._outlast(do)
        if self._away_since_s is not None:
            away_s, self._away_since_s = time.monotonic() - self._away_since_s, None
            if self._phase is Phase.RUNNING:
                _log.warning("Redis at %s serves arq again, after %.1f s", self._endpoint.safe_url, away_s)
        return result

    async def _outlast(self, do: Callable[[], Awaitable[T]]) -> T:
        attempt = 0
        while True:
            try:
                return await do()
            except GaveUp:
                raise
            except (*_LOST, ResponseError) as error:
                if not is_outage(error):
                    raise
                attempt += 1
                await self._wait(error, attempt)
                if isinstance(error, ReadOnlyError):
                    # a replica since a failover: the address may lead to the new primary by now
                    await self.disconnect(inuse_connections=False)

    async def _wait(self, error: Exception, attempt: int) -> None:
        reason = self._reason(error)
        delay_s = backoff_s(attempt)
        if self._phase is Phase.STARTING and isinstance(reason, EndpointWrong):
            self._not_started(reason)
        if self._phase is Phase.STOPPING and time.monotonic() + delay_s - self._since_s > LAST_WORDS_S:
            raise GaveUp(str(reason)) from error
        if self._away_since_s is None:
            self._away_since_s = time.monotonic()
            if self._phase is Phase.RUNNING:
                _log.warning("%s; arq waits for it", reason)
        await asyncio.sleep(delay_s)

    def _reason(self, error: Exception) -> StorageError:
        if isinstance(error, ResponseError):
            return StorageError(f"Redis at {self._endpoint.safe_url} cannot serve: {error}")
        return _unreachable(self._endpoint, error)


class EnduringClient(Redis):
    """A client whose commands and pipelines wait for Redis; what it gives up while stopping, it answers with None."""

    connection_pool: EnduringPool
    lost_watches = 0
    """How many transactions were given up because the connection was lost while watching."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        execute = _typed(super().execute_command)
        try:
            return await self.connection_pool.outlast(lambda: execute(*args, **options))
        except GaveUp:
            return None

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> EnduringPipeline:
        del shard_hint  # redis-py's relic
        return EnduringPipeline(self, transaction)


class EnduringPipeline(Pipeline):
    """Sends a transaction again until it is answered; one that began with a lost WATCH is a `WatchError` at its end."""

    connection_pool: EnduringPool

    def __init__(self, client: EnduringClient, transaction: bool) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, None)
        self._client = client
        self._watched: tuple[Any, ...] = ()
        self._is_watch_lost = False

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] == "WATCH":
            self._watched, self._is_watch_lost = args, False
        try:
            return await self.connection_pool.outlast(lambda: self._read(args, options))
        except GaveUp:
            return None

    async def _read(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        execute = _typed(super().immediate_execute_command)
        if self._is_watch_lost and not self.watching:
            # who watches goes on as before, and without a watch a command would be staged instead of answered
            await execute(*self._watched)
        try:
            return await execute(*args, **options)
        except WatchError as error:
            self._lose_watch()
            raise ConnectionLost(str(error)) from error

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        if self._is_watch_lost:
            await self.reset()
            raise WatchError("the connection was lost while watching")
        # each try ends by forgetting them
        commands, is_explicit, is_watching = self.command_stack, self.explicit_transaction, self.watching

        async def execute_once() -> list[Any]:
            self.command_stack, self.explicit_transaction = commands, is_explicit
            try:
                return await super(EnduringPipeline, self).execute(raise_on_error)
            except (*_LOST, ResponseError) as error:
                if not (is_watching and is_outage(error)):
                    raise
                self._lose_watch()
                raise WatchError("the server could not serve while watching") from error
            except WatchError:
                # of a key that has changed, or of a connection that was lost: redis-py does not say
                self._lose_watch()
                raise

        try:
            return await self.connection_pool.outlast(execute_once)
        except GaveUp:
            return [None] * len(commands)

    def _lose_watch(self) -> None:
        self._is_watch_lost = True
        self._client.lost_watches += 1

    async def reset(self) -> None:
        reset = _typed(super().reset)
        try:
            await reset()
        except _LOST:  # redis-py expects only one kind
            if self.connection is not None:
                await self.connection.disconnect()
            self.watching = False
            await reset()
