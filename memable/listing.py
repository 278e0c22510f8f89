"""Pages of instances, newest first, at a cost that grows with the page and not with the number of instances.

Each workflow has, in each partition, one index per status, as many for its children, and one per label: instance ids by
creation time. A page is merged from those of all statuses, or of one label. Indexes are trimmed lazily, and an instance
may move while the page is read, so what an index says is only a hint where to look: the instance's hash decides.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from memable.errors import InvalidCursor
from memable.keys import Partition
from memable.labels import NO_LABELS, Labels, lines_of
from memable.reading import Reader
from memable.state import Page, Status, WorkflowMetadata
from memable.store import Store

_IDS_A_ROUND: Final = 2000
_MIN_IDS_AN_INDEX: Final = 16
_MAX_READ: Final = 500
"""How many instances are read at a time, unless a page is larger."""


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where an instance stands in the listing: by creation, and by name among those of the same microsecond.

    Redis orders equal scores by the bytes of the member, and Python strings by code points, which is the same order.
    """

    created_us: int
    workflow: str
    instance_id: str

    def cursor(self) -> str:
        words = json.dumps([self.created_us, self.workflow, self.instance_id]).encode()
        return base64.urlsafe_b64encode(words).decode().rstrip("=")

    @classmethod
    def at(cls, cursor: str) -> _Place:
        try:
            padded = cursor + "=" * (-len(cursor) % 4)
            created_us, workflow, instance_id = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (ValueError, TypeError):
            raise InvalidCursor(cursor) from None
        if type(created_us) is not int or not isinstance(workflow, str) or not isinstance(instance_id, str):
            raise InvalidCursor(cursor)
        return cls(created_us, workflow, instance_id)


class Listing:
    """One listing of a namespace: some workflows, one status or all, all of some labels, with children or without."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        workflows: Sequence[str],
        status: Status | None,
        labels: Labels = NO_LABELS,
        *,
        children: bool = True,
    ) -> None:
        self._store, self._reader = store, reader
        self._workflows = workflows
        self._status, self._labels = status, labels
        self._children = children
        self._statuses = list(Status) if status is None else [status]
        self._line: str | None = None
        """The label whose indexes are walked."""

    async def page(self, limit: int, cursor: str | None) -> Page:
        """The next `limit` instances after `cursor`; `InvalidCursor`."""
        after = None if cursor is None else _Place.at(cursor)
        self._line = await self._rarest_label()
        found: list[tuple[_Place, WorkflowMetadata]] = []
        chunk, batch, is_exhausted = self._first_chunk(limit), limit + 1, not self._workflows
        # one more than asked for tells whether there is another page
        while len(found) <= limit and not is_exhausted:
            places, goes_on_after, is_exhausted = await self._next_places(after, chunk)
            chunk = 2 * chunk if goes_on_after == after else min(2 * chunk, _IDS_A_ROUND)
            after = goes_on_after
            while places and len(found) <= limit:
                looked_at, places = places[:batch], places[batch:]
                found.extend(await self._alive(looked_at))
                # where one was gone, or is of another status, many may be
                batch = min(max(2 * batch, _MIN_IDS_AN_INDEX), max(batch, _MAX_READ))
        items = [known for _, known in found[:limit]]
        return Page(items, found[limit - 1][0].cursor() if len(found) > limit else None)

    def _first_chunk(self, limit: int) -> int:
        of_a_workflow = len(self._statuses) * (1 + self._children) if self._line is None else 1
        indexes = len(self._workflows) * of_a_workflow * len(self._store.keys.partitions)
        # one to tell whether there is another page, and one that the page before ended with
        return min(limit + 2, max(_MIN_IDS_AN_INDEX, _IDS_A_ROUND // max(indexes, 1)))

    async def _next_places(self, after: _Place | None, chunk: int) -> tuple[list[_Place], _Place | None, bool]:
        """Places after `after`, newest first; where to go on; and whether there is nothing more."""
        newest_us = None if after is None else after.created_us
        read = await asyncio.gather(
            *(self._read(partition, newest_us, chunk) for partition in self._store.keys.partitions)
        )
        indexes = [index for partition in read for index in partition]
        # behind the last id of an index that gave all it was asked for there may be more: up to the newest of these,
        # the merged order is complete
        floors = [index[-1] for index in indexes if len(index) >= chunk]
        floor = max(floors, default=None)
        merged = sorted(
            {
                place
                for index in indexes
                for place in index
                if (after is None or place < after) and (floor is None or place >= floor)
            },
            reverse=True,
        )
        # among very many of the same microsecond nothing may be new: then the next, larger chunk gets further
        return merged, merged[-1] if merged else after, floor is None

    async def _read(self, partition: Partition, newest_us: int | None, chunk: int) -> list[list[_Place]]:
        names = [(workflow, index) for workflow in self._workflows for index in self._indexes(partition, workflow)]
        pages = await self._store.newest([index for _, index in names], newest_us, chunk)
        return [
            [_Place(created_us, workflow, instance_id) for instance_id, created_us in page]
            for (workflow, _), page in zip(names, pages, strict=True)
        ]

    def _indexes(self, partition: Partition, workflow: str) -> list[str]:
        if self._line is not None:
            return [partition.label(workflow, self._line)]
        of = (False, True) if self._children else (False,)
        return [partition.index(workflow, each, of_children=which) for each in self._statuses for which in of]

    async def _rarest_label(self) -> str | None:
        """That of the labels which the fewest instances have, or had."""
        lines = lines_of(self._labels)
        if len(lines) <= 1:
            return lines[0] if lines else None
        counts = await asyncio.gather(*(self._count(line) for line in lines))
        return min(zip(counts, lines, strict=True))[1]

    async def _count(self, line: str) -> int:
        partitions, command = self._store.keys.partitions, self._store.connection.command
        asked = (command("ZCARD", each.label(name, line)) for each in partitions for name in self._workflows)
        return sum(await asyncio.gather(*asked))

    async def _alive(self, places: Sequence[_Place]) -> Iterator[tuple[_Place, WorkflowMetadata]]:
        """Those that still are what the index says: not expired, not a namesake's, and what was asked for."""
        keys = self._store.keys
        known = await self._reader.metadata_of(keys.of(place.workflow, place.instance_id) for place in places)
        return (
            (place, each[0])
            for place, each in zip(places, known, strict=True)
            if each is not None
            and each[1] == place.created_us
            and (self._status is None or each[0].status is self._status)
            and self._labels.items() <= each[0].labels.items()
        )
