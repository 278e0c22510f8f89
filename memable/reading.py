"""What can be seen of a namespace: instances, their journals, announced workflows. Nothing here changes anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from memable import announcement
from memable.announcement import Announcement
from memable.codec import from_json
from memable.damage import Damaged, legible, reading
from memable.endpoint import ServerRefused
from memable.errors import InstanceNotFound
from memable.journal import in_order, pairs, to_datetime
from memable.keys import INTERNAL_PREFIX, InstanceKeys, split_instance_name
from memable.labels import Labels, parse_lines
from memable.state import Status, StepRecord, WorkflowMetadata, WorkflowState
from memable.store import Store

_log = logging.getLogger("memable.reading")

_INTERNAL: Final = INTERNAL_PREFIX.encode()
_OUTPUT: Final = b',"output":'
_ERROR: Final = b',"error":'
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Seen:
    """An instance at one moment."""

    version: int
    state: WorkflowState
    output: bytes | None = None
    """The output's JSON, of a completed instance, unless it was too large for an event."""
    error: bytes | None = None
    """The error's JSON, of a failed instance, unless it was too large for an event."""

    @property
    def says_how_it_ended(self) -> bool:
        """Whether nothing needs to be read any more."""
        return self.state.status is Status.CANCELLED or self.output is not None or self.error is not None


class Identity(NamedTuple):
    """What tells an instance from another of its id."""

    invoked_as: str
    """The life that invoke made."""
    life: str
    """The one it has now."""
    labels: Labels
    parent: InstanceKeys | None
    """Of a child."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The stored error of a failed instance."""

    error_type: str
    error_message: str
    failed_step: str | None

    @classmethod
    def parse(cls, raw: bytes) -> Failure:
        error: dict[str, Any] = from_json(raw)
        return cls(error["type"], error["message"], error.get("step"))

    def __str__(self) -> str:
        return f"{self.error_type}: {self.error_message}"


def _text(raw: bytes | None) -> str | None:
    """An absent or empty field is nothing."""
    return raw.decode() if raw else None


def _state(status: bytes, message: bytes | None, waiting: bytes | None) -> WorkflowState:
    return WorkflowState.of(Status(status.decode()), _text(message), _text(waiting))


def _lines(raw: bytes | None) -> list[str]:
    return raw.decode().split("\n") if raw else []


def parse_event(raw: bytes) -> Seen | None:
    """What a state change on an instance's channel says (see lua/lib/state.lua); nothing if it cannot be read."""
    # the last member is the output or the error as it is stored: cut out, never parsed and written anew
    head, has_output, output = raw.partition(_OUTPUT)
    error = None
    if not has_output:
        head, _, error = raw.partition(_ERROR)
    try:
        facts: dict[str, Any] = from_json(raw if len(head) == len(raw) else head + b"}")
        state = WorkflowState(Status(facts["status"]), facts.get("message"), facts.get("key"))
        return Seen(facts["version"], state, output[:-1] or None, error[:-1] if error else None)
    except (ValueError, KeyError, TypeError):
        return None


