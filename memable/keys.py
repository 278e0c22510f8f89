"""Every name in Redis: keys, channels, members. Nothing else in memable spells one.

`ns` is the namespace, `p` the partition, `WF` a workflow's name, `ID` an instance's id. The braces make Redis Cluster
keep all keys of a partition in one slot, so that each script touches one slot.

| name                     | type    | content                                               | lifetime               |
|--------------------------|---------|-------------------------------------------------------|------------------------|
| `ns:{p}:instance:WF/ID`  | hash    | one instance (fields below)                           | retention, from end    |
| `ns:{p}:steps:WF/ID`     | hash    | step key -> JSON record; `_…` what scripts must read  | retention, from end    |
| `ns:{p}:inbox:WF/ID`     | hash    | what came before the instance waits for it (see below) | retention, from end    |
| `ns:{p}:stream:WF`       | stream  | an entry (`i`: ID) per instance ready or running      | for ever; empty idle   |
| `ns:{p}:timers`          | zset    | `WF/ID/KEY` by deadline in ms; `_delay` for a KEY     | while it has a member  |
| `ns:{p}:index:WF/STATUS` | zset    | ID by creation time in µs; children in `WF/~STATUS`   | trimmed by the leader  |
| `ns:{p}:label:WF/K=V`    | zset    | ID by creation time in µs: those with this label      | trimmed by the leader  |
| `ns:{p}:family:WF/ID`    | hash    | `KEY~N` -> how that child of it ended (fields below)  | retention, from end    |
| `ns:{p}:orphans:LIFE`    | hash    | the family of a life that is over, and not kept       | until they are ended   |
| `ns:{p}:bereaved`        | zset    | `WF/ID/LIFE` of ended lives that left living children | while it has a member  |
| `ns:{p}:expiry`          | zset    | `WF/ID` by the time in ms at which retention ends     | trimmed by the leader  |
| `ns:{p}:leader`          | string  | the worker that leads; ` new` behind it: gives way    | one lease              |
| `ns:{p}:solitude`        | string  | a worker takes nothing, so that a suspect runs alone   | three leases           |
| `ns:{p}:events:WF/ID`    | channel | each state change, as JSON with its version           | –                      |
| `ns:{p}:control:WORKER`  | channel | to who holds it: `news WF/ID`, or `over LEASE`        | –                      |
| `ns:{p}:wake`            | channel | a timer is due before all others, or nobody leads     | –                      |
| `ns:workflows`           | hash    | announced workflows: name -> JSON with schemas        | for ever               |
| `ns:workers`             | zset    | live workers by the time in ms of their last sign     | trimmed by the workers |
| `ns:worker:NAME`         | string  | what a worker says of itself, as JSON                 | 30 s from its last sign |
| `ns:meta`                | hash    | `layout` version and number of `partitions`           | for ever               |

Fields of an instance: `status`, `message` (what stands behind it), `version` (counts state changes), `life` (random,
made by invoke and by `continue_as`), `input`, `output`, `error` (JSON), `invoked_by`, `first_input` (once it has gone
on in another life: those of the first), `progress` (what `set_status` said last),
`waiting` (keys of open points, one a line), `choosing` (those of each `first` that is undecided), `retrying` (those of
steps that wait for their next attempt), `entry` (its stream entry), `due` (in ms: when a delayed one gets its first),
`deadline_ms`, `ends_ms` (how long it may live, and until when), `lease`, `worker`, `control` (who runs it, and its
channel), `rested_by` (the lease of the run that ended last), `resumed_by`, `cancelled_by` (the tokens of the last 16
resumes and cancels, one a line; `+` behind one that ended it), `turn`, `said` (numbers of its run's last call that
opened or withdrew points, and of its last `set_status`), `news` (signals and timers that came while it ran),
`failed_keys` (records that resume clears, one a line), `attempt` (runs started), `recoveries` (runs lost in a row),
`alone` (1 while it has its worker for itself), `inbox` (1: it has had one), `labels` (`K=V`, one a line), `forked_from`
(id and life of the instance whose records it began with, and the key before which they were cut, one a line),
`created_us`, `started_ms`, `completed_ms`, `trace` (the W3C traceparent of whoever invoked it, if there was one); of a
child `parent` (its `WF/ID`), of a parent `family` (1).

An instance that has labels has two members in `expiry`: beside its name one that says, behind the name, one a line,
when it was made in µs, and its labels. When its hash has expired, that is how the leader finds their indexes.

A child's id is `PARENT~LIFE~KEY~N`: its parent's id and life, the key of the `call` or `fan_out`, its number there. In
its family's hash `KEY~N` is its status and, after a space, its output, error or reason as JSON. Beside it are, of each
key, `_workflow:KEY` and `_total:KEY` (whose children, and how many there are to be), `_started:KEY` (in ms),
`_created:KEY`, `_ended:KEY`, `_failed:KEY` (how many so far; the cancelled have failed, too), `_first:KEY` (the number
of the one that failed first); and `_living` (of all keys), `_resumed` (the parent's last resume, its token and time in
ms: those that failed before are resumed by it), `_rerun:KEY` (the last with this key in `rerun`: all that ended are).

Fields of a steps hash that belong to scripts: `_open:KEY` (kind, start in ms and accepted types of an open point; the
`first` that it is a member of; of a `first`, its members), `_by:KEY` (what completed it: `timer`, its deadline;
`signal` and its id; `message`, `MAILBOX/N` and its id; or `choice` and the key of the `first` in which it has lost) and
`_retry:KEY` (how often a step was called that is to be called again, and the start of the first call in ms).

Fields of an inbox: `signal:KEY` (a signal that is kept until its point is opened: its id, head and tail of its record,
one a line), `seen` (the last 1,000 signals that earlier lives took, or points that were run again: length of the key,
key, id, one a line); of each mailbox `sent:MAILBOX`, `read:MAILBOX` (how many messages), `mail:MAILBOX/N` (the Nth,
unread; as a signal), `id:MAILBOX/ID`, `nth:MAILBOX/N` (number and id of the last 1,000 messages).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from memable.errors import InvalidKey
from memable.state import Status

LAYOUT = "1"
"""The version of this page: a namespace of another layout is refused."""

GROUP = "workers"
"""The consumer group of every stream."""

ENTRY_FIELD = "i"
"""The one field of a stream entry: the instance's id."""

