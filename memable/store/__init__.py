"""Durable operations: one async method each, one script each. The only caller of `lua/`.

Every script recognises a call that is repeated because its reply was lost (`-- RETRY` in its header), so the connection
repeats calls without thinking, and nothing here does.
"""

from __future__ import annotations

from memable import lua
from memable.damage import legible, reading
from memable.errors import StorageError
from memable.keys import LAYOUT, Keys
from memable.store.applications import NOTHING_COPIED, ForApplications
from memable.store.base import Connection
from memable.store.leading import ForLeaders, Lead
from memable.store.mending import Broken, ForMending
from memable.store.runs import DELAYED_MS, RENEW, ForRuns, renewal
from memable.store.tokens import new_token

__all__ = [
    "DELAYED_MS",
    "NOTHING_COPIED",
    "RENEW",
    "Broken",
    "Connection",
    "Lead",
    "Store",
    "enter",
    "new_token",
    "renewal",
]

_ENTER = lua.later("enter")


class Store(ForApplications, ForRuns, ForLeaders, ForMending):
    """The durable operations of one namespace over one connection."""


async def enter(connection: Connection, namespace: str, partitions: int | None) -> Keys:
    """Agree on the layout of a namespace, and learn or set its number of partitions; `StorageError` if they differ."""
    layout, agreed = await connection.call(
        _ENTER, _ENTER.bind(meta=Keys.meta(namespace), layout=LAYOUT, partitions=partitions or 1)
    )
    if legible(layout) != LAYOUT:
        raise StorageError(
            f"namespace {namespace!r} has layout version {legible(layout)}, and this memable speaks {LAYOUT}: "
            f"use a memable of that version, or another namespace (MEMABLE_NAMESPACE)"
        )
    with reading(Keys.meta(namespace)):
        there = int(agreed)
    if partitions is not None and there != partitions:
        raise StorageError(
            f"namespace {namespace!r} has {there} partitions, not {partitions}: their number is fixed when a "
            f"namespace is first used; unset MEMABLE_PARTITIONS, or use another namespace"
        )
    return Keys(namespace, partitions=there)
