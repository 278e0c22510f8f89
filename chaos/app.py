"""`memable worker chaos.app:app`: the app with all workflows that run in the storm.

Each returns what its durable calls gave it, so that the client can tell whether that is what it must be.
"""

from __future__ import annotations

from chaos import endless, kin, plain, waits
from chaos.acting import app

__all__ = ["app", "endless", "kin", "plain", "waits"]