class Reader:
    """Reads a namespace over the store's connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._command = store.connection.command
        self._keys = store.keys
        self._told = set[str]()
        """The keys of damaged instances that were told of: whoever looks every second is not told each time."""

    @property
    def namespace(self) -> str:
        return self._keys.namespace

    async def seen(self, keys: InstanceKeys) -> Seen:
        """The instance as it is now, with how it ended; `InstanceNotFound`."""
        status, message, version, waiting, output, error = await self._command(
            "HMGET", keys.instance, "status", "message", "version", "waiting", "output", "error"
        )
        if status is None:
            raise InstanceNotFound(keys.workflow, keys.instance_id)
        with reading(f"instance {keys.name}"):
            return Seen(int(version), _state(status, message, waiting), output, error)

    async def identity(self, keys: InstanceKeys) -> Identity:
        """What tells the instance from another of its id, and whom its end concerns; `InstanceNotFound`."""
        first, life, labels, parent = await self._command(
            "HMGET", keys.instance, "invoked_by", "life", "labels", "parent"
        )
        if life is None:
            raise InstanceNotFound(keys.workflow, keys.instance_id)
        with reading(f"instance {keys.name}"):
            return Identity(
                invoked_as=(first or life).decode(),
                life=life.decode(),
                labels=parse_lines(_lines(labels)),
                parent=keys.partition.of(*split_instance_name(parent.decode())) if parent else None,
            )

    async def metadata(self, keys: InstanceKeys) -> WorkflowMetadata | None:
        """All that is known of the instance now; nothing if there is none."""
        found = _metadata(keys, await self._command("HMGET", keys.instance, *_METADATA))
        return None if found is None else found[0]

    async def metadata_of(self, instances: Iterable[InstanceKeys]) -> list[tuple[WorkflowMetadata, int] | None]:
        """Of each instance what is known, and when it was made in µs; in one round trip.

        Nothing of one that is damaged, and a line in the log: it keeps no other from being shown.
        """
        asked = [(keys, self._command("HMGET", keys.instance, *_METADATA)) for keys in instances]
        replies = await asyncio.gather(*(reply for _, reply in asked), return_exceptions=True)
        return [self._sound(keys, reply) for (keys, _), reply in zip(asked, replies, strict=True)]

    def _sound(
        self, keys: InstanceKeys, reply: list[bytes | None] | BaseException
    ) -> tuple[WorkflowMetadata, int] | None:
        try:
            if isinstance(reply, BaseException):
                raise reply
            return _metadata(keys, reply)
        except (Damaged, ServerRefused) as error:
            if isinstance(error, ServerRefused) and error.code != "WRONGTYPE":
                raise
            if keys.instance not in self._told:
                self._told.add(keys.instance)
                _log.warning("instance %s is left out: %s", keys.name, error)
            return None

    async def steps(self, keys: InstanceKeys) -> list[StepRecord]:
        """The records of the instance, in the order in which they were started; `InstanceNotFound`."""
        exists, fields = await asyncio.gather(
            self._command("EXISTS", keys.instance), self._command("HGETALL", keys.steps)
        )
        if not exists:
            raise InstanceNotFound(keys.workflow, keys.instance_id)
        with reading(f"the journal of {keys.name}"):
            steps = {field.decode(): raw for field, raw in pairs(fields).items()}
            return [record.shown(key) for key, record in in_order(steps)]

    async def announced(self, name: str) -> Announcement | None:
        """What a worker has announced of workflow `name`, if any has."""
        raw = await self._command("HGET", self._keys.workflows, name)
        return None if raw is None else announcement.parse(name, raw)

    async def announced_names(self) -> list[str]:
        """The names of all workflows that were ever announced here."""
        return list(map(legible, await self._command("HKEYS", self._keys.workflows)))


_METADATA: Final = (
    "status",
    "message",
    "waiting",
    "created_us",
    "started_ms",
    "completed_ms",
    "attempt",
    "worker",
    "error",
    "labels",
    "parent",
)


def _metadata(keys: InstanceKeys, fields: list[bytes | None]) -> tuple[WorkflowMetadata, int] | None:
    status, message, waiting, created_us, *rest = fields
    if status is None or created_us is None:
        return None
    with reading(f"instance {keys.name}"):
        return _parsed(keys, status, message, waiting, created_us, *rest)


def _parsed(
    keys: InstanceKeys,
    status: bytes,
    message: bytes | None,
    waiting: bytes | None,
    created_us: bytes,
    *rest: bytes | None,
) -> tuple[WorkflowMetadata, int]:
    started_ms, completed_ms, attempt, worker, error, labels, parent = rest
    state = _state(status, message, waiting)
    known = WorkflowMetadata(
        workflow=keys.workflow,
        instance_id=keys.instance_id,
        status=state.status,
        state=state,
        created_at=datetime.fromtimestamp(int(created_us) / 1_000_000, UTC),
        started_at=to_datetime(started_ms),
        completed_at=to_datetime(completed_ms),
        attempt=int(attempt or 0),
        worker=_text(worker),
        error=None if error is None else str(Failure.parse(error)),
        parent=_text(parent),
        waiting_on=_lines(waiting),
        labels=parse_lines(_lines(labels)),
    )
    return known, int(created_us)