NEWS = "news"
"""On a control channel, before the name of an instance that runs there: a signal or a timer has come for it."""

OVER = "over"
"""On a control channel, before the lease of a run there: others have ended it."""

DELAY_KEY = "_delay"
"""Stands for a key in the timer of an instance whose beginning is delayed."""

DEADLINE_KEY = "_deadline"
"""Stands for a key in the timer of an instance that has a deadline."""

OPEN_PREFIX = "_open:"
"""In a steps hash: before the key of an open point, or of a step that waits for its next attempt."""

CHILD_MARK = "~"
"""Joins the parts of a child's id, in which an id that was chosen has none."""

BEREFT = "bereft"
"""On whose behalf the leader cancels a child: that of a parent which is over. No lease looks like that."""

INTERNAL_PREFIX = "_"
"""Starts the fields of a steps hash that belong to scripts, and keys that authors may not choose."""

COMPLETED_BY = "_by:"
"""In a steps hash, before the key of a point: what completed it."""

LOST_TO = b"choice "
"""Stands there for a point that lost in a `first`, before that one's key."""

TYPES = {
    "instance": "hash",
    "steps": "hash",
    "inbox": "hash",
    "stream": "stream",
    "timers": "zset",
    "index": "zset",
    "label": "zset",
    "family": "hash",
    "orphans": "hash",
    "bereaved": "zset",
    "expiry": "zset",
    "leader": "string",
    "solitude": "string",
}
"""Of each kind of key in a partition, the type."""

