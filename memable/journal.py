"""The records of an instance: how one is written, read back, and handed to the author again.

A record is a JSON object whose last member is its result or its error, so that both can be cut out without parsing
what an author stored. A script adds the times between `head` and `tail`:

    {"state":"completed","kind":"step","type":"Receipt","started_ms":…,"took_ms":…,"result":{…}}
    {"state":"failed","kind":"step","type":"","attempts":3,"started_ms":…,"took_ms":…,"error":{…}}
    {"state":"suspended","kind":"timer","type":"None","started_ms":…,"due_ms":…}
    {"state":"retrying","kind":"step","type":"","attempts":2,"error":{…},"started_ms":…,"due_ms":…}
    {"state":"failed","kind":"signal","type":"",…,"error":{"class":"SuspendTimeout","fields":{…}}}
    {"state":"completed","kind":"signal","type":"bool","early":true,…,"result":true}

One of `ctx.map` has the digest of its item before the times: `"item":"…"`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

from memable.codec import from_json, to_json
from memable.errors import (
    ChildFailed,
    MemableError,
    PayloadTooLarge,
    RetriesExhausted,
    SerializationError,
    StepFailed,
    StepTimeout,
    SuspendTimeout,
    TypeMismatch,
)
from memable.keys import INTERNAL_PREFIX, OPEN_PREFIX
from memable.state import StepKind, StepRecord, StepState

_OPEN, _INTERNAL = OPEN_PREFIX.encode(), INTERNAL_PREFIX.encode()
_RESULT, _ERROR = b',"result":', b',"error":'
_SUSPENDED, _RETRYING = b'{"state":"suspended"', b'{"state":"retrying"'
_ENDED = (b'{"state":"completed"', b'{"state":"failed"')
_COMPLETED = StepState.COMPLETED  # an enum's member takes longer to find than all that is done with it here

RECORDED_ERRORS: dict[str, type[MemableError]] = {
    each.__name__: each
    for each in (
        StepFailed,
        RetriesExhausted,
        StepTimeout,
        ChildFailed,
        SerializationError,
        TypeMismatch,
        PayloadTooLarge,
        SuspendTimeout,
    )
}
"""What can be recorded as a failure: their constructors take the attributes that they keep."""


def to_datetime(ms: float | str | bytes | None) -> datetime | None:
    """Milliseconds of Redis's clock as an aware time; nothing stays nothing."""
    return None if ms is None else datetime.fromtimestamp(float(ms) / 1000, UTC)


class Draft(NamedTuple):
    """A record to be written; the script that writes it puts the times in between."""

    head: bytes
    tail: bytes

    @classmethod
    def completed(cls, kind: StepKind, tag: str, result: bytes, attempts: int = 1, item: str = "") -> Self:
        head = _head(_COMPLETED, kind, tag, attempts)
        return cls(head + _item(item) if item else head, _RESULT + result + b"}")

    @classmethod
    def failed(cls, kind: StepKind, error: MemableError, attempts: int, item: str = "") -> Self:
        fields = {"class": type(error).__name__, "fields": vars(error)}
        return cls(_head(StepState.FAILED, kind, "", attempts) + _item(item), _ERROR + to_json(fields) + b"}")

    def is_recorded_in(self, raw: bytes) -> bool:
        """Whether `raw` is this draft with its times: it was written by a call whose reply was lost."""
        return raw.startswith(self.head + b",") and raw.endswith(self.tail)

    @staticmethod
    def retrying(failure: MemableError, attempts: int, item: str = "") -> bytes:
        """The head of the record of a step that is called again later; `failure`: what it would end with, if not."""
        error = to_json({"class": type(failure).__name__, "fields": vars(failure)})
        return _head(StepState.RETRYING, StepKind.STEP, "", attempts) + _item(item) + _ERROR + error

    @staticmethod
    def suspended(kind: StepKind, tag: str) -> bytes:
        """The head of an open point's record."""
        return b'{"state":"suspended","kind":"%b","type":%b' % (kind.encode(), to_json(tag))


@lru_cache(maxsize=1024)
def _head(state: StepState, kind: StepKind, tag: str, attempts: int) -> bytes:
    # one attempt is the rule, and there may be very many records
    tried = b"" if attempts == 1 else b',"attempts":%d' % attempts
    return b'{"state":"%b","kind":"%b","type":%b%b' % (state.encode(), kind.encode(), to_json(tag), tried)


def _item(digest: str) -> bytes:
    return b',"item":"%b"' % digest.encode() if digest else b""


FIRED = Draft.completed(StepKind.TIMER, "None", b"null")
"""The record of a timer that fired, or was completed by hand."""

KINDS_WITH_DEADLINE = (StepKind.TIMER, StepKind.SIGNAL, StepKind.MESSAGE)


def late(kind: StepKind, workflow: str, instance_id: str, key: str) -> Draft:
    """What is recorded when the deadline of a point comes first."""
    if kind is StepKind.TIMER:
        return FIRED
    return Draft.failed(kind, SuspendTimeout(workflow, instance_id, key), attempts=1)


