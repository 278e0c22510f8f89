"""Whether a worker lives, and whether it takes work: what an orchestrator asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memable.observability.endpoint import text_page
from memable.runtime.observing import WatchedWorker

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def health_pages(worker: WatchedWorker) -> dict[str, WSGIApplication]:
    """`/livez` and `/readyz`: 200 and `ok`, or 503 and why not, in a line."""
    return {
        # red: another process in its place would do better. Redis being away is no reason
        "/livez": text_page(lambda: _answer(worker.fault)),
        "/readyz": text_page(lambda: _answer(worker.trouble)),
    }


def _answer(reason: str | None) -> tuple[str, str]:
    return ("200 OK", "ok") if reason is None else ("503 Service Unavailable", reason)
