"""The application: which workflows this worker runs, and what they have at hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from memable import App, RetryPolicy
from worker.approval import approve_order
from worker.ledger import Ledger
from worker.settings import WorkerAppSettings
from worker.sync import sync_zones


@asynccontextmanager
async def lifespan(_app: App) -> AsyncGenerator[Mapping[str, Any], None]:
    """What every run in this process finds in `ctx.resources`; read when the worker starts, not when it is imported."""
    settings = WorkerAppSettings()
    ledger = Ledger(settings.ledger, funds_cents=settings.card_funds_cents, latency_s=settings.provider_latency_s)
    yield {"settings": settings, "ledger": ledger}


app = App(default_retry=RetryPolicy.exponential(3, base=0.2, max_delay=5.0, jitter=0.2), lifespan=lifespan)

sync = app.register("sync", sync_zones)
approval = app.register("approval", approve_order)
