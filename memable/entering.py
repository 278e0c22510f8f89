"""What everybody does first: see that the server will do, and agree on the layout of the namespace."""

from __future__ import annotations

from typing import Final

from memable import store
from memable.connection import Endpoint, ScriptConnection, ServerRefused
from memable.errors import StorageError
from memable.keys import Keys
from memable.server import facts_of

_OLDEST_REDIS: Final = (7, 0)


async def enter(connection: ScriptConnection, endpoint: Endpoint, namespace: str, partitions: int | None) -> Keys:
    """The names of `namespace` at a server that memable can work with; else `StorageError`, one line."""
    try:
        info = await connection.command("INFO", "server")
    except ServerRefused as error:
        if error.code != "NOPERM":  # a user without the right to ask can still be served
            raise
    else:
        check_server(info.decode(), endpoint.safe_url)
    return await store.enter(connection, namespace, partitions)


def check_server(info: str, safe_url: str) -> None:
    """Refuse a Redis older than 7.0; every Valkey calls itself a Redis of 7.2."""
    version = facts_of(info).get("redis_version", "unknown")
    try:
        major, minor = (int(part) for part in version.split(".")[:2])
    except ValueError:
        return  # not a version as Redis writes it: the scripts will tell
    if (major, minor) < _OLDEST_REDIS:
        raise StorageError(
            f"the server at {safe_url} is Redis {version}, and memable needs Redis 7.0 or Valkey 8 or later: upgrade it"
        )
