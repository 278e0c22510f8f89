"""Every write that a Redis has seen, read from its AOF: nothing that was written and written over is missed.

What scripts do is in the AOF command by command, in the order in which it was done; with fsync always, all that was
ever acknowledged. Only a server whose AOF was never rewritten has its whole history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import hiredis

from chaos.names import life_name
from memable.keys import DEADLINE_KEY, DELAY_KEY, Partition

Place = tuple[str, str]
"""The name of an instance in one of its lives (names.py), and a key."""


OPEN: Final = '{"state":"suspended"'
RETRYING: Final = '{"state":"retrying"'
"""How the records begin that are not finished: of a point that is open, of a step that is called again later."""


def is_finished(text: str) -> bool:
    """Whether a record is one that stays as it is."""
    return not text.startswith((OPEN, RETRYING))


@dataclass
class Delivery:
    """An instance in the hands of a worker: from the delivery of its stream entry until that entry is gone."""

    at_s: float
    pid: int
    run: int | None = None
    """The number of the run that claimed it; None if none ever did."""
    until_s: float | None = None
    """When it was queued again, or came to its end. None: it parked, at a time that the AOF does not tell, or never."""
    parked: bool = False


@dataclass(frozen=True, slots=True)
class Lead:
    """A worker's lead of a partition, as it was begun or renewed."""

    token: str
    until_s: float


