"""How to reach Redis, and one open connection to it: the only file that knows redis-py's connections.

redis-py parses the URL, connects, authenticates, does TLS and selects the database. From then on memable is the
transport's protocol itself: reading a reply with redis-py costs up to 15 µs (version 8), with hiredis alone less than
one, and hiredis hands over an error's whole text, from which redis-py cuts the code. A stream's reader in between costs
a turn of the loop for each arrival, and a turn is a system call.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

import hiredis
import redis
import redis.asyncio.connection as async_connections
import redis.asyncio.retry
import redis.connection as sync_connections
import redis.exceptions
import redis.retry
from redis.backoff import NoBackoff

from memable.errors import StorageError

CONNECT_S = 5.0
FIRST_CONNECT_S = 3.0
"""For how long a worker tries to reach Redis before it says that it cannot, and ends."""

BACKOFF_CAP_S = 1.0
ANSWER_S = 10.0
"""How long a server may stay silent while an answer is due, before the connection counts as lost."""

STOPPED_S = 0.5
"""A timer that is late by more tells that this process did not run: it was stopped, or its loop blocked."""

OUTAGES = frozenset(
    {
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    }
)
"""Codes by which a server says that it cannot serve now: worth trying again, unlike every other refusal."""

Word = bytes | str | int | float

# its own annotation is a tuple of exactly one word
_pack = cast("Callable[[Sequence[Word]], bytes]", hiredis.pack_command)
_FORBIDDEN_IN_SCRIPT = re.compile(r"ACL failure in script|user executing the script can't|has no permissions to")
_POOL_OPTIONS = ("max_connections", "timeout")
_INCOMPLETE = object()

Take = Callable[[list[Any]], None]


class ServerRefused(StorageError):
    """The server answered, and refused: `code` is the first word of its text (`NOGROUP`, `WRONGTYPE`, `ERR`, …)."""

    def __init__(self, safe_url: str, what: str, text: str) -> None:
        super().__init__(f"Redis at {safe_url} refused {what}: {text}")
        self.text = text
        self.code = text.partition(" ")[0]

    @property
    def is_forbidden(self) -> bool:
        """Whether the user has no right to it; what a script may not do is told in other words by each server."""
        return self.code == "NOPERM" or _FORBIDDEN_IN_SCRIPT.search(self.text) is not None


class EndpointWrong(StorageError):
    """Somebody answers at this address, and will not serve us until the URL (or the server) is changed."""


class Refusal:
    """An error reply as it came, before it is known whose error it is."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


def backoff_s(attempt: int) -> float:
    """The wait before attempt number `attempt` (from 0, which does not wait): doubling, capped at 1 s, with jitter."""
    if attempt <= 0:
        return 0.0
    return min(BACKOFF_CAP_S, 0.05 * 2.0 ** min(attempt - 1, 10)) * random.uniform(0.5, 1.0)


