"""Taking work: reads the streams of an app's workflows, for no more than the free slots."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from memable.connection import BlockingReader, ScriptConnection, ServerRefused
from memable.errors import StorageError
from memable.keys import ENTRY_FIELD, GROUP, Partition
from memable.store import Connection
from memable.workflow import Workflow

_log = logging.getLogger("memable.intake")

_BLOCK_MS = 2000
_BLOCK_SOME_MS, _BLOCK_SOME_AT_MOST_MS = 50, 400
"""While fewer slots are free than there are streams, only some streams are read in turn, and waited for so long: longer
each time in a row that none had anything, since all are looked at again in between."""

_UNBLOCK_S = 0.05
_FOREIGN_S = 10.0
"""How long a key that should be a stream, and is none, is left aside, before it is looked at again."""

_STUCK_S = 120.0

Streams = Mapping[str, tuple[Partition, Workflow[Any, Any]]]
Begin = Callable[[Partition, Workflow[Any, Any], str, str], None]
"""Partition, workflow, instance id and stream entry of what was delivered to this worker."""


def named_by(fields: list[bytes]) -> str | None:
    """The instance that a stream's entry names; nothing if it is no entry of memable."""
    if len(fields) != 2 or fields[0] != ENTRY_FIELD.encode():
        return None
    try:
        return fields[1].decode()
    except ValueError:
        return None


async def make_group(connection: Connection, stream: str) -> None:
    """Have a stream with memable's consumer group, from its first entry on."""
    try:
        await connection.command("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
    except ServerRefused as error:
        if error.code != "BUSYGROUP":
            raise


class Intake:
    """Reads while there is a free slot, and nobody wants quiet. One read at a time, and none is ever cancelled."""

    def __init__(
        self,
        reader: BlockingReader,
        connection: ScriptConnection,
        worker: str,
        streams: Streams,
        *,
        free_slots: Callable[[], int],
        begin: Begin,
    ) -> None:
        self._reader, self._connection = reader, connection
        self._worker, self._streams = worker, streams
        self._free_slots, self._begin = free_slots, begin
        self._go_on = asyncio.Event()
        self._is_stopping = False
        self._wish_for_quiet = 0
        self._is_reading = False
        self._reading_since_s = 0.0
        self._rotation = 0
        self._empty_handed = 0
        """How many streams were looked at in a row, without waiting, that had nothing."""
        self._waits = 0
        """How often in a row some were waited for, and none had anything."""
        self._trouble: str | None = None
        self._foreign: set[str] = set()
        """Keys with the name of a stream that are none: one of them would keep all streams from being read."""
        self._foreign_until_s = 0.0

    @property
    def is_well(self) -> bool:
        """Whether it can take work, of all workflows: the last read was served, or none is to be made now."""
        return (self._trouble is None and not self._foreign) or not self._is_reading

    @property
    def is_stuck(self) -> bool:
        """Whether a read goes on for longer than one can that is answered or given up."""
        return self._is_reading and time.monotonic() - self._reading_since_s > _STUCK_S

    def look_again(self) -> None:
        """A slot may be free."""
        self._go_on.set()

    async def run(self) -> None:
        """Take work until `stop`."""
        while not self._is_stopping:
            free = self._free_slots()
            if free <= 0 or not self._streams or self._wish_for_quiet:
                self._go_on.clear()
                await self._go_on.wait()
                continue
            self._is_reading, self._reading_since_s = True, time.monotonic()
            try:
                await self._take(free)
            except Exception:
                _log.exception("worker %s failed to take work, and goes on", self._worker)
                await asyncio.sleep(1)
            finally:
                self._is_reading = False

    async def stop(self, running: asyncio.Task[None] | None) -> None:
        """Read no more, and return when `run` has ended: what a read under way was given is begun."""
        self._is_stopping = True
        self.look_again()
        while running is not None and not running.done():
            self._unblock()
            await asyncio.wait([running], timeout=_UNBLOCK_S)
            if not self._connection.is_healthy:
                running.cancel()  # Redis is away: it has given nothing

    async def hush(self) -> None:
        """Read no more until `unhush`, and return when no read is under way."""
        self._wish_for_quiet += 1
        while self._is_reading and not self._is_stopping:
            self._unblock()
            await asyncio.sleep(_UNBLOCK_S)

    def unhush(self) -> None:
        """Read again, unless somebody else wants quiet."""
        self._wish_for_quiet -= 1
        self.look_again()

    def _unblock(self) -> None:
        """Have Redis end the read that blocks: cancelled, it might have been given entries that nobody then runs."""
        if self._reader.client_id is not None and self._connection.is_healthy:
            self._connection.command("CLIENT", "UNBLOCK", self._reader.client_id)

    async def _take(self, free: int) -> None:
        try:
            if self._foreign and time.monotonic() > self._foreign_until_s:
                await self.create_groups()
            reply = await self._read(free)
        except ServerRefused as error:
            if error.code != self._trouble:  # said once, not with every try
                self._trouble = error.code
                _log.warning("worker %s cannot take work: %s", self._worker, error)
            if error.code in ("NOGROUP", "WRONGTYPE"):
                with suppress(StorageError):
                    await self.create_groups()
        except StorageError:
            self._trouble = "away"  # the reader has logged it, and waits before it connects again
        else:
            self._trouble = None
            for stream, entries in reply or ():
                partition, workflow = self._streams[stream.decode()]
                for entry, fields in entries:
                    if (instance_id := named_by(fields)) is not None:  # else the leader removes it
                        self._begin(partition, workflow, instance_id, entry.decode())

    async def _read(self, free: int) -> Any:
        """Ask for no more than the free slots: COUNT is per stream, so with few slots only some streams are read."""
        streams = [each for each in self._streams if each not in self._foreign]
        if not streams:
            await asyncio.sleep(_FOREIGN_S / 100)
            return None
        many, some = len(streams), min(free, len(streams))
        at = self._rotation % many
        self._rotation = at + (some if some < many else 1)
        if some == many:
            block: tuple[Any, ...] = ("BLOCK", _BLOCK_MS)
        elif self._empty_handed >= many:
            block = ("BLOCK", min(_BLOCK_SOME_MS << self._waits, _BLOCK_SOME_AT_MOST_MS))
        else:
            block = ()  # another stream may be full of work: none is waited for before all have been looked at
        reply = await self._reader.read(
            *("XREADGROUP", "GROUP", GROUP, self._worker, "COUNT", max(1, free // some), *block),
            *("STREAMS", *(streams[at:] + streams[:at])[:some], *some * (">",)),
        )
        # after each wait all are looked at again: else work would find a free slot only in its stream's turn to wait
        self._empty_handed = 0 if reply or block else self._empty_handed + some
        self._waits = 0 if reply else min(self._waits + 1, 10) if block else self._waits
        return reply

    async def create_groups(self) -> None:
        """From the first entry on: what was invoked before a worker ever ran is not missed. Also after a FLUSHALL."""
        made = await asyncio.gather(
            *(make_group(self._connection, stream) for stream in self._streams), return_exceptions=True
        )
        foreign = set[str]()
        for stream, error in zip(self._streams, made, strict=True):
            if isinstance(error, ServerRefused) and error.code == "WRONGTYPE":
                foreign.add(stream)
            elif error is not None:
                raise error
        for stream in foreign - self._foreign:
            _log.error("%s is no stream: no work is taken from it. memable doctor says what to do", stream)
        self._foreign, self._foreign_until_s = foreign, time.monotonic() + _FOREIGN_S
