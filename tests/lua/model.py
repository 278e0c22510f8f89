"""What the scripts do, said once more in Python and without a server: what the state machine compares them with.

An operation is a method of `Model`; its arguments are all that it depends on, so that a call made again at any later
time is the same method with the same arguments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from memable.holding import AnyPoint, BackOff, Held, Member, Point, lines
from memable.journal import Record
from memable.keys import DEADLINE_KEY, DELAY_KEY
from memable.lua import Answer
from memable.state import Status, StepKind
from tests.lua.invariants import Scene
from tests.lua.stage import Stage

MAILBOX = "a chat: 1"
TAKE_SIGNALS = (StepKind.SIGNAL, StepKind.TIMER)


def _late(kind: StepKind) -> bytes | None:
    """The result of a point whose deadline came first."""
    return b"null" if kind is StepKind.TIMER else None


RETRYING = "retrying"
"""Stands for what an instance says that waits for nothing but the next attempts of steps."""


@dataclass
class Instance:
    """One life of an instance."""

    life: str
    input: str
    invoked_by: str = ""
    """The first life, once there is another."""
    first_input: str = ""
    labels: str = ""
    forked_from: str = ""
    status: Status = Status.QUEUED
    message: str = ""
    version: int = 1
    progress: str = ""
    attempt: int = 0
    recoveries: int = 0
    news: int = 0
    entry: str | None = None
    lease: str | None = None
    worker: str | None = None
    rested_by: str | None = None
    resumes: list[str] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    turn: int = 0
    said: int = 0
    failed_keys: Sequence[str] = ()
    records: dict[str, tuple[StepKind, bytes | None]] = field(default_factory=dict)
    """Kind and result; a failure has none."""
    open: dict[str, StepKind] = field(default_factory=dict)
    """In the order in which they were opened."""
    deadlines: dict[str, bool] = field(default_factory=dict)
    """Keys of open points that have one, and whether it has come."""
    by: dict[str, str] = field(default_factory=dict)
    delay: bool | None = None
    is_mortal: bool = False
    ends: bool | None = None
    """Of one that has a deadline and lives: whether that has come."""
    """Whether the time has come at which it is to begin; nothing once it has begun."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Keys and ids of signals that earlier lives took, or points that were run again."""
    kept: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Signals that came before their point was open: id and payload."""
    unread: list[tuple[str, bytes]] = field(default_factory=list)
    """Messages in the one mailbox that is played with: id and JSON."""
    message_ids: list[str] = field(default_factory=list)
    """Of all that were sent to it."""

    retries: dict[str, int] = field(default_factory=dict)
    """How often a step was called that is to be called again."""
    backing_off: list[str] = field(default_factory=list)
    """Those of them whose time has not come, in the order in which they began to wait."""

    @property
    def rests(self) -> bool:
        """Whether it waits without a stream entry, and what completes a point queues it."""
        return self.status is Status.SUSPENDED or (self.status is Status.QUEUED and self.message == RETRYING)

    @property
    def first_life(self) -> str:
        """What tells the instance from a namesake."""
        return self.invoked_by or self.life

    choices: dict[str, Sequence[Member]] = field(default_factory=dict)
    """Each `first` that is open, and its members."""
    races: dict[str, str] = field(default_factory=dict)
    """Keys of open points that are members of a `first`, and its key."""

    def change(self, status: Status, message: str = "") -> None:
        self.status, self.message, self.version = status, message, self.version + 1

    def drop_lease(self, ended_itself: str | None) -> None:
        self.entry = self.lease = self.worker = None
        self.news, self.turn, self.said, self.rested_by = 0, 0, 0, ended_itself

    def withdraw(self, keys: Iterable[str]) -> bool:
        """Whether any was open."""
        is_changed = False
        for key in list(keys):
            is_changed = is_changed or key in self.waits()
            for there in (self.open, self.deadlines, self.races, self.choices):
                there.pop(key, None)
            if key in self.backing_off:
                self.backing_off.remove(key)
        return is_changed

    def open_any(self, point: AnyPoint) -> bool:
        if isinstance(point, BackOff):
            return self.open_back_off(point)
        assert isinstance(point, Point), "families are looked at in test_children.py"
        return self.open_point(point)

    def waits(self) -> set[str]:
        return {*self.open, *self.backing_off, *self.choices}

    def change_points(self, points: Sequence[AnyPoint], withdrawn: Sequence[str], turn: int) -> list[str]:
        """Unless this is a call made again. The keys of points that are completed."""
        if turn > self.turn:
            has_withdrawn = self.withdraw(withdrawn)
            changed = [self.open_any(point) for point in points]
            if has_withdrawn or any(changed):
                self.turn = turn
        return [point.key for point in points if point.key in (self.records.keys() | self.retries) - self.waits()]

    def complete(self, key: str, by: str, result: bytes | None) -> None:
        choice = self.races.get(key, "")
        self.records[key] = (self.open[key], result)
        self.by[key] = by
        self.withdraw([key])
        self.decide(choice, key)
        self.deliver()

    def deliver(self) -> None:
        if self.rests:
            self.change(Status.QUEUED)
        elif self.lease is not None:
            self.news += 1

    def decide(self, choice: str, key: str) -> None:
        if choice in self.choices:
            self.choose(choice, self.choices[choice], key)

    def choose(self, choice: str, members: Sequence[Member], winner: str) -> None:
        for member in members:
            if member.key == winner:
                del self.choices[choice]
                self.records[choice] = (StepKind.CHOICE, member.chosen.tail.removeprefix(b',"result":')[:-1])
                break
        else:
            return
        for member in members:
            if member.key != winner:
                self.withdraw([member.key])
                self.kept.pop(member.key, None)
                self.retries.pop(member.key, None)
                if member.kind in TAKE_SIGNALS and member.key not in self.records:
                    self.by[member.key] = f"choice {choice}"

    def record_at_once(self, point: Point, by: str, result: bytes | None) -> None:
        self.records[point.key], self.by[point.key] = (point.kind, result), by
        self.decide(point.choice, point.key)

    def take_from_inbox(self, point: Point) -> bool:
        if point.kind is StepKind.MESSAGE and self.unread:
            by = self.reading_of_next()
            self.record_at_once(point, by, self.unread.pop(0)[1])
            return True
        if point.kind in TAKE_SIGNALS and point.key in self.kept:
            signal_id, json = self.kept.pop(point.key)
            self.record_at_once(point, f"signal {signal_id}", b"null" if point.kind is StepKind.TIMER else json)
            return True
        return False

    def reading_of_next(self) -> str:
        """By what the point is completed that gets the oldest unread message."""
        number = len(self.message_ids) - len(self.unread) + 1
        return f"message {MAILBOX}/{number} {self.unread[0][0]}"

    def leave_to_next_life(self, read: Collection[str]) -> None:
        back: list[tuple[int, tuple[str, bytes]]] = []
        for key, by in self.by.items():
            what, _, id = by.partition(" ")
            kind, result = self.records.get(key, (StepKind.CHOICE, None))
            if what == "signal" and (key in read or kind is StepKind.TIMER):
                self.seen.add((key, id))
            elif what == "signal":
                self.kept[key] = (id, result or b"")
            elif what == "message" and key not in read:
                number, _, id = id.removeprefix(f"{MAILBOX}/").partition(" ")
                back.append((int(number), (id, result or b"")))
        self.unread = [message for _, message in sorted(back)] + self.unread
        self.records, self.by = {}, {}

    def open_point(self, point: Point) -> bool:
        """Whether it was opened, or races otherwise than before."""
        key = point.key
        if key in self.open:
            is_regrouped = self.races.get(key, "") != point.choice
            self.races[key] = point.choice
            return is_regrouped
        if key in self.choices:
            is_regrouped = self.choices[key] != point.members
            self.choices[key] = point.members
            return is_regrouped
        if key in self.records or (point.choice and point.choice not in self.choices):
            return False
        self.by.pop(key, None)
        if point.kind is StepKind.CHOICE:
            self.choices[key] = point.members
            return True
        if self.take_from_inbox(point):
            return False
        if point.after_ms is not None and point.after_ms <= 0:
            self.record_at_once(point, "timer", _late(point.kind))
            return False
        self.open[key], self.races[key] = point.kind, point.choice
        if point.after_ms is not None:
            self.deadlines[key] = False
        return True

    def open_back_off(self, step: BackOff) -> bool:
        key = step.key
        if key in self.records or key in self.backing_off or self.retries.get(key, 0) >= step.attempts:
            return False
        self.retries[key] = step.attempts
        if step.after_ms <= 0:
            return False
        self.backing_off.append(key)
        self.deadlines[key] = False
        return True

    def end(self, status: Status, message: str, failed_keys: Sequence[str], ended_itself: str | None) -> None:
        self.withdraw(self.waits())
        self.drop_lease(ended_itself)
        self.recoveries, self.failed_keys, self.delay, self.ends = 0, failed_keys, None, None
        self.change(status, message)


class Model:
    """All instances of a namespace. Each operation returns what the script answers."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}

    def held_by(self, held: Held) -> Instance | None:
        """The instance, if this lease is its current one."""
        instance = self.instances.get(held.keys.name)
        return instance if instance is not None and instance.lease == held.lease else None

    def _over(self, held: Held) -> Answer:
        instance = self.instances.get(held.keys.name)
        return Answer.DONE if instance is not None and instance.rested_by == held.lease else Answer.LEASE_LOST

    def invoke(
        self, name: str, life: str, input: str, labels: str = "", *, is_delayed: bool, is_mortal: bool
    ) -> Answer:
        known = self.instances.get(name)
        if known is None:
            delay, ends = False if is_delayed else None, False if is_mortal else None
            self.instances[name] = Instance(life, input, labels=labels, delay=delay, is_mortal=is_mortal, ends=ends)
        elif known.first_life != life:
            return Answer.ALREADY if (known.first_input or known.input) == input else Answer.CONFLICT
        return Answer.DONE

    def fork(self, origin: Instance, name: str, life: str, forked_from: str) -> Answer:
        """`origin`: as it was when it was read."""
        known = self.instances.get(name)
        if known is not None and (known.invoked_by or known.life) != life:
            return Answer.ALREADY if known.forked_from == forked_from else Answer.CONFLICT
        if known is None:
            self.instances[name] = Instance(
                life,
                origin.input,
                labels=origin.labels,
                forked_from=forked_from,
                is_mortal=origin.is_mortal,
                ends=False if origin.is_mortal else None,
            )
            self.instances[name].records = {
                key: record for key, record in origin.records.items() if key not in origin.retries
            }
            self.instances[name].by = dict(origin.by)
        return Answer.DONE

    def claim(self, held: Held, worker: str) -> Answer:
        instance = self.instances.get(held.keys.name)
        if instance is None or instance.entry != held.entry:
            return Answer.STALE
        if instance.lease not in (None, held.lease):
            return Answer.LEASE_LOST
        if instance.lease is None:
            instance.lease, instance.worker = held.lease, worker
            instance.attempt += 1
            instance.change(Status.RUNNING, instance.progress)
        return Answer.DONE

    def record(self, held: Held, key: str, result: bytes) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return Answer.LEASE_LOST
        if {key} & (instance.records.keys() | instance.waits() | instance.retries.keys()):
            return Answer.ALREADY
        instance.records[key] = (StepKind.STEP, result)
        instance.recoveries = 0
        return Answer.DONE

    def settle(self, held: Held, key: str, result: bytes) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return Answer.LEASE_LOST
        if instance.retries.pop(key, None) is not None:
            instance.withdraw([key])
        return self.record(held, key, result)

    def choose(self, held: Held, choice: str, members: Sequence[Member], winner: str) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return Answer.LEASE_LOST
        if choice in instance.records:
            return Answer.ALREADY
        instance.choices.setdefault(choice, members)
        instance.choose(choice, members, winner)
        return Answer.DONE

    def open(self, held: Held, points: Sequence[AnyPoint], withdrawn: Sequence[str], turn: int) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return Answer.LEASE_LOST
        instance.change_points(points, withdrawn, turn)
        return Answer.DONE

    def park(self, held: Held, points: Sequence[AnyPoint], withdrawn: Sequence[str], message: str, turn: int) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return self._over(held)
        if instance.change_points(points, withdrawn, turn):
            return Answer.SATISFIED
        instance.drop_lease(held.lease)
        instance.recoveries = 0
        if all(isinstance(point, BackOff) for point in points):
            instance.change(Status.QUEUED, RETRYING)
        else:
            instance.change(Status.SUSPENDED, message)
        return Answer.DONE

    def finish(self, held: Held, status: Status, message: str, failed_keys: Sequence[str], *, expires: bool) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return self._over(held)
        instance.end(status, message, failed_keys, held.lease)
        if expires:
            del self.instances[held.keys.name]
        return Answer.DONE

    def continue_as(self, held: Held, life: str, input: str, read: Collection[str]) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return self._over(held)
        instance.invoked_by = instance.invoked_by or instance.life
        instance.first_input = instance.first_input or instance.input
        instance.life, instance.input = life, input
        instance.ends = False if instance.is_mortal else None
        instance.withdraw(instance.waits())
        instance.retries = {}
        instance.leave_to_next_life(read)
        instance.progress, instance.attempt, instance.recoveries = "", 0, 0
        instance.drop_lease(held.lease)
        instance.change(Status.QUEUED)
        return Answer.DONE

    def release(self, held: Held) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return self._over(held)
        instance.drop_lease(held.lease)
        instance.change(Status.QUEUED)
        return Answer.DONE

    def set_status(self, held: Held, progress: str, turn: int) -> Answer:
        instance = self.held_by(held)
        if instance is None:
            return Answer.LEASE_LOST
        if turn > instance.said:
            instance.progress, instance.said = progress, turn
            instance.change(Status.RUNNING, progress)
        return Answer.DONE

    def renew(self, held: Held) -> int:
        instance = self.held_by(held)
        return Answer.LEASE_LOST if instance is None else instance.news

    def recover(self, held: Held, max_recoveries: int, message: str) -> Answer:
        instance = self.instances.get(held.keys.name)
        if instance is None or instance.entry != held.entry:
            return Answer.NOT_REACHED
        if instance.lease is None:
            instance.entry = None
            return Answer.DONE
        instance.recoveries += 1
        if instance.recoveries >= max_recoveries:
            instance.end(Status.FAILED, message, (), None)
            return Answer.TERMINAL
        instance.drop_lease(None)
        instance.change(Status.QUEUED)
        return Answer.DONE

    def signal(self, name: str, key: str, signal_id: str, json_type: str, json: bytes, *, keeps: bool) -> Answer:
        instance = self.instances.get(name)
        if instance is None:
            return Answer.UNKNOWN
        by = f"signal {signal_id}"
        if (key, signal_id) in instance.seen or instance.by.get(key) == by:
            return Answer.DONE
        if key in instance.by:
            return Answer.SUPERSEDED
        kept, _ = instance.kept.get(key, (None, b""))
        if kept == signal_id:
            return Answer.DONE
        if instance.status.is_terminal:
            return Answer.TERMINAL
        if kept is not None:
            return Answer.SUPERSEDED
        is_step = key in instance.retries or instance.open.get(key) not in (None, *TAKE_SIGNALS)
        if key in instance.records or is_step:
            return Answer.CONFLICT
        if key not in instance.open:
            if key in instance.choices:
                return Answer.CONFLICT
            if not keeps:
                return Answer.NOT_REACHED
            instance.kept[key] = (signal_id, json)
            return Answer.DONE
        is_timer = instance.open[key] is StepKind.TIMER
        if json_type != ("null" if is_timer else "boolean"):
            return Answer.MISMATCH
        instance.complete(key, by, b"null" if is_timer else json)
        return Answer.DONE

    def send(self, name: str, message_id: str, json: bytes) -> Answer:
        instance = self.instances.get(name)
        if instance is None:
            return Answer.UNKNOWN
        if message_id in instance.message_ids:
            return Answer.DONE
        if instance.status.is_terminal:
            return Answer.TERMINAL
        instance.message_ids.append(message_id)
        receives = [key for key, kind in instance.open.items() if kind is StepKind.MESSAGE]
        instance.unread.append((message_id, json))
        if receives:
            by = instance.reading_of_next()
            instance.complete(receives[0], by, instance.unread.pop(0)[1])
        return Answer.DONE

    def fire_timer(self, name: str, key: str) -> Answer:
        instance = self.instances.get(name)
        if instance is None or not instance.deadlines.get(key):
            return Answer.NOT_REACHED
        if key in instance.backing_off:
            instance.withdraw([key])
            instance.deliver()
        else:
            instance.complete(key, "timer", _late(instance.open[key]))
        return Answer.DONE

    def expire(self, name: str, message: str) -> Answer:
        instance = self.instances.get(name)
        if instance is None or not instance.ends:
            return Answer.NOT_REACHED
        instance.end(Status.FAILED, message, (), None)
        return Answer.DONE

    def begin(self, name: str) -> Answer:
        instance = self.instances.get(name)
        if instance is None or not instance.delay:
            return Answer.NOT_REACHED
        instance.delay = None
        instance.change(Status.QUEUED)
        return Answer.DONE

    def resume(self, name: str, token: str, rerun: Sequence[str] = ()) -> Answer:
        instance = self.instances.get(name)
        if instance is None:
            return Answer.UNKNOWN
        if token in instance.resumes:
            return Answer.DONE
        if not instance.status.is_at_rest:
            return Answer.BUSY if rerun else Answer.ALREADY
        if set(rerun) - instance.records.keys() - instance.waits() - instance.retries.keys():
            return Answer.NO_RECORD
        instance.withdraw(rerun)
        for key in rerun:
            instance.by = {loser: by for loser, by in instance.by.items() if by != f"choice {key}"}
        for key in [*instance.failed_keys, *rerun]:
            instance.records.pop(key, None)
            instance.retries.pop(key, None)
            what, _, id = instance.by.pop(key, "").partition(" ")
            if what == "signal":
                instance.seen.add((key, id))
        instance.failed_keys, instance.recoveries = (), 0
        if instance.is_mortal and instance.status.is_terminal:
            instance.ends = False
        instance.resumes = [token, *instance.resumes][:16]
        instance.change(Status.QUEUED)
        return Answer.DONE

    def delete(self, name: str, first_life: str, life: str) -> Answer:
        instance = self.instances.get(name)
        if instance is not None and instance.first_life == first_life:
            if not instance.status.is_terminal:
                return Answer.BUSY
            if instance.life != life:
                return Answer.STALE
            del self.instances[name]
        return Answer.DONE

    def unlabel(self, name: str, *, is_this_life: bool) -> Answer:
        return Answer.ALREADY if name in self.instances and is_this_life else Answer.DONE

    def cancel(self, name: str, life: str, token: str, reason: str) -> Answer:
        instance = self.instances.get(name)
        if instance is None or instance.first_life != life:
            return Answer.UNKNOWN
        if token + "+" in instance.cancels:
            return Answer.DONE
        if token + "-" in instance.cancels:
            return Answer.ALREADY
        has_effect = not instance.status.is_terminal
        instance.cancels = [token + ("+" if has_effect else "-"), *instance.cancels][:16]
        if has_effect:
            instance.end(Status.CANCELLED, reason, (), None)
        return Answer.DONE if has_effect else Answer.ALREADY

    def forget(self, name: str) -> Answer:
        return Answer.ALREADY if name in self.instances else Answer.DONE

    # ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────

    def compare(self, scene: Scene, stage: Stage) -> None:
        """Assert that Redis holds this; and learn the ids of new stream entries, which only Redis can choose."""
        prefixes = [partition.prefix + "instance:" for partition in stage.keys.partitions]
        there = {name.split(":instance:", 1)[1] for name in scene.hashes if name.startswith(tuple(prefixes))}
        assert there == self.instances.keys()
        for name, instance in self.instances.items():
            keys = stage.keys.of(*name.split("/", 1))
            fields, steps = scene.hashes[keys.instance], scene.hashes.get(keys.steps, {})
            if instance.entry is None:
                instance.entry = fields.get("entry")
            assert _shown(fields, steps) == _expected(instance, fields["message"])
            inbox = scene.hashes.get(keys.inbox, {})
            seen = {tuple(line.split(" ", 2)[1:]) for line in inbox.get("seen", "").split("\n") if line}
            assert seen == instance.seen
            assert {key: _kept(raw) for key, raw in _behind("signal:", inbox).items()} == instance.kept
            mail = {int(number): _kept(raw) for number, raw in _behind(f"mail:{MAILBOX}/", inbox).items()}
            assert [mail[number] for number in sorted(mail)] == instance.unread
            numbers = {id: str(at) for at, id in enumerate(instance.message_ids, 1)}
            assert _behind(f"id:{MAILBOX}/", inbox) == numbers
            timers = scene.zsets.get(keys.timers, {})
            own = {DELAY_KEY} if instance.delay is not None else set[str]()
            own |= {DEADLINE_KEY} if instance.ends is not None else set()
            assert {m.split("/", 2)[2] for m in timers if m.startswith(f"{name}/")} == instance.deadlines.keys() | own


