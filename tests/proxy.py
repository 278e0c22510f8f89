"""A TCP proxy in front of a Redis that loses connections where a test wants it to."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from enum import Enum, auto
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import hiredis


class Cut(Enum):
    """Where a connection is cut."""

    REQUEST = auto()
    """The server has not seen the request."""
    REPLY = auto()
    """The server has carried it out, and the client has not seen the reply."""
    INSIDE_REPLY = auto()
    """The client has seen the first half of what came back."""


Wanted = Callable[[list[bytes]], bool]
"""Whether it is this request, word by word."""

_INCOMPLETE: Final = object()


class _Dialogue:
    """The requests and replies of one connection, counted, so that one reply can be lost: that one, whole, no other."""

    def __init__(self) -> None:
        self._requests: Any = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._replies: Any = hiredis.Reader(notEnoughData=_INCOMPLETE)
        self._asked = self._answered = 0
        self._doomed: int | None = None
        self._held = b""

    def ask(self, data: bytes) -> Iterator[list[bytes]]:
        """Each request that is complete."""
        self._requests.feed(data)
        while (request := self._requests.gets()) is not _INCOMPLETE:
            self._asked += 1
            yield request

    def lose_reply(self) -> None:
        """To the request that came last."""
        if self._doomed is None:
            self._doomed = self._asked

    def answer(self, data: bytes) -> tuple[bytes, bytes]:
        """What may pass on, and the reply to be lost, once it is there."""
        if self._doomed is None:
            self._replies.feed(data)
            while self._replies.gets() is not _INCOMPLETE:
                self._answered += 1
            return data, b""
        begin = 0
        for at in range(len(data)):
            self._replies.feed(data[at : at + 1])
            if self._replies.gets() is not _INCOMPLETE:
                self._answered += 1
                if self._answered == self._doomed:
                    return data[:begin], self._held + data[begin : at + 1]
                begin = at + 1
        if self._answered < self._doomed - 1:
            return data, b""
        self._held += data[begin:]
        return data[:begin], b""


class Proxy:
    """Passes bytes both ways between its own port and `upstream` (a redis:// or unix:// URL), until told otherwise."""

    def __init__(self, upstream: str, *, keeps_requests: bool = True, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what clients speak to the proxy."""
        self._upstream = urlsplit(upstream)
        self._tls = tls
        self._keeps_requests = keeps_requests
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._cut: tuple[Cut, asyncio.Future[None]] | None = None
        self._cut_each: tuple[Cut, Wanted] | None = None
        self._turns_away = False
        self.requests: list[bytes] = []
        """What came from clients, chunk by chunk as it was read."""
        self.turned_away = 0
        self.cuts = 0
        """How many connections `cut_each` has cut."""

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop_listening()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        return f"{'redis' if self._tls is None else 'rediss'}://127.0.0.1:{self._port}"

    async def listen(self) -> None:
        """Take connections, on the same port as before."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._listener.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """From now on connecting is refused; connections that stand are left alone."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def turn_away(self, on: bool = True) -> None:
        """Take new connections and close them at once, counted in `turned_away`; or stop doing so."""
        self._turns_away = on

    def cut(self) -> None:
        """Cut all connections now."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def cut_next(self, where: Cut) -> asyncio.Future[None]:
        """Cut the next connection on which something passes; the future is done when that has happened.

        Cancelling the future withdraws the wish.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cut = (where, done)
        return done

    def cut_each(self, where: Cut, wanted: Wanted) -> None:
        """From now on, cut every connection on which a request passes that is `wanted`, exactly there.

        Whatever else is on its way there is lost with it.
        """
        self._cut_each = (where, wanted)

    def pause(self) -> None:
        """Hold everything back, on old and new connections."""
        self._is_open.clear()

    def resume(self) -> None:
        self._is_open.set()

    def freeze(self) -> None:
        """Pass nothing more on the connections that stand, and never close them: a host that has vanished."""
        self._frozen |= self._writers

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._turns_away:
            self.turned_away += 1
            writer.transport.abort()
            return
        try:
            if self._upstream.scheme == "unix":
                server_reader, server_writer = await asyncio.open_unix_connection(self._upstream.path)
            else:
                server_reader, server_writer = await asyncio.open_connection(
                    self._upstream.hostname, self._upstream.port
                )
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        # who keeps no requests wants to be quick, not exact
        dialogue = _Dialogue() if self._keeps_requests else None
        pumps = [
            asyncio.create_task(self._pump_requests(reader, server_writer, dialogue)),
            asyncio.create_task(self._pump_replies(server_reader, writer, dialogue)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
                self._tasks.discard(pump)
            for each in (writer, server_writer):
                self._writers.discard(each)
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _pump_requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, dialogue: _Dialogue | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._keeps_requests:
                    self.requests.append(data)
                await self._is_open.wait()
                if server in self._frozen:
                    continue
                if self._takes(Cut.REQUEST) or (dialogue is not None and self._loses_request(dialogue, data)):
                    return
                server.write(data)
                await server.drain()

    async def _pump_replies(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, dialogue: _Dialogue | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(1 << 20):
                await self._is_open.wait()
                if writer in self._frozen:
                    continue
                if self._takes(Cut.REPLY):
                    return
                if self._takes(Cut.INSIDE_REPLY):
                    writer.write(data[: max(1, len(data) // 2)])
                    return
                lost = b""
                if dialogue is not None:
                    data, lost = dialogue.answer(data)
                if lost:
                    self.cuts += 1
                    if self._cut_each is not None and self._cut_each[0] is Cut.INSIDE_REPLY:
                        data += lost[: max(1, len(lost) // 2)]
                writer.write(data)
                if lost:
                    return
                await writer.drain()

    def _loses_request(self, dialogue: _Dialogue, data: bytes) -> bool:
        """Whether these requests are lost; when one of them is to lose its reply, that is marked."""
        is_lost = False
        for request in dialogue.ask(data):
            if self._cut_each is not None and self._cut_each[1](request):
                if self._cut_each[0] is Cut.REQUEST:
                    is_lost = True
                else:
                    dialogue.lose_reply()
        self.cuts += is_lost
        return is_lost

    def _takes(self, where: Cut) -> bool:
        """Whether the cut that is asked for is here and now; then it is done."""
        if self._cut is None or self._cut[0] is not where or self._cut[1].cancelled():
            return False
        self._cut[1].set_result(None)
        self._cut = None
        return True
