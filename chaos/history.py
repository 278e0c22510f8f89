"""Every write that a Redis has seen, read from its AOF: nothing that was written and written over is missed.

What scripts do is in the AOF command by command, in the order in which it was done; with fsync always, all that was
ever acknowledged. Only a server whose AOF was never rewritten has its whole history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hiredis

from memable.keys import Partition

Place = tuple[str, str]
"""`WF/ID` and key."""


@dataclass
class History:
    """What was written, in order. Of what was deleted, None."""

    lives: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By `WF/ID`: the life of each instance that was made under this name."""
    claims: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """By `WF/ID`: the worker of each run, by the run's number."""
    losses: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By `WF/ID`: how many workers in a row it had lost when each of its runs was claimed."""
    records: dict[Place, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    """Each text of a record."""
    completers: dict[Place, list[str | None]] = field(default_factory=lambda: defaultdict(list))
    """What completed a point: `timer`, or `signal` and its id."""
    dues_ms: dict[Place, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Each deadline that a timer had."""


def read_history(directory: Path, partition: Partition) -> History:
    """The history of a partition, from the AOF in a server's directory."""
    history = History()
    recoveries = Counter[str]()
    instances, steps = f"{partition.prefix}instance:", f"{partition.prefix}steps:"
    for command, key, *words in _commands(directory / "appendonlydir"):
        if key.startswith(instances):
            _read_instance(history, recoveries, key.removeprefix(instances), command, words)
        elif key.startswith(steps) and command in ("HSET", "HSETNX", "HDEL"):
            changed = ((each, None) for each in words) if command == "HDEL" else _pairs(words)
            for name, value in changed:
                _read_step(history, key.removeprefix(steps), name, value)
        elif key == partition.timers and command == "ZADD":
            for score, member in _pairs(words):
                workflow, instance_id, point = member.split("/", 2)
                history.dues_ms[f"{workflow}/{instance_id}", point].append(float(score))
    return history


def _read_instance(history: History, recoveries: Counter[str], name: str, command: str, words: list[str]) -> None:
    if command == "HINCRBY" and words[0] == "recoveries":
        recoveries[name] += 1
    elif command == "HDEL" and "recoveries" in words:
        del recoveries[name]
    elif command in ("HSET", "HSETNX"):
        fields = dict(_pairs(words))
        if "life" in fields:
            history.lives[name].append(fields["life"])
        if "lease" in fields:
            run = int(fields["attempt"])
            history.claims[name][run] = fields["worker"]
            history.losses[name][run] = recoveries[name]


def _read_step(history: History, name: str, field: str, value: str | None) -> None:
    if field.startswith("_by:"):
        history.completers[name, field.removeprefix("_by:")].append(value)
    elif not field.startswith("_"):
        history.records[name, field].append(value)


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