_NUMBERS = ("version", "attempt", "recoveries", "news", "turn", "said")
_TEXTS = ("progress", "life", "input", "invoked_by", "first_input", "labels", "forked_from")
_TOKENS = ("lease", "worker", "rested_by", "entry")


def _behind(prefix: str, fields: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}


def _kept(raw: str) -> tuple[str, bytes]:
    signal_id, head, tail = raw.split("\n")
    result = Record((head + tail).encode()).result
    assert result is not None
    return signal_id, result


def _shown(fields: dict[str, str], steps: dict[str, str]) -> dict[str, object]:
    numbers = {name: int(fields.get(name, 0)) for name in _NUMBERS}
    texts = {name: fields.get(name, "") for name in ("status", "message", "failed_keys", *_TEXTS)}
    tokens = {name: fields.get(name) for name in _TOKENS}
    records = {key: Record(raw.encode()) for key, raw in steps.items() if not key.startswith("_")}
    return {
        **numbers,
        **texts,
        **tokens,
        "resumes": _lines(fields, "resumed_by"),
        "cancels": _lines(fields, "cancelled_by"),
        "open": _lines(fields, "waiting"),
        "choices": _lines(fields, "choosing"),
        "races": {key[6:]: _race(line) for key, line in steps.items() if key.startswith("_open:")},
        "retrying": _lines(fields, "retrying"),
        "retries": {key: record.attempts for key, record in records.items() if record.is_retrying},
        "kinds": {key: record.kind for key, record in records.items() if record.is_open},
        "records": {
            key: (record.kind, record.result)
            for key, record in records.items()
            if not (record.is_open or record.is_retrying)
        },
        "by": {key.removeprefix("_by:"): by for key, by in steps.items() if key.startswith("_by:")},
    }


