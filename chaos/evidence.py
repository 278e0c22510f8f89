"""All that was seen of one performance, for the checker to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from chaos.history import History
from chaos.ledger import Line


class Kind(StrEnum):
    """The kinds of faults."""

    KILL = "SIGKILL to a worker"
    STOP = "SIGSTOP beyond the lease"
    PAUSE = "SIGSTOP within the lease"
    TERM = "SIGTERM to a worker"
    SERVER = "server killed and restarted"
    CUT_REQUEST = "connection cut before a request"
    CUT_REPLY = "connection cut before a reply"
    CUT_INSIDE = "connection cut inside a reply"
    CUT_ALL = "all connections of a proxy cut"
    POISON = "killed by an instance"
    BLOCK = "event loop blocked by an instance"


DEADLY: Final = frozenset({Kind.KILL, Kind.POISON})
"""Those that end a worker on the spot: nothing it did later is its own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; for as long as it lasts it hinders whoever it hits."""

    kind: Kind
    at_s: float
    until_s: float
    pid: int | None = None
    """The worker process that it hit; None if it hit the server, or the client."""


@dataclass(slots=True)
class Invoked:
    """An instance as the client knows it: its invoke was acknowledged."""

    name: str
    output: Sequence[str]
    """What it returns if all goes well, as the client has chosen input and answers."""
    tries: int
    """Calls of `invoke` until one was acknowledged."""
    created: bool
    """What the acknowledgement said."""
    or_else: Sequence[Sequence[str]] = ()
    """What it may return as well."""
    lives: int = 1
    """How many it has, if all goes well."""
    resumed_s: list[float] = field(default_factory=list)
    """When each `resume` was first asked for."""
    fails: str | None = None
    """The type of the error that it must end with, if it may not end well."""
    cancelled_s: float | None = None
    """When a `cancel` was first asked for."""
    told: str | None = None
    """The status that the `cancel` was answered with."""
    result: Sequence[str] | str | None = None
    """What the client was told in the end: the output, or an error's text; None if it still waits."""


class Answer(StrEnum):
    """How a signal was answered."""

    ACCEPTED = "accepted"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    """The instance was over."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal that was answered, after as many tries as it took."""

    name: str
    key: str
    signal_id: str
    payload: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Written:
    """A finished record, and how long it stood."""

    kind: str
    text: str
    completed_s: float
    dropped_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Said:
    """A line that a worker has written."""

    pid: int
    at_s: float | None
    """None: it is no line of the log, but was written past it, as Python does with an exception that nobody caught."""
    level: str
    logger: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer in the group of a stream."""

    stream: str
    pid: int
    """The worker's process."""


@dataclass(frozen=True, slots=True)
class Left:
    """What was in Redis when all was over, and the workers were gone."""

    statuses: Mapping[str, str] = field(default_factory=dict)
    """By `WF/ID`."""
    completed_ms: Mapping[str, int] = field(default_factory=dict)
    entries: int = 0
    pending: int = 0
    immortal: Sequence[str] = ()
    """Keys of instances that have no lifetime."""
    consumers: Sequence[Consumer] = ()
    disorder: Sequence[str] = ()
    """Breaches of the invariants of DESIGN section 3, as sentences."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was seen. Times are of the wall clock, which Redis and all processes share."""

    lease_s: float
    faults: Sequence[Fault]
    invoked: Sequence[Invoked]
    signalled: Sequence[Signalled]
    ledger: Sequence[Line]
    history: History
    left: Left
    ended_s: float
    settled: bool
    """Whether all instances came to their ends within the time for it, once the faults had stopped."""
    gone_s: Mapping[int, float] = field(default_factory=dict)
    """When each worker process that was started was gone."""
    said: Sequence[Said] = ()
    """What stands in the logs of the workers and is no mere information."""
    surprises: Sequence[str] = ()
    """Workers that ended and were not told to, errors that no fault explains: as sentences."""
    clock_drift_s: float = 0.0
    """By how much the wall clock moved against the monotonic one."""
