"""What a worker says of itself with each beat, under a key of its own that expires when the worker beats no more.

`ns:worker:NAME` holds one JSON object:

    {"host":"box-1","pid":4711,"version":"0.1.0","up_s":86400.5,"slots":100,"in_use":7,"workflows":["order"],
     "clock_s":1764507600.25}
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from memable.codec import from_json, to_json

BEAT_EVERY_S: Final = 5.0
"""How often a worker shows that it lives."""

STALE_MS: Final = 30_000
"""A worker that has been silent for longer is taken to be gone."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker, as it said at its last beat."""

    host: str
    pid: int
    version: str
    up_s: float
    """For how long it had been there then: no clock of another machine is believed."""
    slots: int
    """How many instances it runs at once."""
    in_use: int
    workflows: tuple[str, ...]
    clock_s: float | None = None
    """Its own clock then, in s since 1970, for the doctor to compare: it decides nothing."""

    def said(self) -> bytes:
        """The JSON of it."""
        return to_json(asdict(self))

    @classmethod
    def parse(cls, raw: bytes | None) -> Presence | None:
        """What a worker has said; nothing if it has not, or it cannot be read: that of another version, say."""
        try:
            said: dict[str, Any] = from_json(raw or b"")
            clock_s = said.get("clock_s")
            return cls(
                host=str(said["host"]),
                pid=int(said["pid"]),
                version=str(said["version"]),
                up_s=timedelta(seconds=float(said["up_s"])).total_seconds(),
                slots=int(said["slots"]),
                in_use=int(said["in_use"]),
                workflows=tuple(map(str, said["workflows"])),
                clock_s=None if clock_s is None else datetime.fromtimestamp(float(clock_s), UTC).timestamp(),
            )
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, OSError):
            return None


def own_version() -> str:
    """The version of this memable."""
    try:
        return version("memable")
    except PackageNotFoundError:  # used from a directory that nobody has installed
        return "unknown"
