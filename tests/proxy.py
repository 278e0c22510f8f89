"""A TCP proxy in front of a Redis that loses connections where a test wants it to."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum, auto
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Cut(Enum):
    """Where a connection is cut."""

    REQUEST = auto()
    """The server has not seen the request."""
    REPLY = auto()
    """The server has carried it out, and the client has not seen the reply."""
    INSIDE_REPLY = auto()
    """The client has seen the first half of what came back."""


class Proxy:
    """Passes bytes both ways between its own port and `upstream` (a redis:// or unix:// URL), until told otherwise."""

    def __init__(self, upstream: str, *, keeps_requests: bool = True) -> None:
        self._upstream = urlsplit(upstream)
        self._keeps_requests = keeps_requests
        self._listener: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._cut: tuple[Cut, asyncio.Future[None]] | None = None
        self._turns_away = False
        self.requests: list[bytes] = []
        """What came from clients, chunk by chunk as it was read."""
        self.turned_away = 0

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
        return f"redis://127.0.0.1:{self._port}"

    async def listen(self) -> None:
        """Take connections, on the same port as before."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
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
        pumps = [
            asyncio.create_task(self._pump_requests(reader, server_writer)),
            asyncio.create_task(self._pump_replies(server_reader, writer)),
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

    async def _pump_requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                if self._keeps_requests:
                    self.requests.append(data)
                await self._is_open.wait()
                if server in self._frozen:
                    continue
                if self._takes(Cut.REQUEST):
                    return
                server.write(data)
                await server.drain()

    async def _pump_replies(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                writer.write(data)
                await writer.drain()

    def _takes(self, where: Cut) -> bool:
        """Whether the cut that is asked for is here and now; then it is done."""
        if self._cut is None or self._cut[0] is not where or self._cut[1].cancelled():
            return False
        self._cut[1].set_result(None)
        self._cut = None
        return True
