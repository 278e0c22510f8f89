"""What a run holds and hands to the store: the instance in its hands, its points, its end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memable import lua
from memable.annotations import ALL_JSON_TYPES
from memable.journal import Draft, late
from memable.keys import InstanceKeys
from memable.labels import Labels
from memable.state import Status, StepKind


class LeaseLost(Exception):
    """The run's lease is not the instance's current one: the run is over, and must stop silently."""


class HistoryLost(LeaseLost):
    """The run holds its instance, and Redis has forgotten what it recorded: it is over, and hands the instance back."""


_KNOWN_AT_MOST = 16
"""Of those that came while many calls were on their way, the last are enough: Redis loses the end of its history."""


@dataclass(slots=True, eq=False)
class Held:
    """An instance in the hands of one run."""

    keys: InstanceKeys
    entry: str
    lease: str
    known: tuple[str, ...] = ()
    """Keys whose records were the last that Redis has shown to this run: if one is gone, it has lost some history."""
    life: str = ""
    """That of the instance."""
    parent: InstanceKeys | None = None
    """Of a child: whom its end concerns."""
    trace: str = ""
    """That of whoever invoked it: see trace_context.py."""
    turn: int = 0
    """The number of its last numbered call: `set_status`, or what changes points. Of each kind one is on its way."""

    def learn(self, keys: Sequence[str], older: tuple[str, ...] = ()) -> None:
        """Redis has shown the records of `keys`, and those of `older` were there when the first of these was written.

        What was learned meanwhile stays: the answer may come from a Redis that has lost it.
        """
        if self.known is not older:
            keys = (*(key for key in self.known if key not in older and key not in keys), *keys)
        self.known = tuple(keys[-_KNOWN_AT_MOST:])

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn


class Claim(NamedTuple):
    """All that a run needs to begin."""

    life: str
    input: bytes
    progress: str
    attempt: int
    started_ms: int
    recoveries: int
    now_ms: int
    """When it was claimed."""
    steps: dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Member:
    """One of the calls between which a `first` chooses, and the record of that choice if it is this one."""

    kind: StepKind
    key: str
    chosen: Draft


@dataclass(frozen=True, slots=True)
class Point:
    """A place where a run waits; at most one of the deadlines is given."""

    key: str
    kind: StepKind
    tag: str
    json_types: Collection[str]
    after_ms: float | None = None
    at_ms: float | None = None
    elapsed_ms: int = 0
    """Since the call that waits here: its deadline counts from then."""
    mailbox: str = ""
    """Of a message: a mailbox takes messages of any type."""
    choice: str = ""
    """The key of the `first` that is decided when this is completed."""
    members: Sequence[Member] = ()
    """Of a point of kind `choice`: it waits for the first of these."""

    def arguments(self, keys: InstanceKeys) -> tuple[lua.Argument, ...]:
        """What the scripts take: see lib/open.lua."""
        has_deadline = self.after_ms is not None or self.at_ms is not None
        ending = late(self.kind, keys.workflow, keys.instance_id, self.key) if has_deadline else (b"", b"")
        return (
            self.key,
            self.kind.value,
            Draft.suspended(self.kind, self.tag),
            lines(self.members) if self.members else self.mailbox or f"{self.tag}|{_joined(self.json_types)}",
            self.choice,
            "" if self.after_ms is None else self.after_ms,
            "" if self.at_ms is None else self.at_ms,
            self.elapsed_ms,
            *ending,
        )


RETRY = "retry"
"""The kind of point at which a step waits for its next attempt."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """A step that failed and waits for its next attempt: a point, too."""

    key: str
    attempts: int
    """How often it was called."""
    allowed: int
    """How often it may be called in all."""
    head: bytes
    after_ms: float
    elapsed_ms: int
    """Since it failed."""
    age_ms: int
    """Since it was called for the first time in this run."""

    def arguments(self, _keys: InstanceKeys) -> tuple[lua.Argument, ...]:
        """What the scripts take: see lib/retries.lua."""
        label = f"retrying {self.key} ({self.attempts + 1} of {self.allowed})"
        accepts = f"{self.attempts} {self.age_ms} {label}"
        return self.key, RETRY, self.head, accepts, "", self.after_ms, "", self.elapsed_ms, b"", b""


@dataclass(frozen=True, slots=True)
class ChildrenPoint:
    """A call that waits for its children: a point, too, which is completed without a record."""

    key: str
    waits_for: str
    """What of them: see lib/children.lua."""
    elapsed_ms: int = 0
    """Since the call."""

    def arguments(self, _keys: InstanceKeys) -> tuple[lua.Argument, ...]:
        """What the scripts take: see lib/open.lua."""
        head = Draft.suspended(StepKind.CHILD, "")
        return self.key, StepKind.CHILD.value, head, self.waits_for, "", "", "", self.elapsed_ms, b"", b""


AnyPoint = Point | BackOff | ChildrenPoint


def lines(members: Sequence[Member]) -> bytes:
    """The members of a `first` as scripts keep them: see lib/completion.lua. JSON and keys have no line breaks."""
    each = (b"%b\n%b\n%b\n" % (member.kind.encode(), member.key.encode(), member.chosen.tail) for member in members)
    return members[0].chosen.head + b"\n" + b"".join(each)


def _joined(json_types: Collection[str]) -> str:
    # most points take anything, and there may be many of them
    return "*" if len(json_types) == len(ALL_JSON_TYPES) else ",".join(json_types)


@dataclass(frozen=True, slots=True)
class Payload:
    """What a signal or a message brings: its JSON, and the type that its sender names."""

    tag: str
    json_type: str
    json: bytes


class Outcome(NamedTuple):
    """How an instance ends."""

    status: Status
    value: bytes
    """The output, or the error, as JSON."""
    message: str
    failed_keys: Sequence[str] = ()
    """Keys of the records that a resume clears."""


class NextLife(NamedTuple):
    """What an instance goes on with when a life of it ends."""

    life: str
    """Its token."""
    input: bytes
    read: Sequence[str] = ()
    """Keys of signals and messages that the author was handed in the life that ends; the others are left to this."""


class Origin(NamedTuple):
    """What a fork begins with, as it stood in the other instance at one moment."""

    life: str
    input: bytes
    labels: Labels
    deadline_ms: int | None
    steps: Mapping[str, bytes]
    """All fields: records by their keys, and what scripts know of them."""
    family: Mapping[str, bytes]
    """All fields: how its children ended, by key and number."""


class Copied(NamedTuple):
    """What a fork takes of its origin."""

    steps: Mapping[str, bytes]
    family: Mapping[str, bytes]

    def words(self) -> list[lua.Argument]:
        return [word for fields in self for field in fields.items() for word in field]
