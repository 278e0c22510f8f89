"""What is true of a namespace between any two scripts, read with plain commands and without a word of Lua."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from memable.endpoint import ServerRefused
from memable.journal import Record
from memable.keys import (
    DEADLINE_KEY,
    DELAY_KEY,
    ENTRY_FIELD,
    GROUP,
    InstanceKeys,
    Keys,
    Partition,
    child_id,
    is_child,
    split_expiry_member,
    split_instance_name,
    split_timer_member,
)
from memable.state import Status, StepKind, StepState
from memable.store import Connection

LIVE = frozenset({Status.QUEUED, Status.RUNNING})
"""Where an instance has a stream entry, unless it waits for a time."""


def is_ready(fields: dict[str, str]) -> bool:
    """Whether an instance is to have a stream entry: it is running, or queued and waits for no time."""
    return Status(fields["status"]) in LIVE and "due" not in fields and not backs_off(fields)


def backs_off(fields: dict[str, str]) -> bool:
    """Whether an instance is queued, and waits for nothing but the next attempts of steps."""
    return fields["status"] == "queued" and fields["message"].startswith("retrying ")


OF_A_RUN = frozenset({"lease", "worker", "control"})
_KNOWN = frozenset(
    [
        "status",
        "message",
        "version",
        "life",
        "invoked_by",
        "first_input",
        "input",
        "output",
        "error",
        "progress",
        "waiting",
        "choosing",
        "entry",
        "due",
        "retrying",
        "lease",
        "worker",
        "control",
        "rested_by",
        "resumed_by",
        "cancelled_by",
        "deadline_ms",
        "ends_ms",
        "news",
        "failed_keys",
        "inbox",
        "attempt",
        "recoveries",
        "alone",
        "turn",
        "said",
        "labels",
        "forked_from",
        "trace",
        "created_us",
        "started_ms",
        "completed_ms",
        "parent",
        "family",
    ]
)


@dataclass(frozen=True)
class Stream:
    """A stream: which instance each entry names, and who each pending entry was delivered to."""

    entries: dict[str, str]
    pending: dict[str, str]


@dataclass
class Scene:
    """Everything in a namespace at one moment; equal to another if nothing has changed but idle times."""

    hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    zsets: dict[str, dict[str, float]] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    expires_ms: dict[str, int] = field(default_factory=dict)
    now_ms: float = field(default=0, compare=False)


_READ: dict[str, tuple[tuple[str, ...], tuple[str | int, ...]]] = {
    "hash": (("HGETALL",), ()),
    "zset": (("ZRANGE",), (0, -1, "WITHSCORES")),
    "stream": (("XRANGE",), ("-", "+")),
    "string": (("GET",), ()),
}
"""What is written before and after a key to read it whole, by its type."""


_FOR_EVER = -1
"""What PEXPIRETIME says of a key that does not expire; of one that has expired since, less."""


async def look(connection: Connection, namespace: str) -> Scene:
    """Read the whole namespace. Nobody may write meanwhile."""
    command, scene = connection.command, Scene()
    names, cursor = set[str](), b"0"
    while True:
        cursor, found = await command("SCAN", cursor, "MATCH", f"{namespace}:*", "COUNT", 10_000)
        names.update(name.decode() for name in found)
        if cursor == b"0":
            break
    kinds = await asyncio.gather(*(command("TYPE", name) for name in names))
    # "none": expired since
    there = [(name, kind.decode()) for name, kind in zip(names, kinds, strict=True) if kind != b"none"]
    read = [(*_READ[kind][0], name, *_READ[kind][1]) for name, kind in there]
    replies = asyncio.gather(*(command(*words) for words in read))
    expiries = asyncio.gather(*(command("PEXPIRETIME", name) for name, _ in there))
    now = command("TIME")
    for (name, kind), reply in zip(there, await replies, strict=True):
        match kind:
            case "hash":
                scene.hashes[name] = dict(_pairs(reply))
            case "zset":
                scene.zsets[name] = {member: float(score) for member, score in _pairs(reply)}
            case "stream":
                entries = {entry.decode(): _named(fields) for entry, fields in reply}
                scene.streams[name] = Stream(entries, await _pending(connection, name))
            case _ if reply is not None:
                scene.strings[name] = reply.decode()
            case _:
                pass  # expired since
    asked = {name: at for (name, _), at in zip(there, await expiries, strict=True)}
    scene.expires_ms = {name: at for name, at in asked.items() if at >= 0}
    seconds, microseconds = await now
    scene.now_ms = int(seconds) * 1000 + int(microseconds) / 1000
    # what expired while it was read may have been seen in part
    for name in [name for name, at in asked.items() if at != _FOR_EVER and at <= scene.now_ms]:
        scene.expires_ms.pop(name, None)
        scene.hashes.pop(name, None)
    scene.hashes = {name: fields for name, fields in scene.hashes.items() if fields}
    return scene


def _pairs(flat: list[bytes]) -> Iterator[tuple[str, str]]:
    return zip((each.decode() for each in flat[::2]), (each.decode() for each in flat[1::2]), strict=True)


def _after(prefix: str, fields: dict[str, str]) -> list[str]:
    return [name.removeprefix(prefix) for name in fields if name.startswith(prefix)]


async def _pending(connection: Connection, stream: str) -> dict[str, str]:
    try:
        pending = await connection.command("XPENDING", stream, GROUP, "-", "+", 1_000_000)
    except ServerRefused as error:
        if error.code != "NOGROUP":
            raise
        return {}
    return {entry.decode(): worker.decode() for entry, worker, *_ in pending}


def _named(fields: list[bytes]) -> str:
    assert fields[0] == ENTRY_FIELD.encode()
    assert len(fields) == 2
    return fields[1].decode()


async def check(connection: Connection, keys: Keys) -> Scene:
    """The namespace, if it is in order; else `AssertionError` with all that is not."""
    scene = await look(connection, keys.namespace)
    found = list(violations(scene, keys))
    assert not found, "\n".join(found)
    return scene


def violations(scene: Scene, keys: Keys) -> Iterator[str]:
    """Every breach of an invariant, as a sentence."""
    workers = {name for name in scene.strings if name.startswith(keys.worker(""))}
    for name in workers - scene.expires_ms.keys():
        yield f"{name} outlives its worker"
    known = {keys.workflows, keys.workers, Keys.meta(keys.namespace), *workers}
    for partition in keys.partitions:
        found = _Part(scene, keys, partition)
        known |= found.names
        yield from found.violations()
    for name in {*scene.hashes, *scene.zsets, *scene.streams, *scene.strings} - known:
        yield f"{name} is no key that keys.py lists"


class Kin:
    """The family of an instance, beside the children themselves."""

    def __init__(self, scene: Scene, parent: InstanceKeys, family: dict[str, str]) -> None:
        self.scene, self.parent, self.family = scene, parent, family
        self.fields = scene.hashes[parent.instance]
        self.keys = [name.removeprefix("_workflow:") for name in family if name.startswith("_workflow:")]

    def ends(self, key: str) -> dict[int, str]:
        """The status of each child of `key` that has ended, by its number."""
        found = (name.rpartition("~") for name in self.family if not name.startswith("_"))
        return {int(n): self.family[f"{k}~{n}"].split(" ", maxsplit=1)[0] for k, _, n in found if k == key}

    def child(self, key: str, number: int) -> InstanceKeys:
        child = child_id(self.parent.instance_id, self.fields["life"], key, number)
        return self.parent.partition.of(self.family[f"_workflow:{key}"], child)

    def violations(self) -> Iterator[str]:
        if "family" not in self.fields:
            yield "has a family, and its hash does not say so"
        living = 0
        for key in self.keys:
            ends = self.ends(key)
            created = int(self.family[f"_created:{key}"])
            living += created - len(ends)
            failed = [number for number, status in ends.items() if status != "completed"]
            if created > int(self.family[f"_total:{key}"]):
                yield f"{created} children of {key}, which is more than all"
            if int(self.family.get(f"_ended:{key}", 0)) != len(ends) or any(number >= created for number in ends):
                yield f"{key}: {created} were made, and ended are {ends}"
            if int(self.family.get(f"_failed:{key}", 0)) != len(failed):
                yield f"{key}: failed are {failed}"
            if int(self.family.get(f"_first:{key}", (failed or [0])[0])) not in (failed or [0]):
                yield f"{key}: the first that failed has not"
            yield from self._of_children(key, created, ends)
            yield from self._of_point(key, ends, failed)
        if int(self.family.get("_living", 0)) != living:
            yield f"living are {living}, not {self.family.get('_living')}"

    def _of_children(self, key: str, created: int, ends: dict[int, str]) -> Iterator[str]:
        for number in range(created):
            child = self.child(key, number)
            fields = self.scene.hashes.get(child.instance)
            if fields is None:
                if number not in ends:
                    yield f"{child.name} is gone, and has not ended"
            elif fields.get("parent") != self.parent.name:
                yield f"{child.name} is the child of {fields.get('parent')}"
            elif Status(fields["status"]).is_terminal and number not in ends:
                yield f"{child.name} is {fields['status']}, and its family was not told"

    def _of_point(self, key: str, ends: dict[int, str], failed: list[int]) -> Iterator[str]:
        opened = self.scene.hashes.get(self.parent.steps, {}).get(f"_open:{key}")
        if opened is not None:
            kind, _, wake_at, created, fail_fast = opened.split(" ")
            if kind != "child" or int(self.family[f"_created:{key}"]) < int(created):
                yield f"{key} is open as {opened}"
            if len(ends) >= int(wake_at) or (failed and fail_fast == "1"):
                yield f"{key} is open as {opened}, and ended are {ends}"


class _Part:
    """One partition of a scene."""

    def __init__(self, scene: Scene, keys: Keys, partition: Partition) -> None:
        self.scene, self.keys, self.partition = scene, keys, partition
        start = partition.prefix + "instance:"
        named = [name.removeprefix(start) for name in scene.hashes if name.startswith(start)]
        self.instances = {name: partition.of(*split_instance_name(name)) for name in named}
        self.timers = scene.zsets.get(partition.timers, {})
        self.expiry = scene.zsets.get(partition.expiry, {})
        self.workflows = {each.workflow for each in self.instances.values()}
        self.workflows |= {name.removeprefix(partition.stream("")) for name in self._starting(scene.streams, "stream:")}
        self.workflows |= {
            name.removeprefix(f"{partition.prefix}index:").split("/", maxsplit=1)[0]
            for name in self._starting(scene.zsets, "index:")
        }

    def _starting(self, names: Iterable[str], kind: str) -> list[str]:
        return [name for name in names if name.startswith(self.partition.prefix + kind)]

    @property
    def names(self) -> set[str]:
        """All keys that this partition may have."""
        partition, each = self.partition, self.instances.values()
        return {
            *(k.instance for k in each),
            *(k.steps for k in each),
            *(k.inbox for k in each),
            *(k.family for k in each),
            *(partition.stream(workflow) for workflow in self.workflows),
            *(index for wf in self.workflows for status in Status for index in partition.indexes(wf, status)),
            *(index for index, _ in self._label_places()),
            *self._starting(self.scene.hashes, "orphans:"),
            partition.timers,
            partition.bereaved,
            partition.expiry,
            partition.leader,
            partition.solitude,
        }

    def violations(self) -> Iterator[str]:
        for name, keys in self.instances.items():
            for each in self._of_instance(keys):
                yield f"{name}: {each}"
            if self.keys.of(keys.workflow, keys.instance_id).instance != keys.instance:
                yield f"{name} is in the wrong partition"
            if (family := self.scene.hashes.get(keys.family)) is not None:
                for each in Kin(self.scene, keys, family).violations():
                    yield f"{name}: {each}"
        for workflow in self.workflows:
            yield from self._of_stream(workflow)
            yield from self._of_listing(workflow)
        for member in self.timers:
            workflow, instance_id, key = split_timer_member(member)
            name = f"{workflow}/{instance_id}"
            if name not in self.instances or not self._is_waited_for(self.instances[name], key):
                yield f"timer {member} belongs to no open point, to no delay and to no deadline"
        names = {(each.workflow, each.instance_id) for each in self.instances.values()}
        for name, at in self.expiry.items():
            if split_expiry_member(name)[:2] not in names and at > self.scene.now_ms:
                yield f"{name} is gone before its retention ended"
        yield from self._of_labels()

    def _label_places(self) -> dict[tuple[str, str], float]:
        """Index and id of each place in an index of a label, and its time."""
        indexes = self._starting(self.scene.zsets, "label:")
        return {(index, id): at for index in indexes for id, at in self.scene.zsets[index].items()}

    def _of_labels(self) -> Iterator[str]:
        expected, members = dict[tuple[str, str], float](), dict[str, float]()
        for name, keys in self.instances.items():
            fields = self.scene.hashes[keys.instance]
            if "labels" in fields:
                created_us, lines = fields["created_us"], fields["labels"].split("\n")
                expected |= {(index, keys.instance_id): int(created_us) for index in keys.labels(lines)}
                if name in self.expiry:
                    members["\n".join([name, created_us, *lines])] = self.expiry[name]
        there, to_trim = self._label_places(), set[tuple[str, str, float]]()
        for member, at in self.expiry.items():
            workflow, instance_id, created_us, lines = split_expiry_member(member)
            if lines and members.get(member) != at:
                if at > self.scene.now_ms:
                    yield f"{member!r} is to be trimmed at {at}, and belongs to no instance that has ended"
                to_trim |= {(self.partition.label(workflow, line), instance_id, float(created_us)) for line in lines}
        for place, created in there.items():
            if expected.get(place) != created and (*place, created) not in to_trim:
                yield f"{place} is labelled, and is to be {expected.get(place)}, not {created}"
        if missing := {*expected, *members} - {*there, *self.expiry}:
            yield f"{missing} are missing among the labels"

    def _is_waited_for(self, keys: InstanceKeys, key: str) -> bool:
        if key == DELAY_KEY:
            return "due" in self.scene.hashes[keys.instance]
        if key == DEADLINE_KEY:
            return "ends_ms" in self.scene.hashes[keys.instance]
        return f"_open:{key}" in self._steps(keys)

    def _steps(self, keys: InstanceKeys) -> dict[str, str]:
        return self.scene.hashes.get(keys.steps, {})

    def _of_instance(self, keys: InstanceKeys) -> Iterator[str]:
        fields = self.scene.hashes[keys.instance]
        status = Status(fields["status"])
        if unknown := fields.keys() - _KNOWN:
            yield f"unknown fields {unknown}"
        for name in ("version", "created_us", "attempt", "recoveries", "news", "started_ms", "completed_ms"):
            if name in fields and not fields[name].isdecimal():
                yield f"{name} is {fields[name]}, which is no whole number"
        entries = self.scene.streams.get(keys.stream, Stream({}, {}))
        if [e for e, named in entries.entries.items() if named == keys.instance_id] != (
            [fields.get("entry")] if is_ready(fields) else []
        ):
            yield f"{status}, its hash names entry {fields.get('entry')}, and the stream has {entries.entries}"
        if ("entry" in fields) != is_ready(fields):
            yield f"{status}, and its hash names entry {fields.get('entry')}"
        for name in OF_A_RUN:
            if (name in fields) != (status is Status.RUNNING):
                yield f"{status}, and {name} is {fields.get(name)}"
        if status is Status.RUNNING and entries.pending.get(fields.get("entry", "")) is None:
            yield "running, and its entry is not pending"
        if "news" in fields and status is not Status.RUNNING:
            yield f"{status}, and has news"
        listed = [each for each in Status if keys.instance_id in self.scene.zsets.get(keys.index(each), {})]
        if listed != [status]:
            yield f"{status}, and listed as {listed}"
        elif self.scene.zsets[keys.index(status)][keys.instance_id] != int(fields["created_us"]):
            yield "listed with another time than that of its creation"
        yield from self._of_delay(keys, fields, status)
        yield from self._of_deadline(keys, fields, status)
        yield from self._of_points(keys, fields)
        yield from self._of_inbox(keys, fields)
        yield from self._of_end(keys, fields, status)

    def _of_delay(self, keys: InstanceKeys, fields: dict[str, str], status: Status) -> Iterator[str]:
        due_ms, timer_ms = fields.get("due"), self.timers.get(f"{keys.name}/{DELAY_KEY}")
        if (None if due_ms is None else int(due_ms)) != timer_ms:
            yield f"due at {due_ms}, and its timer is {timer_ms}"
        if due_ms is not None and (status is not Status.QUEUED or "attempt" in fields):
            yield f"{status}, and due"

    def _of_deadline(self, keys: InstanceKeys, fields: dict[str, str], status: Status) -> Iterator[str]:
        ends_ms, timer_ms = fields.get("ends_ms"), self.timers.get(f"{keys.name}/{DEADLINE_KEY}")
        if (None if ends_ms is None else int(ends_ms)) != timer_ms:
            yield f"ends at {ends_ms}, and its timer is {timer_ms}"
        if (ends_ms is not None) != ("deadline_ms" in fields and not status.is_terminal):
            yield f"{status}, may live for {fields.get('deadline_ms')} ms, and ends at {ends_ms}"

    def _of_points(self, keys: InstanceKeys, fields: dict[str, str]) -> Iterator[str]:
        steps = self._steps(keys)
        lines = {name.removeprefix("_open:"): line for name, line in steps.items() if name.startswith("_open:")}
        yield from self._of_back_offs(keys, fields, {key for key, line in lines.items() if line.startswith("retry ")})
        opened = {key for key, line in lines.items() if not line.startswith("retry ")}
        records = {key: Record(raw.encode()) for key, raw in steps.items() if not key.startswith("_")}
        choices = {key for key in opened if steps[f"_open:{key}"].startswith("choice ")}
        for name, expected in (("waiting", opened - choices), ("choosing", choices)):
            named = fields[name].split("\n") if name in fields else []
            if len(named) != len(expected) or set(named) != expected:
                yield f"{name} names {named}, and open are {expected}"
        if (suspended := {key for key, record in records.items() if record.is_open}) != opened:
            yield f"suspended records are {suspended}, and open are {opened}"
        for key, record in records.items():
            facts = json.loads(record.raw)
            if record.is_open and str(record.kind) != steps.get(f"_open:{key}", "").split(" ")[0]:
                yield f"{key} is open as another kind than its record"
            if not record.is_retrying and facts.get("due_ms") != self.timers.get(f"{keys.name}/{key}"):
                yield f"{key}: its record is due at {facts.get('due_ms')}, its timer {self.timers.get(key)}"
        for name, by in steps.items():
            if name.startswith("_by:"):
                if by.startswith("choice "):  # it has lost: a signal to it comes too late
                    if (lost := records.get(name.removeprefix("_by:"))) is not None and lost.kind is not StepKind.STEP:
                        yield f"{name} has lost, and the record is {lost.raw!r}"
                    continue
                record = records[name.removeprefix("_by:")]
                is_late = by == "timer" and record.kind is not StepKind.TIMER
                ended = StepState.FAILED if is_late else StepState.COMPLETED
                if record.state is not ended or record.kind is StepKind.STEP:
                    yield f"{name} is {by}, and the record is {record.raw!r}"

    def _of_back_offs(self, keys: InstanceKeys, fields: dict[str, str], opened: set[str]) -> Iterator[str]:
        steps = self._steps(keys)
        waiting = fields["retrying"].split("\n") if "retrying" in fields else []
        if len(waiting) != len(opened) or set(waiting) != opened:
            yield f"retrying names {waiting}, and open are {opened}"
        if backs_off(fields) and not opened:
            yield "waits for the next attempts of steps, and there is none"
        retried = {name.removeprefix("_retry:"): line for name, line in steps.items() if name.startswith("_retry:")}
        records = {key: Record(steps[key].encode()) for key in retried if key in steps}
        retrying = {key for key, raw in steps.items() if not key.startswith("_") and Record(raw.encode()).is_retrying}
        if retried.keys() != retrying or not opened <= retrying:
            yield f"to be called again are {retried.keys()}, their records say {retrying}, and open are {opened}"
        for key, record in records.items():
            facts, timer_ms = json.loads(record.raw), self.timers.get(f"{keys.name}/{key}")
            if retried[key] != f"{record.attempts} {facts['started_ms']}":
                yield f"{key} was called {retried[key]}, and its record is {record.raw!r}"
            if timer_ms != (facts["due_ms"] if key in opened else None):
                yield f"{key}: its record is due at {facts['due_ms']}, its timer {timer_ms}"

    def _of_inbox(self, keys: InstanceKeys, fields: dict[str, str]) -> Iterator[str]:
        inbox, steps = self.scene.hashes.get(keys.inbox, {}), self._steps(keys)
        if inbox and fields.get("inbox") != "1":
            yield "has an inbox, and does not know of it"
        for key in _after("signal:", inbox):
            kind = Record(steps[key].encode()).kind if key in steps else None
            if kind in (StepKind.SIGNAL, StepKind.TIMER):
                yield f"a signal to {key} is kept, and the point is open or completed"
        for mailbox in _after("sent:", inbox):
            sent, read = int(inbox[f"sent:{mailbox}"]), int(inbox.get(f"read:{mailbox}", 0))
            numbers = [*map(int, _after(f"mail:{mailbox}/", inbox))]
            if sorted(numbers) != [*range(read + 1, sent + 1)]:
                yield f"mailbox {mailbox}: of {sent} messages {read} are read, and there are {sorted(numbers)}"
            if numbers and any(re.fullmatch(rf"message \d+ {re.escape(mailbox)}", open) for open in steps.values()):
                yield f"mailbox {mailbox} has unread messages, and an open receive"
            ids = {inbox[f"id:{mailbox}/{id}"]: id for id in _after(f"id:{mailbox}/", inbox)}
            if ids != {number: inbox[f"nth:{mailbox}/{number}"] for number in _after(f"nth:{mailbox}/", inbox)}:
                yield f"mailbox {mailbox}: the ids and their numbers differ"
            if {*map(int, ids)} != {*range(max(0, sent - 1000) + 1, sent + 1)}:
                yield f"mailbox {mailbox}: of {sent} messages it remembers {sorted(map(int, ids))}"

    def _of_end(self, keys: InstanceKeys, fields: dict[str, str], status: Status) -> Iterator[str]:
        of_it = (keys.instance, keys.steps, keys.inbox, keys.family)
        expires = [self.scene.expires_ms.get(name) for name in of_it if name in self.scene.hashes]
        expected = self.expiry.get(keys.name) if status.is_terminal else None
        if (expected is None) == status.is_terminal:
            yield f"{status}, and its place among those that expire is {expected}"
        if any(each != expected for each in expires):
            yield f"{status}, expires at {expires}, and is to expire at {expected}"
        if not status.is_terminal and (self.expiry.get(keys.name) is not None):
            yield f"{status}, and among those that expire"
        ended = {name for name in ("completed_ms", "output", "error", "failed_keys") if name in fields}
        allowed = {
            Status.COMPLETED: {"completed_ms", "output"},
            Status.CANCELLED: {"completed_ms"},
            Status.FAILED: {"completed_ms", "error", "failed_keys"},
        }.get(status, set())
        if not (status.is_terminal or not ended) or not ended <= allowed:
            yield f"{status}, and has {ended}"
        if status.is_terminal and not allowed - {"failed_keys"} <= ended:
            yield f"{status}, and has only {ended}"
        if status.is_terminal and fields.keys() & {"waiting", "choosing", "retrying", "recoveries"}:
            yield f"{status}, and has points or recoveries"

    def _of_stream(self, workflow: str) -> Iterator[str]:
        stream = self.scene.streams.get(self.partition.stream(workflow), Stream({}, {}))
        if ghosts := stream.pending.keys() - stream.entries.keys():
            yield f"stream of {workflow}: {ghosts} are pending, and deleted"
        here = [each for each in self.instances.values() if each.workflow == workflow]
        live = [each.instance_id for each in here if is_ready(self.scene.hashes[each.instance])]
        if Counter(live) != Counter(stream.entries.values()):
            yield f"stream of {workflow} names {list(stream.entries.values())}, and live are {live}"

    def _of_listing(self, workflow: str) -> Iterator[str]:
        for status in Status:
            listed, children = self.partition.indexes(workflow, status)
            if wrong := [id for id in self.scene.zsets.get(listed, {}) if is_child(id)]:
                yield f"{wrong} are children, and listed among those that were invoked"
            if wrong := [id for id in self.scene.zsets.get(children, {}) if not is_child(id)]:
                yield f"{wrong} are no children, and listed among them"
            for instance_id in (*self.scene.zsets.get(listed, {}), *self.scene.zsets.get(children, {})):
                name = f"{workflow}/{instance_id}"
                expired = status.is_terminal and self.expiry.get(name, self.scene.now_ms + 1) <= self.scene.now_ms
                if name not in self.instances and not expired:
                    yield f"{name} is listed as {status}, and does not exist"
