"""Finds instances that nobody would ever take or wake, and mends them: a slow walk over what the listing says is alive.

Every transition is one script, so no death of a worker, and no restart or failover of Redis, breaks the invariants of
keys.py. What does: keys evicted, streams trimmed, entries deleted or timers removed by hand. Nothing in memable would
notice: the instance waits for a stream entry or a timer that is not there.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Final

from memable.connection import ScriptConnection, ServerRefused
from memable.keys import Partition
from memable.runtime.logs import about
from memable.state import Status
from memable.store import Broken, Store

_log = logging.getLogger("memable.leader")

_PAGE: Final = 100
_WALK_EVERY_S: Final = 60.0
_HURRY_S: Final = 0.05
"""Between two pages of a walk after a restart; of any other, a round of the leader is."""

_LIVE: Final = (Status.QUEUED, Status.RUNNING, Status.SUSPENDED)

_SAID: Final = {
    Broken.ENTRY: "its stream entry was lost, and it is queued again",
    Broken.LEASE: "it was running in nobody's hands, and is queued again",
    Broken.TIMER: "a timer of it was lost, and is there again",
    Broken.POINTS: "what it waits for was not noted, and is now",
    Broken.LISTING: "it was not listed under its status, and is now",
    Broken.GONE: "its hash was lost, and with it the instance: it is out of the listing",
    Broken.ASLEEP: "it is suspended, and waits for nothing: resume it, or it sleeps for ever",
    Broken.FORGETFUL: "it is suspended, and its records were lost with what it waits for: cancel it, or resume it, "
    "which calls all its steps again",
}
_UNMENDED: Final = (Broken.ASLEEP, Broken.FORGETFUL)


class Reconciler:
    """Walks over the live instances of a partition, a page at a time; in a hurry after Redis was restarted."""

    def __init__(
        self,
        store: Store,
        connection: ScriptConnection,
        partition: Partition,
        *,
        workflows: Callable[[], Awaitable[list[str]]],
        page_every_s: float,
    ) -> None:
        self._store, self._connection, self._partition = store, connection, partition
        self._workflows, self._page_every_s = workflows, page_every_s
        self._server: bytes | None = None
        self._connected_at_s: float | None = None
        self._lists: deque[tuple[str, Status, bool]] = deque()
        self._offset = 0
        self._due_s = 0.0
        self._is_in_a_hurry = False
        self._told: set[str] = set()
        """Those that stay as they are: such an instance is found by every walk."""

    @property
    def pause_s(self) -> float:
        """How long until there is something to do."""
        return max(0.0, self._due_s - time.monotonic())

    async def go_on(self) -> None:
        """Look at the next page, if one is due."""
        await self._look_for_a_restart()
        if self.pause_s:
            return
        try:
            if not self._lists:
                workflows = await self._workflows()
                self._lists.extend(product(workflows, _LIVE, (False, True)))
            if self._lists:
                await self._look_at_a_page(*self._lists[0])
        finally:
            # also when it is refused: what is due for ever would keep the leader spinning
            if not self._lists:
                self._is_in_a_hurry = False
            self._due_s = time.monotonic() + self._pause_after_a_page_s()

    def _pause_after_a_page_s(self) -> float:
        if not self._lists:
            return _WALK_EVERY_S
        return _HURRY_S if self._is_in_a_hurry else self._page_every_s

    async def _look_for_a_restart(self) -> None:
        """A walk begins, in a hurry, when this is another life of the server, or another server."""
        if self._connection.connected_at_s == self._connected_at_s:
            return
        self._connected_at_s = self._connection.connected_at_s
        try:
            info = await self._connection.command("INFO", "server")
        except ServerRefused:  # a user without the right to ask: the slow walk has to do
            return
        server = next((line for line in info.splitlines() if line.startswith(b"run_id:")), None)
        if server != self._server:
            self._server = server
            self._lists.clear()
            self._offset, self._due_s, self._is_in_a_hurry = 0, 0.0, True

    async def _look_at_a_page(self, workflow: str, status: Status, of_children: bool) -> None:
        index = self._partition.index(workflow, status, of_children=of_children)
        try:
            page = await self._connection.command("ZRANGE", index, self._offset, self._offset + _PAGE - 1)
        except ServerRefused:  # no index: the next list must not wait for it for ever
            self._lists.popleft()
            self._offset = 0
            raise
        # what comes to rest meanwhile shifts the rest, and the next walk finds what this one has missed
        self._offset += len(page)
        if len(page) < _PAGE:
            self._lists.popleft()
            self._offset = 0
        await self._mend(workflow, status, list(_ids(page)), of_children=of_children)

    async def _mend(self, workflow: str, status: Status, ids: list[str], *, of_children: bool) -> None:
        """One that is refused must not keep the others of its page from being mended."""
        mended, refused = await self._store.reconcile_all(
            self._partition, workflow, status, ids, of_children=of_children
        )
        for id, what in mended:
            self._tell(f"{workflow}/{id}", what)
        for error in refused.values():
            raise error

    def _tell(self, name: str, what: Broken) -> None:
        if what in _UNMENDED:
            if name in self._told:
                return
            self._told.add(name)
        _log.error("%s: %s", name, _SAID[what], extra=about(name))


def _ids(members: list[bytes]) -> Iterator[str]:
    for member in members:
        with suppress(ValueError):  # not written by memable
            yield member.decode()