@dataclass
class History:
    """What was written, in order. Of what was deleted, None. All of it by the names of names.py."""

    lives: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The life of each instance that was made, or went on, under this name."""
    claims: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """The worker of each run, by the run's number."""
    losses: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """How many workers in a row it had lost when each of its runs was claimed."""
    deliveries: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    """Who had it, one after the other."""
    partitions: dict[str, int] = field(default_factory=dict)
    """The number of its partition."""
    leads: dict[int, list[Lead]] = field(default_factory=lambda: defaultdict(list))
    """By the number of the partition."""
    records: dict[Place, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    """Each text of a record."""
    completers: dict[Place, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    """What completed a point: `timer`; `signal` or `message`, and its id; `choice` and its key, of one that lost."""
    dues_ms: dict[Place, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Each deadline that a timer had."""
    queued_ms: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """When it was queued, each time."""


def worker_pid(worker: str) -> int:
    """The process of a worker, which its name tells: HOST-PID-RANDOM."""
    return int(worker.rsplit("-", 2)[1])


def read_history(directory: Path, partitions: Sequence[Partition]) -> History:
    """The history of a namespace, from the AOF in a server's directory."""
    history = History()
    readers = [_Reader(history, number, partition) for number, partition in enumerate(partitions)]
    for command, key, *words in _commands(directory / "appendonlydir"):
        for reader in readers:
            if key.startswith(reader.partition.prefix):
                reader.read(command, key, words)
    return history


class _Reader:
    """Reads what concerns one partition."""

    def __init__(self, history: History, number: int, partition: Partition) -> None:
        self.partition = partition
        self._number, self._history = number, history
        self._instances, self._steps, self._streams = (
            f"{partition.prefix}{kind}:" for kind in ("instance", "steps", "stream")
        )
        self._recoveries = Counter[str]()
        self._lives = Counter[str]()
        """Of an instance: how many it has had so far."""
        self._named: dict[tuple[str, str], str] = {}
        """By workflow and stream entry: the instance; only what was not delivered yet."""
        self._held: dict[str, Delivery] = {}

    def _now(self, instance: str) -> str:
        """The name of an instance in its present life."""
        return life_name(instance, self._lives[instance])

    def read(self, command: str, key: str, words: list[str]) -> None:
        if key.startswith(self._instances):
            self._read_instance(key.removeprefix(self._instances), command, words)
        elif key.startswith(self._steps) and command in ("HSET", "HSETNX", "HDEL"):
            changed = ((each, None) for each in words) if command == "HDEL" else _pairs(words)
            for name, value in changed:
                self._read_step(self._now(key.removeprefix(self._steps)), name, value)
        elif key.startswith(self._streams):
            self._read_stream(key.removeprefix(self._streams), command, words)
        elif key == self.partition.timers and command == "ZADD":
            for score, member in _pairs([word for word in words if word not in ("XX", "NX")]):
                workflow, instance_id, point = member.split("/", 2)
                instance = f"{workflow}/{instance_id}"
                # these may come before the instance
                name = instance if point in (DELAY_KEY, DEADLINE_KEY) else self._now(instance)
                self._history.dues_ms[name, point].append(float(score))
        elif key == self.partition.leader and command == "SET":
            # a worker that has just connected says so behind its token
            token, until_ms = words[0].split()[0], words[words.index("PXAT") + 1]
            self._history.leads[self._number].append(Lead(token, int(until_ms) / 1000))

    def _read_stream(self, workflow: str, command: str, words: list[str]) -> None:
        if command == "XADD":
            entry, _, instance_id = words
            self._named[workflow, entry] = f"{workflow}/{instance_id}"
        elif command == "XCLAIM":  # what XREADGROUP did; and of each entry the first only, then it is renewed
            _, worker, _, entry, *options = words
            if (instance := self._named.pop((workflow, entry), None)) is not None:
                name = self._now(instance)
                at_s = int(options[options.index("TIME") + 1]) / 1000
                self._held[name] = delivery = Delivery(at_s, worker_pid(worker))
                self._history.deliveries[name].append(delivery)

    def _read_instance(self, instance: str, command: str, words: list[str]) -> None:
        history = self._history
        if command == "HINCRBY" and words[0] == "recoveries":
            self._recoveries[instance] += 1
        elif command == "HDEL" and "recoveries" in words:
            del self._recoveries[instance]
        elif command in ("HSET", "HSETNX"):
            fields = dict(_pairs(words))
            if "life" in fields:
                self._begin_life(instance, fields)
            name = self._now(instance)
            if "lease" in fields:
                run = int(fields["attempt"])
                history.claims[name][run] = fields["worker"]
                history.losses[name][run] = self._recoveries[instance]
                if name in self._held:
                    self._held[name].run = run
            if "entry" in fields:
                history.queued_ms[name].append(int(fields["entry"].split("-")[0]))
            self._end_delivery(name, fields)

    def _begin_life(self, instance: str, fields: dict[str, str]) -> None:
        if "created_us" in fields:
            self._lives[instance] = 1
        else:
            self._end_delivery(self._now(instance), fields)
            self._lives[instance] += 1
        name = self._now(instance)
        self._history.lives[name].append(fields["life"])
        self._history.partitions[name] = self._number

    def _end_delivery(self, name: str, fields: dict[str, str]) -> None:
        if "entry" in fields:
            until_s = int(fields["entry"].split("-")[0]) / 1000
        elif "completed_ms" in fields:
            until_s = int(fields["completed_ms"]) / 1000
        elif fields.get("status") in ("suspended", "queued"):  # queued without an entry: it waits for a further attempt
            until_s = None
        else:
            return
        if (delivery := self._held.pop(name, None)) is not None:
            delivery.until_s, delivery.parked = until_s, until_s is None

    def _read_step(self, name: str, field: str, value: str | None) -> None:
        if field.startswith("_by:"):
            self._history.completers[name, field.removeprefix("_by:")].append(value)
        elif not field.startswith("_"):
            self._history.records[name, field].append(value)


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    return zip(words[::2], words[1::2], strict=True)


def _commands(directory: Path) -> Iterator[list[str]]:
    """Each command that has at least a key."""
    bases = list(directory.glob("*.base.aof"))
    if not bases or any(base.stat().st_size for base in bases) or any(".1." not in base.name for base in bases):
        raise ValueError(f"{directory} has no whole history: its AOF was rewritten")
    parts = sorted(directory.glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))
    for part in parts:
        nothing: Any = object()
        reader = hiredis.Reader(notEnoughData=nothing)
        reader.feed(part.read_bytes())
        while (command := reader.gets()) is not nothing:
            words = [word.decode() for word in command]
            if len(words) > 1:
                yield [words[0].upper(), *words[1:]]
