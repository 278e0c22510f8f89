"""What this worker application can be told from outside; memable's own settings (`MEMABLE_…`) are not here."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerAppSettings(BaseSettings):
    """The application's settings, from the environment: `WORKER_LEDGER`, `WORKER_TARGET` and so on.

    All workers need the same files: SQLite is shared by the processes of one machine, never over a network.
    """

    model_config = SettingsConfigDict(env_prefix="WORKER_", frozen=True)

    ledger: Path = Path(".memable/worker/ledger.sqlite3")
    """The books of the payment provider that `approval` calls."""
    target: Path = Path(".memable/worker/zones.sqlite3")
    """Where `sync` writes, unless its input says otherwise."""
    card_funds_cents: int = Field(default=100_000_000, ge=0)
    """What every card has to spend."""
    provider_latency_s: float = Field(default=0.0, ge=0, le=10)
    """How long the provider's answers take after their effect is done: time for a demo to kill a worker."""