class Record:
    """A record as it stands in Redis."""

    __slots__ = ("_facts", "raw", "result")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, found, rest = raw.partition(_RESULT)
        self.result: bytes | None = rest[:-1] if found else None
        """The result's JSON, for a codec; `None` unless completed."""
        self._facts: dict[str, Any] = from_json(head + b"}" if found else raw)

    @property
    def completed_ms(self) -> float | None:
        """`None` while it is open."""
        took_ms: float | None = self._facts.get("took_ms")
        return None if took_ms is None else self._facts["started_ms"] + took_ms

    @property
    def started_ms(self) -> float | None:
        started_ms: float | None = self._facts.get("started_ms")
        return started_ms

    @property
    def kind(self) -> StepKind:
        return StepKind(self._facts["kind"])

    @property
    def state(self) -> StepState:
        return StepState(self._facts["state"])

    @property
    def item(self) -> str:
        """The digest of the item of `ctx.map` that this is the result for; empty for any other step."""
        return str(self._facts.get("item", ""))

    @property
    def was_early(self) -> bool:
        """Whether this is a signal that was kept: its sender could not be told that its type is wrong."""
        return bool(self._facts.get("early"))

    @property
    def is_open(self) -> bool:
        return self.raw.startswith(_SUSPENDED)

    @property
    def plain_result(self) -> Any:
        """The result as plain JSON; only of a completed record."""
        return from_json(self.result or b"null")

    @property
    def is_retrying(self) -> bool:
        """Whether it is of a step that has failed, and is to be called again."""
        return self.raw.startswith(_RETRYING)

    @property
    def attempts(self) -> int:
        """How often a step was called."""
        return int(self._facts.get("attempts", 1))

    def failure(self) -> MemableError | None:
        """The recorded failure as the exception that it was; `None` if this is none.

        Of a step that is to be called again: what it would end with, if it were not.
        """
        error = self._facts.get("error")
        if error is None:
            return None
        return RECORDED_ERRORS[error["class"]](**error["fields"])

    def shown(self, key: str) -> StepRecord:
        """The record as `client.steps` shows it."""
        failure = self.failure()
        if isinstance(failure, StepFailed | ChildFailed):
            error: str | None = f"{failure.error_type}: {failure.error_message}"
        else:
            error = None if failure is None else f"{type(failure).__name__}: {failure}"
        return StepRecord(
            key=key,
            kind=self.kind,
            state=self.state,
            result=None if self.result is None else self.plain_result,
            error=error,
            attempts=0 if self.is_open else self.attempts,
            started_at=to_datetime(self._facts.get("started_ms")),
            completed_at=to_datetime(self.completed_ms),
        )


def in_order(fields: Mapping[str, bytes]) -> list[tuple[str, Record]]:
    """The records among the fields of a steps hash, in the order in which they were started."""
    records = [(key, Record(raw)) for key, raw in fields.items() if not key.startswith(INTERNAL_PREFIX)]
    return sorted(records, key=_place)


def _place(each: tuple[str, Record]) -> tuple[float, float, str]:
    key, record = each
    completed_ms = record.completed_ms
    return record.started_ms or math.inf, math.inf if completed_ms is None else completed_ms, key


def pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """A hash as Redis sends it: field, value, field, value …"""
    return dict(zip(flat[::2], flat[1::2], strict=True))


class Journal:
    """The records that a run has, by key; what a run writes is added, so that replay costs no I/O."""

    __slots__ = ("_new", "_not_handed_back", "_open", "_records")

    def __init__(self, steps: dict[bytes, bytes]) -> None:
        self._new: set[str] = set()
        """Keys that a call found no record of: they will have one."""
        self._records: dict[str, bytes] = {}
        self._open: set[str] = set()
        for key, raw in steps.items():
            if not key.startswith(_INTERNAL):
                self._records[key.decode()] = raw
            elif key.startswith(_OPEN):
                self._open.add(key.removeprefix(_OPEN).decode())
        self._not_handed_back = set(filter(self.has_ended, self._records))

    def open_keys(self) -> list[str]:
        """The points that were open at the claim, and are for all that is known."""
        return [key for key in self._records if key in self._open and not self.has_ended(key)]

    def is_open(self, key: str) -> bool:
        """Whether `key` was open at the claim, and is for all that is known."""
        return key in self._open

    @property
    def is_replaying(self) -> bool:
        """Whether a record that existed at the claim has not been handed back, and no durable call was new yet."""
        return bool(self._not_handed_back)

    def find(self, key: str) -> Record | None:
        """The record of `key`; replaying ends with the last one that existed, or the first call that finds none."""
        raw = self._records.get(key)
        if raw is None or not raw.startswith(_ENDED):
            self._not_handed_back.clear()
        else:
            self._not_handed_back.discard(key)
        if raw is None:
            self._new.add(key)
            return None
        return Record(raw)

    def has_ended(self, key: str) -> bool:
        """Whether `key` has a record that can be handed back."""
        return self._records.get(key, b"").startswith(_ENDED)

    def will_exceed(self, limit: int, keys: Collection[str] = ()) -> bool:
        """Whether there will be more records than `limit`, when all calls have one, and `keys` too."""
        # the exact number takes long to know, and is seldom near
        return len(self._records) + len(self._new) + len(keys) > limit and (
            len(self._records.keys() | self._new | set(keys)) > limit
        )

    def ended_as(self, key: str) -> StepKind | None:
        """The kind of the record of `key`, if it can be handed back."""
        return Record(self._records[key]).kind if self.has_ended(key) else None

    def pass_over(self, key: str) -> None:
        """The record of `key`, if there is one, is handed to nobody: replaying does not wait for that."""
        self._not_handed_back.discard(key)

    def add(self, key: str, raw: bytes) -> Record:
        """Keep what has been recorded."""
        self._open.discard(key)
        self._records[key] = raw
        return Record(raw)

    def drop(self, key: str) -> None:
        """Forget the record of a point that was withdrawn, or a call that was not made.

        A step that is to be called again was called so often all the same.
        """
        self._open.discard(key)
        self._new.discard(key)
        if not self._records.get(key, b"").startswith(_RETRYING):
            self._records.pop(key, None)
