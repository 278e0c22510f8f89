"""What a runtime starts for those who watch it: the endpoint, metrics, traces; nothing, unless its settings say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from memable.errors import StorageError
from memable.extras import missing
from memable.fleet import Load, loads
from memable.presence import own_version
from memable.runtime.observing import Observer, WatchedWorker, all_of
from memable.settings import Settings
from memable.store import Store
from memable.trace_context import opentelemetry

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from memable.observability.endpoint import Endpoint
    from memable.observability.metrics import Metrics

_log = logging.getLogger("memable.endpoint")

_COUNT_EVERY_S: Final = 5.0
_WITHOUT_CLIENT: Final = missing("prometheus_client")


class Watch:
    """Belongs to one runtime: `open` before it does anything else, `close` when all the rest is closed."""

    def __init__(self, worker: WatchedWorker, settings: Settings) -> None:
        self._worker, self._settings = worker, settings
        self._metrics: Metrics | None = None
        self._endpoint: Endpoint | None = None
        self._counting: asyncio.Task[None] | None = None

    @property
    def url(self) -> str | None:
        """Where the endpoint is, if there is one."""
        return None if self._endpoint is None else self._endpoint.url

    def open(self) -> None:
        """Begin to serve. `SettingsError` if the address cannot be had."""
        if self._settings.metrics_port is not None:
            # here, since whoever has no endpoint needs no server either
            from memable.observability.endpoint import Endpoint
            from memable.observability.health import health_pages

            pages = {"/metrics": self._metrics_page(), **health_pages(self._worker)}
            self._endpoint = Endpoint(self._settings.metrics_host, self._settings.metrics_port, pages)
            self._endpoint.start()

    def _metrics_page(self) -> WSGIApplication:
        from memable.observability.endpoint import text_page
        from memable.observability.metrics import Metrics

        try:
            from memable.observability.exposition import metrics_page
        except ImportError:
            _log.warning("%s; health is served without it", _WITHOUT_CLIENT)
            return text_page(lambda: ("501 Not Implemented", _WITHOUT_CLIENT))
        self._metrics = Metrics(self._worker, own_version())
        return metrics_page(self._metrics)

    def observer(self, workflows: Iterable[str]) -> Observer:
        """Whom the runtime is to tell; asked for when the application has set up its tracing."""
        if self._metrics is not None:
            for workflow in workflows:
                self._metrics.count(workflow)
        return all_of([each for each in (self._metrics, _tracing()) if each is not None])

    def begin_to_count(self, store: Store) -> None:
        """While this worker leads, count now and then what waits in Redis."""
        if self._metrics is not None:
            self._counting = asyncio.ensure_future(self._count(self._metrics, store))

    async def _count(self, metrics: Metrics, store: Store) -> None:
        has_complained = False
        while True:
            found: Sequence[Load] = ()
            if self._worker.leads_first:
                try:
                    found = await loads(store)
                except StorageError as error:  # refused: a connection of a worker waits out whatever else there is
                    if not has_complained:
                        _log.warning("what waits in Redis cannot be counted: %s", error)
                    has_complained = True
            metrics.loads = found if self._worker.leads_first else ()
            await asyncio.sleep(_COUNT_EVERY_S)

    async def stop_counting(self) -> None:
        """Before the store is closed."""
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait([self._counting])

    async def close(self) -> None:
        """Serve no more."""
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)


def _tracing() -> Observer | None:
    if opentelemetry() is None:
        return None
    from memable.observability.tracing import tracing

    return tracing()
