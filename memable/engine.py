"""`Engine`: a client with a worker in the same process, for tests, scripts and small services."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from memable.client import Client, Online
from memable.embedded import TemporaryServer, ensure_server, leave_server
from memable.errors import NotStarted
from memable.runtime.runtime import Runtime
from memable.workflow import App

if TYPE_CHECKING:
    from types import TracebackType

    from memable.settings import Settings

_LOOK_EVERY_S: Final = 0.02


class Engine(Client):
    """A client and a worker, and where none is given a Redis, in one process.

    `Engine(app)` starts a private server that keeps nothing, whatever `MEMABLE_REDIS_URL` says. `Engine(app,
    data_dir=…)` uses the embedded server of that directory, which keeps what it has acknowledged through a kill -9 of
    everything; where `MEMABLE_REDIS_URL` is set, that server is used instead. `Engine(app, url=…)` uses a server that
    runs already.

    >>> app = App()
    >>> @app.workflow("greet")
    ... async def greet(ctx: Context, name: str) -> str:
    ...     return f"hello {name}"
    >>> async def main() -> str:
    ...     async with Engine(app) as engine:
    ...         invocation = await engine.invoke(greet, "world")
    ...         return await invocation.result()
    >>> asyncio.run(main())
    'hello world'

    Before `start()`, after `stop()` and after `wait_all()`, what makes new work raises `NotStarted`; registering a
    workflow after the start is a `RuntimeError`. `StorageError` at the start if no server can be had.
    """

    app: App

    def __init__(
        self,
        app: App,
        *,
        url: str | None = None,
        data_dir: str | Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        if not isinstance(app, App):
            raise TypeError(f"an Engine takes an App, not {app!r}")
        if url is not None and data_dir is not None:
            raise ValueError("an Engine takes a url or a data_dir, not both")
        super().__init__(url, app=app, settings=settings)
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._is_draining = False
        self._exits: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server if one is needed, connect, and begin to run instances. Twice is fine."""
        if self._exits is not None:
            return
        async with AsyncExitStack() as exits:
            settings = await self._settle(exits)
            await self._open(settings)
            exits.push_async_callback(self.aclose)
            self._runtime = self._new_runtime(settings)
            await self._runtime.start()
            # a private server takes its instances with it: there is nobody to hand them back to, and nothing to wait
            # for
            grace_s = 0.0 if self._is_private else settings.shutdown_grace
            exits.push_async_callback(self._runtime.stop, grace_s=grace_s)
            self._exits = exits.pop_all()
        self._is_draining = False

    def _new_runtime(self, settings: Settings) -> Runtime:
        return Runtime(self.app, settings)

    async def stop(self) -> None:
        """Take no more work, let runs end within `MEMABLE_SHUTDOWN_GRACE`, hand the rest back, and disconnect."""
        exits, self._exits = self._exits, None
        if exits is not None:
            await exits.aclose()

    async def close(self) -> None:
        """The same as `stop`."""
        await self.stop()

    async def wait_all(self) -> None:
        """Refuse new work, and return when nothing is queued or running.

        What is suspended stays suspended; what is delayed, or waits before a step's next attempt, is not waited for.
        """
        online = self._online()
        self._is_draining = True
        while True:
            if not await self._unfinished(online):
                return
            await asyncio.sleep(_LOOK_EVERY_S)  # other workers may run them too: nobody can tell us

    async def _unfinished(self, online: Online) -> int:
        """How many are running, or ready to run: each has an entry in a stream."""
        streams = [
            partition.stream(name)
            for partition in online.store.keys.partitions
            for name in await self._all_names(online)
        ]
        return sum(await asyncio.gather(*(online.connection.command("XLEN", stream) for stream in streams)))

    @property
    def _is_private(self) -> bool:
        return self._url is None and self._data_dir is None

    async def _settle(self, exits: AsyncExitStack) -> Settings:
        """The settings, with the URL of the server to use, which runs when this returns."""
        settings = self._load_settings()
        if self._is_private:
            server = TemporaryServer()
            exits.push_async_callback(asyncio.to_thread, server.stop)
            await asyncio.to_thread(server.start)
            return settings.model_copy(update={"redis_url": server.url})
        if self._data_dir is not None and not os.environ.get("MEMABLE_REDIS_URL"):
            exits.push_async_callback(asyncio.to_thread, leave_server, self._data_dir)
            return settings.model_copy(update={"redis_url": await asyncio.to_thread(ensure_server, self._data_dir)})
        return settings

    def _online(self) -> Online:
        if self._connected is None:
            raise NotStarted(
                "the engine is not running: use 'async with Engine(…)', or call start() before and stop() after"
            )
        return self._connected

    def _require_started(self) -> Online:
        online = self._online()
        if self._is_draining:
            raise NotStarted("the engine takes no new work after wait_all(): stop() it and start() it again")
        return online
