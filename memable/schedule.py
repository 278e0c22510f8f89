"""What waits for a time: each instance's timers, delays, back-offs and deadlines, the earliest first.

A page costs one round trip for the times and one for what they are; neither grows with the number of timers.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from memable.damage import legible
from memable.errors import InvalidCursor
from memable.fleet import server_time_s
from memable.keys import DEADLINE_KEY, DELAY_KEY, OPEN_PREFIX, Partition, split_timer_member
from memable.store import Store


class Awaited(StrEnum):
    """What happens when the time has come."""

    DELAY = "delay"
    """An instance begins."""
    TIMER = "timer"
    """A timer fires."""
    RETRY = "retry"
    """A step is called again."""
    TIMEOUT = "timeout"
    """A wait for a signal or a message ends."""
    DEADLINE = "deadline"
    """An instance fails, unless it has ended by then."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One thing that is to happen."""

    due_at: datetime
    in_s: float
    """How long until then, by Redis's clock; less than nothing for one that is late."""
    what: Awaited
    workflow: str
    instance_id: str
    key: str | None
    """Of the timer, step or wait; nothing for what concerns a whole instance."""


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Some of it, in order of time; pass `cursor` to get the next page, `None` means that there is none."""

    at: datetime
    items: Sequence[Scheduled]
    cursor: str | None


_Place = tuple[float, bytes]
"""Due time in ms, and member of `timers`: what orders them."""

_OPEN_KINDS: Final = {"timer": Awaited.TIMER, "retry": Awaited.RETRY}
"""The others are waits."""


async def scheduled(store: Store, limit: int, cursor: str | None = None) -> SchedulePage:
    """The next `limit` things that wait for a time, after `cursor`; `InvalidCursor`."""
    after = None if cursor is None else _parse_cursor(cursor)
    at_s, pages = await asyncio.gather(
        server_time_s(store),
        asyncio.gather(*(_places(store, partition, after, limit + 1) for partition in store.keys.partitions)),
    )
    found = sorted(((place, partition) for page in pages for place, partition in page), key=lambda each: each[0])
    shown = found[:limit]
    items = await asyncio.gather(*(_item(store, partition, place, at_s) for place, partition in shown))
    return SchedulePage(
        datetime.fromtimestamp(at_s, UTC),
        [item for item in items if item is not None],
        _cursor(shown[-1][0]) if len(found) > limit else None,
    )


async def _places(
    store: Store, partition: Partition, after: _Place | None, count: int
) -> list[tuple[_Place, Partition]]:
    least = "-inf" if after is None else repr(after[0])
    chunk = count
    while True:
        # those of the same millisecond are ordered by their bytes, and the page before may have ended among them
        flat = await store.connection.command(
            "ZRANGE", partition.timers, least, "+inf", "BYSCORE", "LIMIT", 0, chunk, "WITHSCORES"
        )
        places = [(float(due_ms), member) for member, due_ms in zip(flat[::2], flat[1::2], strict=True)]
        new = [(place, partition) for place in places if after is None or place > after]
        if len(new) >= count or len(places) < chunk:
            return new[:count]
        chunk *= 2


async def _item(store: Store, partition: Partition, place: _Place, at_s: float) -> Scheduled | None:
    due_ms, member = place
    try:
        workflow, instance_id, key = split_timer_member(member.decode())
    except ValueError:  # no timer of memable: the leader removes it when it is due
        return None
    if key in (DELAY_KEY, DEADLINE_KEY):
        what, shown = (Awaited.DELAY if key == DELAY_KEY else Awaited.DEADLINE), None
    else:
        line = await store.connection.command("HGET", partition.of(workflow, instance_id).steps, OPEN_PREFIX + key)
        kind = legible((line or b"timer").partition(b" ")[0])
        what, shown = _OPEN_KINDS.get(kind, Awaited.TIMEOUT), key
    due_s = max(_FIRST_MS, min(due_ms, _LAST_MS)) / 1000
    return Scheduled(datetime.fromtimestamp(due_s, UTC), due_s - at_s, what, workflow, instance_id, shown)


_FIRST_MS: Final = -62_135_596_800_000.0
"""The beginning of the year 1: Python knows no time before that."""
_LAST_MS: Final = 253_402_300_799_000.0
"""The end of the year 9999: nor after that."""


def _cursor(place: _Place) -> str:
    due_ms, member = place
    words = json.dumps([due_ms, member.decode(errors="surrogateescape")]).encode()
    return base64.urlsafe_b64encode(words).decode().rstrip("=")


def _parse_cursor(cursor: str) -> _Place:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        due_ms, member = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        return float(due_ms), member.encode(errors="surrogateescape")
    except (ValueError, TypeError, AttributeError):
        raise InvalidCursor(cursor) from None
