"""The server as it describes itself."""

from __future__ import annotations

from dataclasses import dataclass

from memable.endpoint import ServerRefused
from memable.store.base import Connection


@dataclass(frozen=True, slots=True)
class Server:
    """What INFO says."""

    name: str
    """`Redis` or `Valkey`."""
    version: str
    up_s: int
    used_memory_bytes: int
    max_memory_bytes: int
    """Nothing is no limit."""
    clients: int
    has_aof: bool

    @classmethod
    def parse(cls, info: str) -> Server:
        """From the reply of INFO; what is not in it is zero, or nothing."""
        facts = facts_of(info)
        is_valkey = facts.get("server_name") == "valkey"
        return cls(
            name="Valkey" if is_valkey else "Redis",
            version=facts.get("valkey_version" if is_valkey else "redis_version", "unknown"),
            up_s=int(facts.get("uptime_in_seconds", 0)),
            used_memory_bytes=int(facts.get("used_memory", 0)),
            max_memory_bytes=int(facts.get("maxmemory", 0)),
            clients=int(facts.get("connected_clients", 0)),
            has_aof=facts.get("aof_enabled") == "1",
        )


def facts_of(info: str) -> dict[str, str]:
    """The reply of INFO as names and values."""
    return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


async def server(connection: Connection) -> Server | None:
    """What the server says of itself; nothing to a user who has no right to ask."""
    try:
        info = await connection.command("INFO", "server", "clients", "memory", "persistence")
    except ServerRefused as error:
        if error.code != "NOPERM":
            raise
        return None
    return Server.parse(info.decode())