_MAX_LENGTH = 200
_IN_PARTITION = re.compile(r"(.*):\{(\d+)\}:([a-z]+)(?::(.*))?", re.DOTALL)
_FORBIDDEN = re.compile(r"[/~\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_FORBIDDEN_IN_EXISTING = re.compile(r"[/\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_GLOB = re.compile(r"([*?\[\]\\])")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def check_name(label: str, value: object) -> str:
    """`value`, if it can be a workflow's name or a chosen instance id; else `InvalidKey`."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_LENGTH or _FORBIDDEN.search(value):
        raise InvalidKey(label, value)
    return value


def check_key(label: str, value: object) -> str:
    """`value`, if it can be the key of a durable call; else `InvalidKey`."""
    if check_name(label, value).startswith(INTERNAL_PREFIX):
        raise InvalidKey(label, value)
    return str(value)


def check_existing_id(label: str, value: object) -> str:
    """`value`, if an instance can have this id: also one that memable made for a child."""
    if not isinstance(value, str) or not value or _FORBIDDEN_IN_EXISTING.search(value):
        raise InvalidKey(label, value)
    return value


def check_existing_key(label: str, value: object) -> str:
    """`value`, if a record can stand under it: also one that memable made for an item of a `map`."""
    if check_existing_id(label, value).startswith(INTERNAL_PREFIX):
        raise InvalidKey(label, value)
    return str(value)


def check_namespace(value: str) -> str:
    """`value`, if it can be a namespace; else `InvalidKey`."""
    if not _NAMESPACE.fullmatch(value):
        raise InvalidKey("namespace", value)
    return value


def child_id(parent_id: str, life: str, key: str, number: int) -> str:
    """The id of the child `number` of a call's `key`, in a life of its parent."""
    return CHILD_MARK.join((parent_id, life, key, str(number)))


def split_child_id(instance_id: str) -> tuple[str, str, str, int]:
    """Parent's id, its life, key and number in an id that memable made; `ValueError` for another one."""
    parent_id, life, key, number = instance_id.rsplit(CHILD_MARK, 3)
    return parent_id, life, key, int(number)


def is_child(instance_id: str) -> bool:
    """Whether memable made this id, for a child."""
    return CHILD_MARK in instance_id


class InstanceKeys:
    """The names that concern one instance."""

    __slots__ = ("_shared", "instance", "instance_id", "name", "partition", "steps", "workflow")

    def __init__(self, partition: Partition, workflow: str, instance_id: str) -> None:
        self.partition = partition
        self.workflow, self.instance_id = workflow, instance_id
        self._shared = _shared(partition.prefix, workflow, CHILD_MARK in instance_id)
        self.name = name = f"{workflow}/{instance_id}"
        self.instance = f"{partition.prefix}instance:{name}"
        self.steps = f"{partition.prefix}steps:{name}"

    @property
    def stream(self) -> str:
        return self._shared.stream

    @property
    def timers(self) -> str:
        return self.partition.timers

    @property
    def expiry(self) -> str:
        return self.partition.expiry

    @property
    def inbox(self) -> str:
        return f"{self.partition.prefix}inbox:{self.name}"

    @property
    def family(self) -> str:
        return f"{self.partition.prefix}family:{self.name}"

    @property
    def events(self) -> str:
        return f"{self.partition.prefix}events:{self.name}"

    def index(self, status: Status) -> str:
        return self._shared.indexes[status]

    def labels(self, lines: Iterable[str]) -> list[str]:
        """The indexes of labels, given as `NAME=VALUE` each."""
        return [self.partition.label(self.workflow, line) for line in lines]


class _Shared:
    """The names that the instances of a workflow in one partition share; its children have indexes of their own."""

    __slots__ = ("indexes", "stream")

    def __init__(self, partition: Partition, workflow: str, *, of_children: bool) -> None:
        self.stream = partition.stream(workflow)
        self.indexes = {status: partition.index(workflow, status, of_children=of_children) for status in Status}


@lru_cache(maxsize=1024)
def _shared(prefix: str, workflow: str, of_children: bool) -> _Shared:
    return _Shared(Partition(prefix), workflow, of_children=of_children)


@dataclass(frozen=True)
class Partition:
    """The names of one partition."""

    prefix: str

    @cached_property
    def timers(self) -> str:
        return f"{self.prefix}timers"

    @cached_property
    def expiry(self) -> str:
        return f"{self.prefix}expiry"

    @cached_property
    def leader(self) -> str:
        return f"{self.prefix}leader"

    @cached_property
    def wake(self) -> str:
        return f"{self.prefix}wake"

    @cached_property
    def solitude(self) -> str:
        return f"{self.prefix}solitude"

    @cached_property
    def bereaved(self) -> str:
        return f"{self.prefix}bereaved"

    def orphans(self, life: str) -> str:
        return f"{self.prefix}orphans:{life}"

    def stream(self, workflow: str) -> str:
        return f"{self.prefix}stream:{workflow}"

    def index(self, workflow: str, status: Status, *, of_children: bool = False) -> str:
        return f"{self.prefix}index:{workflow}/{CHILD_MARK if of_children else ''}{status.value}"

    def indexes(self, workflow: str, status: Status) -> tuple[str, str]:
        """That of the workflow's instances which were invoked, and that of those which are children."""
        return self.index(workflow, status), self.index(workflow, status, of_children=True)

    def label(self, workflow: str, line: str) -> str:
        """The index of a label, given as `NAME=VALUE`."""
        return f"{self.prefix}label:{workflow}/{line}"

    def control(self, worker: str) -> str:
        return f"{self.prefix}control:{worker}"

    def of(self, workflow: str, instance_id: str) -> InstanceKeys:
        return InstanceKeys(self, workflow, instance_id)


class Keys:
    """The names of one namespace: where to find everything.

    >>> keys = Keys("memable", partitions=1)
    >>> keys.of("order", "42").instance
    'memable:{0}:instance:order/42'
    """

    def __init__(self, namespace: str, *, partitions: int) -> None:
        self.namespace = check_namespace(namespace)
        self.partitions = tuple(Partition(f"{namespace}:{{{number}}}:") for number in range(partitions))
        self.workflows = f"{namespace}:workflows"
        self.workers = f"{namespace}:workers"

    def worker(self, name: str) -> str:
        """What this worker says of itself: see presence.py."""
        return f"{self.namespace}:worker:{name}"

    def all_events(self, workflow: str | None = None) -> str:
        """The pattern of the channels of all instances, or of those of a workflow.

        Rights to listen are given by the first (`&ns:{*}:events:*`): Redis compares the two as they are written.
        """
        names = "*" if workflow is None else _GLOB.sub(r"\\\1", workflow) + "/*"
        return f"{self.namespace}:{{*}}:events:{names}"

    @staticmethod
    def meta(namespace: str) -> str:
        """The hash that is read before the number of partitions is known."""
        return f"{check_namespace(namespace)}:meta"

    def find(self, name: str) -> tuple[Partition, str, str] | None:
        """Partition, kind (a word of `TYPES`) and rest of a name in a partition; nothing for any other one."""
        found = _IN_PARTITION.fullmatch(name)
        if found is None or found[1] != self.namespace or int(found[2]) >= len(self.partitions):
            return None
        return self.partitions[int(found[2])], found[3], found[4] or ""

    def of(self, workflow: str, instance_id: str) -> InstanceKeys:
        """The names of one instance; a family shares the partition of its root, the part before the first `~`."""
        partitions = self.partitions
        if len(partitions) == 1:
            return InstanceKeys(partitions[0], workflow, instance_id)
        root = instance_id.partition(CHILD_MARK)[0]
        return InstanceKeys(partitions[zlib.crc32(root.encode()) % len(partitions)], workflow, instance_id)


def split_timer_member(member: str) -> tuple[str, str, str]:
    """Workflow, instance id and key of a member of `timers`; `points.lua` joins them."""
    workflow, instance_id, key = member.split("/", 2)
    return workflow, instance_id, key


def split_events_channel(channel: str) -> tuple[str, str]:
    """Workflow and instance id of the channel on which an instance's state changes are published; `ValueError`."""
    return split_instance_name(channel.partition("}:events:")[2])


def split_expiry_member(member: str) -> tuple[str, str, str, list[str]]:
    """Workflow and instance id of a member of `expiry`; of one for labels, too, when the instance was made, and these.

    That is in µs, else empty. `state.lua` joins them. `ValueError` for what is none.
    """
    name, _, labelled = member.partition("\n")
    created_us, *lines = labelled.split("\n")
    return *split_instance_name(name), created_us, lines


def split_instance_name(name: str) -> tuple[str, str]:
    """Workflow and instance id of a `WF/ID` name; `ValueError` for what is none."""
    workflow, instance_id = name.split("/", 1)
    return workflow, instance_id


def bereaved_member(parent: InstanceKeys, life: str) -> str:
    """What stands in `bereaved` for a life that has left living children."""
    return f"{parent.name}/{life}"


def split_bereaved(member: str) -> tuple[str, str, str]:
    """Workflow, instance id and life of a member of `bereaved`; `family.lua` joins them."""
    workflow, instance_id, life = member.split("/")
    return workflow, instance_id, life