def pack(words: Sequence[Word]) -> bytes:
    """One command as it goes over the wire; `TypeError` for what Redis has no form for."""
    try:
        return _pack(words)
    except TypeError:
        # hiredis takes no subclass of int: an IntEnum is one, and so is bool, which would silently become a number
        plain = tuple(int(word) if isinstance(word, int) and not isinstance(word, bool) else word for word in words)
        return _pack(plain)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where Redis is and how to log in; makes connections. Its text and `repr` never show the credentials."""

    url: str = field(repr=False)
    client_name: str = "memable"

    @classmethod
    def from_url(cls, url: str, *, client_name: str = "memable") -> Endpoint:
        """The endpoint that `url` names; `StorageError`, one line without the URL's text, when it names none."""
        endpoint = cls(url, client_name)
        try:
            reason = _why_wrong(url)
            if reason is None:
                endpoint.connection()
        except TypeError as error:
            # redis-py hands unknown options of the URL to the constructor, whose text ends with the option's name
            reason = f"it has an option that redis-py does not know ({str(error).rpartition(' ')[2]})"
        except (ValueError, redis.exceptions.RedisError) as error:
            reason = f"redis-py cannot use it ({type(error).__name__})"
        if reason is None:
            return endpoint
        raise StorageError(
            f"the Redis URL is wrong: {reason}; write redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH"
        ) from None

    @property
    def safe_url(self) -> str:
        """The address for messages, without user, password and options."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return f"unix://{parts.path}"
        host = parts.hostname or "localhost"
        host = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{host}:{parts.port or 6379}{parts.path.rstrip('/')}"

    def connection(self) -> async_connections.AbstractConnection:
        """A connection that is not connected yet, without retries and without a timeout of its own."""
        options = self._options(async_connections.parse_url)
        kind = options.pop("connection_class", async_connections.Connection)
        options["retry"] = redis.asyncio.retry.Retry(NoBackoff(), 0)
        # with one, redis-py 5 writes under `wait_for`, which in Python 3.11 can swallow a cancellation; and version 8's
        # default would break long blocking reads
        options["socket_timeout"] = None
        return cast("async_connections.AbstractConnection", kind(**options))

    def sync_client(self) -> redis.Redis:
        """A synchronous client with a connection of its own, for a thread; without retries, with a timeout."""
        options = self._options(sync_connections.parse_url)
        kind = options.pop("connection_class", sync_connections.Connection)
        options["retry"] = redis.retry.Retry(NoBackoff(), 0)
        options["socket_timeout"] = CONNECT_S
        # `from_pool`, since closing a client that was only given a pool leaves its connections open
        return redis.Redis.from_pool(sync_connections.ConnectionPool(connection_class=kind, **options))

    def _options(self, parse_url: Callable[[str], Any]) -> dict[str, Any]:
        parsed = cast("Mapping[str, Any]", parse_url(self.url))
        options = {name: value for name, value in parsed.items() if name not in _POOL_OPTIONS}
        if "path" not in options:
            options["socket_keepalive"] = True
        # what the URL says of these is overruled: redis-py's own retries would repeat what is not idempotent, and
        # versions differ in their defaults
        options.update(
            client_name=self.client_name,
            protocol=2,
            decode_responses=False,
            retry_on_timeout=False,
            retry_on_error=[],
            health_check_interval=0,
            socket_connect_timeout=CONNECT_S,
        )
        return options


def _why_wrong(url: object) -> str | None:
    """What redis-py would refuse with the URL (and the password) in its text, or would silently take for database 0."""
    if not isinstance(url, str) or not url:
        return "it is empty, or no text"
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - a property that raises
    except ValueError:
        return "its host or port cannot be read (characters such as / and @ in a password are written %2F and %40)"
    if parts.scheme not in ("redis", "rediss", "unix"):
        return "it must begin with redis://, rediss:// or unix://"
    if parts.scheme == "unix":
        return None if parts.path else "it has no path"
    database = parts.path.strip("/")
    return None if not database or database.isdecimal() else "its database is no number"


class Wire(asyncio.Protocol):
    """One open connection: packed commands out, replies in, in order. Nothing is retried here.

    Replies are kept for `replies`, or handed to whom `deliver` names, in the turn in which they arrive.
    """

    def __init__(self, endpoint: Endpoint, connection: async_connections.AbstractConnection) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._parser = hiredis.Reader(replyError=cast("Callable[[str], Exception]", Refusal), notEnoughData=_INCOMPLETE)
        self._found: list[Any] = []
        self._take: Take = self._keep
        self._came: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        # redis-py has no public way to its streams; both names are the same in versions 5.3 to 8
        reader = cast("asyncio.StreamReader", connection._reader)
        self._transport = cast("asyncio.StreamWriter", connection._writer).transport
        self._before = self._transport.get_protocol()
        self._transport.set_protocol(self)
        if self._transport.is_closing() or reader.at_eof() or reader.exception() is not None:
            # told to the protocol before this one, with the last reply to the login: nobody will say it again
            self._lose(self._was_closed())

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Wire:
        """A connection over which the server has said that it serves; else `StorageError`, soon."""
        connection = endpoint.connection()
        try:
            async with asyncio.timeout(CONNECT_S):
                connect = cast("Callable[[], Awaitable[None]]", connection.connect)
                await connect()
                wire = cls(endpoint, connection)
                answer = await wire.exchange("PING")
            # a user whose rights do not include PING can still be served
            if isinstance(answer, Refusal) and answer.code != "NOPERM":
                raise ServerRefused(endpoint.safe_url, "to serve", answer.text)
        except BaseException as error:
            with contextlib.suppress(Exception):
                await connection.disconnect(nowait=True)
            if isinstance(error, Exception) and not isinstance(error, StorageError):
                raise _unreachable(endpoint, error) from error
            raise
        return wire

    def write(self, data: bytes) -> None:
        """Send it; when the connection is lost already, who waits for replies is told."""
        # uvloop raises on a closed transport, in the turn before its protocol is told
        if self._lost is None and not self._transport.is_closing():
            self._transport.write(data)

    @classmethod
    async def first(cls, endpoint: Endpoint, limit_s: float, *, waits_out_outages: bool) -> Wire:
        """A connection within `limit_s`; what waiting cannot mend is told at once.

        A server that says that it cannot serve yet (it reads its data, say) is the right one: with `waits_out_outages`
        it is given as long as it needs. A process that was stopped meanwhile begins anew.
        """
        loop = asyncio.get_running_loop()
        last, attempt = f"no answer within {limit_s:g} s; check the URL, and that the server runs", 0
        while True:
            limit = asyncio.timeout(limit_s)
            try:
                async with limit:
                    while True:
                        try:
                            return await cls.open(endpoint)
                        except EndpointWrong:
                            raise
                        except StorageError as error:
                            if waits_out_outages and isinstance(error, ServerRefused) and error.code in OUTAGES:
                                limit.reschedule(None)  # while it loads it may take seconds to say so again
                            elif limit.when() is None:
                                limit.reschedule(loop.time() + limit_s)
                            last, attempt = str(error), attempt + 1
                        await asyncio.sleep(backoff_s(attempt))
            except TimeoutError:
                if loop.time() - (limit.when() or 0.0) > STOPPED_S:
                    continue  # nobody was asked while this process was stopped
                raise StorageError(last if attempt else f"cannot reach Redis at {endpoint.safe_url}: {last}") from None

    async def exchange(self, *words: Word) -> Any:
        """Send one command and read its reply; only while nothing else is on its way."""
        self.write(pack(words))
        return (await self.replies())[0]

    async def replies(self) -> list[Any]:
        """The replies that have come, at least one; `StorageError` when the connection is lost."""
        while not self._found:
            await self._news()
        found, self._found = self._found, []
        return found

    async def deliver(self, take: Take) -> NoReturn:
        """Call `take` with replies as they arrive; raise what ends that: the loss of the connection, or `take`."""
        self._take = take
        found, self._found = self._found, []
        try:
            if found:  # between the first call and this one
                take(found)
            while True:
                await self._news()
        finally:
            self._take = _nobody

    async def _news(self) -> None:
        """Return when `_keep` has found something, raise when the connection is lost; for one waiter at a time."""
        if self._lost is None:
            self._came = asyncio.get_running_loop().create_future()
            try:
                await self._came
            finally:
                self._came = None
        if self._lost is not None and not self._found:
            raise self._lost

    def _keep(self, replies: list[Any]) -> None:
        self._found += replies
        self._wake()

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def _lose(self, why: Exception) -> None:
        if self._lost is None:
            self._lost = why
            self._wake()

    def _was_closed(self) -> StorageError:
        return StorageError(f"Redis at {self._endpoint.safe_url} closed the connection")

    # --- what the transport tells

    def data_received(self, data: bytes) -> None:
        if self._lost is not None:
            return
        gets, replies = self._parser.gets, list[Any]()
        try:
            self._parser.feed(data)
            while (reply := gets()) is not _INCOMPLETE:
                replies.append(reply)
            if replies:
                self._take(replies)
        except hiredis.HiredisError as error:
            self._lose(_unreachable(self._endpoint, error))
        except Exception as error:  # of `take`
            self._lose(error)

    def eof_received(self) -> None:
        self._lose(self._was_closed())

    def connection_lost(self, exc: Exception | None) -> None:
        # redis-py, when it closes, waits until its own protocol is told
        self._before.connection_lost(exc)
        if exc is None:
            self._lose(self._was_closed())
        else:
            self._lose(StorageError(f"the connection to Redis at {self._endpoint.safe_url} broke: {exc}"))

    @property
    def unsent_bytes(self) -> int:
        """How much is written and has not left yet."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cut it at once; who waits for replies is told that it is lost."""
        self._transport.abort()

    async def close(self) -> None:
        """Close it, lost or not; never raises."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1.0):
                await self._connection.disconnect()


def _nobody(_: list[Any]) -> None:
    pass


def _unreachable(endpoint: Endpoint, error: Exception) -> StorageError:
    """What a failure to connect means: `EndpointWrong` where trying again cannot help."""
    where = endpoint.safe_url
    # over a unix socket, redis-py 5 logs in while it connects, and wraps what the server says to that
    while isinstance(error, redis.exceptions.ConnectionError) and isinstance(error.__cause__, redis.RedisError):
        error = error.__cause__
    if isinstance(error, redis.exceptions.InvalidResponse | hiredis.HiredisError):
        return EndpointWrong(f"what answers at {where} is not Redis: check host and port in the URL")
    if isinstance(error, redis.exceptions.AuthenticationError):
        said = str(error).rstrip(".")
        return EndpointWrong(f"Redis at {where} refused the login: {said}; check user and password in the URL")
    if isinstance(error, redis.exceptions.ResponseError) and str(error).partition(" ")[0] in OUTAGES:
        return ServerRefused(where, "to serve", str(error))
    if isinstance(error, redis.exceptions.ResponseError | redis.exceptions.DataError):
        return EndpointWrong(f"Redis at {where} refused the connection: {error}; check the URL")
    reason = str(error).rstrip(".") or f"no answer within {CONNECT_S:g} s"
    return StorageError(f"cannot reach Redis at {where}: {reason}; check the URL, and that the server runs")