def _lines(fields: dict[str, str], name: str) -> list[str]:
    return fields[name].split("\n") if name in fields else []


def _race(line: str) -> str:
    """Of the `_open:` line of a point the key of the `first` in which it races; of a `first` its members."""
    what, race, *_ = [*line.split("\n"), ""]
    if what.startswith("choice "):
        return line.split(" ", 2)[2]
    return race if what.count(" ") == 1 else ""


def _expected(instance: Instance, message: str) -> dict[str, object]:
    # of a time only Redis knows which
    names = (*_NUMBERS, *_TOKENS, *_TEXTS, "resumes", "cancels")
    has_time = (instance.delay is not None and message.startswith("delayed until ")) or (
        instance.message == RETRYING
        and re.fullmatch(r"retrying \w \(\d of 5\) at [-\d]+ [:\d]+(, and 1 more)?", message)
    )
    return {
        **{name: getattr(instance, name) for name in names},
        "message": message if has_time else instance.message,
        "status": str(instance.status),
        "failed_keys": "\n".join(instance.failed_keys),
        "open": list(instance.open),
        "choices": list(instance.choices),
        "races": {
            **dict.fromkeys(instance.backing_off, ""),
            **instance.races,
            **{key: lines(members).decode() for key, members in instance.choices.items()},
        },
        "retrying": instance.backing_off,
        "retries": instance.retries,
        "kinds": {**instance.open, **dict.fromkeys(instance.choices, StepKind.CHOICE)},
        "records": instance.records,
        "by": instance.by,
    }
