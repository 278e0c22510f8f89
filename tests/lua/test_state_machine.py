"""The store against a model: clients, two workers and a leader in any order, and every call made again at any time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from memable.connection import Endpoint, ScriptConnection
from memable.errors import (
    InputConflict,
    InstanceBusy,
    InstanceNotFound,
    RecordNotFound,
    SignalRejected,
    SignalSuperseded,
    TypeMismatch,
)
from memable.forking import finished_before, name_of_fork
from memable.holding import AnyPoint, Held, LeaseLost, Member, NextLife, Outcome, Payload, Point
from memable.journal import Draft
from memable.keys import InstanceKeys, Keys, split_expiry_member
from memable.labels import NO_LABELS, Labels, lines_of, parse_lines
from memable.moments import NOW, Due
from memable.state import Status, StepKind
from memable.store import new_token
from tests.lua.model import MAILBOX, Model
from tests.lua.stage import BROKEN, LONG_MS, WORKFLOW, Call, Stage, Wiretap, back_off, member, receive

REFUSALS = (
    InputConflict,
    InstanceBusy,
    InstanceNotFound,
    LeaseLost,
    RecordNotFound,
    SignalRejected,
    SignalSuperseded,
    TypeMismatch,
)
NEVER_MS = 1e12
POINT_KEYS, STEP_KEYS, CHOICE = ["p", "q"], ["s", "t"], "f"

# mostly one, which then has a long life
ids = st.sampled_from(["a", "a", "a", "b:c d"])
workers = st.sampled_from(["w1", "w2"])
# a step may take the key of a point, and is then told what is there
keys_of_any_kind = st.sampled_from([*POINT_KEYS, *STEP_KEYS, CHOICE])
keys_of_points = st.sampled_from([*POINT_KEYS * 3, *STEP_KEYS, CHOICE])
withdrawals = st.lists(keys_of_any_kind, max_size=2, unique=True)
texts = st.sampled_from(["", "charging", 'odd " \\ \n \N{SNOWMAN}'])
ends = st.sampled_from([Status.COMPLETED, Status.FAILED])


def _point(key: str, kind: StepKind, after_ms: float | None, choice: str = "") -> Point:
    if kind is StepKind.SIGNAL:
        return Point(key, kind, "bool", ["boolean"], after_ms, choice=choice)
    if kind is StepKind.MESSAGE:
        return replace(receive(key, MAILBOX, after_ms=after_ms), choice=choice)
    return Point(key, kind, "None", ["null"], after_ms, choice=choice)


KINDS_AND_DEADLINES = [
    *[(StepKind.SIGNAL, None), (StepKind.SIGNAL, NEVER_MS), (StepKind.TIMER, NEVER_MS)] * 2,
    *[(StepKind.MESSAGE, None), (StepKind.MESSAGE, NEVER_MS), (StepKind.MESSAGE, -1.5)],
    (StepKind.SIGNAL, -1.5),
    (StepKind.TIMER, -1.5),
]
back_offs = st.builds(
    lambda key, after_ms, attempts: back_off(key, after_ms=after_ms, attempts=attempts),
    st.sampled_from(STEP_KEYS),
    st.sampled_from([NEVER_MS, NEVER_MS, -1.5]),
    st.integers(1, 3),
)
opened = st.builds(lambda key, of: _point(key, *of), st.sampled_from(POINT_KEYS), st.sampled_from(KINDS_AND_DEADLINES))
alone = st.one_of(
    *(
        st.lists(each, min_size=1, max_size=2, unique_by=lambda point: point.key)
        for each in (opened, opened, opened | back_offs, back_offs)
    )
)
MEMBERS = [member("p"), member("q", StepKind.TIMER), member("s", StepKind.STEP)]
members_of_first = st.permutations(MEMBERS) | st.sampled_from([MEMBERS[:2], MEMBERS[1:]])


def _racing(points: list[AnyPoint], members: Sequence[Member]) -> list[AnyPoint]:
    """What `ctx.first` opens: a choice, and behind it what else the run waits for."""
    keys = {each.key for each in members}
    choice = Point(CHOICE, StepKind.CHOICE, "str", ["string"], members=tuple(members))
    race = [
        replace(each, choice=CHOICE if each.key in keys else "") if isinstance(each, Point) else each for each in points
    ]
    return [choice, *race]


def _with_point(points: list[AnyPoint]) -> bool:
    return any(isinstance(each, Point) for each in points)


points = alone | st.builds(_racing, alone.filter(_with_point), members_of_first)
PAST = _point("past", StepKind.TIMER, -1.5)
"""Done as soon as it is waited for: a park that names it lets the run go on."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Made:
    """A call that was made, and what the model says of it, now and whenever it is made again."""

    call: Call
    predict: Callable[[], int]
    held: Held | None
    """Of a run: such a call changes nothing when it is made again."""


def _first(reply: Any) -> int:
    return int(reply[0] if isinstance(reply, list) else reply)


class StoreMachine(RuleBasedStateMachine):
    """Each rule makes one call, and sometimes makes it again at once, as if its reply had been lost."""

    runner: ClassVar[asyncio.Runner]
    connection: ClassVar[ScriptConnection]
    endpoint: ClassVar[Endpoint]
    namespaces: ClassVar[Iterator[str]]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.made: list[Made] = []
        self.deliveries: list[Held] = []
        self.delivered_to: dict[str, str] = {}
        """By entry. A late claim by another worker would take the entry over: that is seen, and no fault."""
        self.runs: list[Held] = []
        self.label_places = set[str]()

    @initialize(partitions=st.sampled_from([1, 4]))
    def open_the_stage(self, partitions: int) -> None:
        keys = Keys(next(self.namespaces), partitions=partitions)
        self.stage = Stage(Wiretap(self.connection), keys, self.endpoint)
        self.store = self.stage.store
        self.take("a", "w1", goes_on=True)

    def wait(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(coroutine)

    # ── making calls ─────────────────────────────────────────────────────────────────────────────────────────────

    def make(
        self,
        operation: Callable[[], Awaitable[object]],
        predict: Callable[[], int],
        *,
        is_answered: bool,
        held: Held | None = None,
    ) -> None:
        """Make a call; unless it is answered, make it again, which changes nothing."""
        expected = predict()

        async def go() -> int:
            with contextlib.suppress(*REFUSALS):
                await operation()
            return _first(await self.stage.last_call.reply)

        assert self.wait(go()) == expected
        self.look()
        self.made.append(Made(self.stage.last_call, predict, held))
        if not is_answered:
            self.make_again(self.made[-1], may_change=False)

    def make_again(self, made: Made, *, may_change: bool) -> None:
        before = self.scene
        expected = made.predict()
        assert _first(self.wait(self.stage.again(made.call))) == expected
        self.look()
        assert may_change or self.scene == before

    def look(self) -> None:
        self.scene = self.wait(self.stage.check())
        assert self.wait(self.stage.broken(self.scene)) == []
        self.model.compare(self.scene, self.stage)
        self.label_places |= {
            member
            for partition in self.stage.keys.partitions
            for member in self.scene.zsets.get(partition.expiry, {})
            if "\n" in member
        }

    @rule(data=st.data())
    @precondition(lambda self: self.made)
    def a_call_is_made_again(self, data: st.DataObject) -> None:
        """A reply was lost long ago, or a packet came late; mostly to a run that goes on, whose lease is no help."""
        of_runs = [made for made in self.made if made.held is not None and self.model.held_by(made.held) is not None]
        made = self.mostly(of_runs, self.made, data)
        self.make_again(made, may_change=made.held is None)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────

    def of(self, instance_id: str) -> InstanceKeys:
        return self.stage.keys.of(WORKFLOW, instance_id)

    @rule(
        instance_id=ids,
        input=st.sampled_from(["1", "2"]),
        due=st.sampled_from([NOW, NOW, Due(after_ms=-1.5), Due(after_ms=NEVER_MS)]),
        labels=st.sampled_from([NO_LABELS, {"a": "1"}, {"a": "1", "b": "x=/~:y"}]),
        deadline_ms=st.sampled_from([None, LONG_MS]),
        is_answered=st.booleans(),
    )
    def invoke(
        self,
        instance_id: str,
        input: str,
        due: Due,
        is_answered: bool,
        labels: Labels = NO_LABELS,
        deadline_ms: int | None = LONG_MS,
    ) -> None:
        keys, life, lines = self.of(instance_id), new_token(), "\n".join(lines_of(labels))
        self.make(
            lambda: self.store.invoke(keys, life, input.encode(), due, labels, deadline_ms),
            lambda: self.model.invoke(
                keys.name, life, input, lines, is_delayed=due.after_ms == NEVER_MS, is_mortal=deadline_ms is not None
            ),
            is_answered=is_answered,
        )

    @rule(
        instance_id=ids,
        key=keys_of_points,
        signal_id=st.sampled_from(["s1", "s2", "timer"]),
        fits=st.sampled_from([True, True, True, False]),
        keeps=st.booleans(),
        is_answered=st.booleans(),
    )
    def signal(
        self, instance_id: str, key: str, signal_id: str, fits: bool, is_answered: bool, keeps: bool = False
    ) -> None:
        keys = self.of(instance_id)
        instance = self.model.instances.get(keys.name)
        is_timer = instance is not None and instance.open.get(key) is StepKind.TIMER
        json_type = "null" if is_timer is fits else "boolean"
        json = b"true" if json_type == "boolean" else b"null"
        self.make(
            lambda: self.store.signal(keys, key, signal_id, Payload("", json_type, json), keeps=keeps),
            lambda: self.model.signal(keys.name, key, signal_id, json_type, json, keeps=keeps),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, message_id=st.sampled_from(["m1", "m2", None, None]), is_answered=st.booleans())
    def send(self, instance_id: str, message_id: str | None, is_answered: bool) -> None:
        keys, json = self.of(instance_id), str(len(self.made)).encode()
        chosen = message_id or f"m {len(self.made)}"
        self.make(
            lambda: self.store.send(keys, MAILBOX, chosen, Payload("", "number", json)),
            lambda: self.model.send(keys.name, chosen, json),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, rerun=st.just([]) | withdrawals, is_answered=st.booleans())
    def resume(self, instance_id: str, is_answered: bool, rerun: Sequence[str] = ()) -> None:
        keys, token = self.of(instance_id), new_token()
        self.make(
            lambda: self.store.resume(keys, token, rerun),
            lambda: self.model.resume(keys.name, token, rerun),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, reason=texts, is_answered=st.booleans())
    def cancel(self, instance_id: str, reason: str, is_answered: bool) -> None:
        keys, token = self.of(instance_id), new_token()
        instance = self.model.instances.get(keys.name)
        life = "" if instance is None else instance.first_life
        self.make(
            lambda: self.store.cancel(keys, life, token, reason, LONG_MS),
            lambda: self.model.cancel(keys.name, life, token, reason),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, to=ids, is_answered=st.booleans())
    def fork(self, instance_id: str, to: str, is_answered: bool) -> None:
        keys, target, life = self.of(instance_id), self.of(to), new_token()
        instance = self.model.instances.get(keys.name)
        if instance is None:
            return
        seen, origin = deepcopy(instance), self.wait(self.store.copy(keys))
        records, forked_from = finished_before(origin, keys, None), name_of_fork(origin, keys, None)
        self.make(
            lambda: self.store.fork(target, life, origin, forked_from, records),
            lambda: self.model.fork(seen, target.name, life, forked_from),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, is_answered=st.booleans())
    def delete(self, instance_id: str, is_answered: bool) -> None:
        keys = self.of(instance_id)
        instance = self.model.instances.get(keys.name)
        first, life, labels = new_token(), new_token(), NO_LABELS
        if instance is not None:
            first, life = instance.first_life, instance.life
            labels = parse_lines(instance.labels.split("\n") if instance.labels else [])
        self.make(
            lambda: self.store.delete(keys, first, labels, life),
            lambda: self.model.delete(keys.name, first, life),
            is_answered=is_answered,
        )

    # ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────

    def a_run(self, data: st.DataObject) -> Held:
        """Mostly one that holds its instance, sometimes one that only believes so."""
        current = [run for run in self.runs if self.model.held_by(run) is not None]
        return self.mostly(current, self.runs, data)

    def a_delivery(self, data: st.DataObject) -> Held:
        """Mostly that of an entry which is still there."""
        entries = {instance.entry for instance in self.model.instances.values()}
        return self.mostly([each for each in self.deliveries if each.entry in entries], self.deliveries, data)

    @staticmethod
    def mostly(preferred: Sequence[Result], all_: Sequence[Result], data: st.DataObject) -> Result:
        is_odd = not preferred or data.draw(st.integers(0, 4)) == 4
        return data.draw(st.sampled_from(all_ if is_odd else preferred))

    @rule(instance_id=ids, worker=workers, goes_on=st.booleans())
    def take(self, instance_id: str, worker: str, goes_on: bool) -> None:
        """A worker gets hold of an instance, whatever must happen first."""
        name = self.of(instance_id).name
        instance = self.model.instances.get(name)
        if instance is None:
            self.invoke(instance_id, "1", NOW, is_answered=True)
        elif instance.status.is_at_rest and goes_on:
            self.resume(instance_id, is_answered=True)
        elif instance.rests and instance.backing_off:
            self.a_deadline_comes(instance_id, fires=True)
        elif instance.delay is not None:
            self.a_delay_ends(instance_id, begins=True, is_answered=True)
        self.deliver(instance_id, worker)
        for held in self.deliveries:
            if held.entry == self.model.instances[name].entry:
                self.claim_by(held, is_answered=False)

    @rule(
        instance_id=ids,
        worker=workers,
        opened=points,
        withdrawn=withdrawals,
        parks=st.booleans(),
        comes=st.sampled_from(["a signal", "a message", "a deadline", "the end", "a cancel", "nothing"]),
    )
    def wait_at_points(
        self,
        instance_id: str,
        worker: str,
        opened: Sequence[AnyPoint],
        withdrawn: Sequence[str],
        parks: bool,
        comes: str,
    ) -> None:
        """What most runs do: chance alone seldom gets so far."""
        self.take(instance_id, worker, goes_on=True)
        instance = self.model.instances[self.of(instance_id).name]
        held = self.run_of(instance_id)
        if parks:
            self.park_at(held, opened, withdrawn, "waiting", is_answered=False)
        else:
            self.open_at(held, opened, withdrawn, is_answered=False)
        if comes == "a signal":
            for key in [*instance.open][:1]:
                self.signal(instance_id, key, "s1", fits=True, is_answered=False)
        elif comes == "a message":
            self.send(instance_id, None, is_answered=False)
        elif comes == "a deadline":
            self.a_deadline_comes(instance_id, fires=True)
        elif comes == "a cancel":
            self.cancel(instance_id, "no more", is_answered=False)
        elif comes == "the end":
            self.end(held, Outcome(Status.FAILED, b"{}", "no", sorted(instance.records)), LONG_MS, is_answered=False)

    @rule(
        data=st.data(),
        instance_id=ids,
        worker=workers,
        changes=st.lists(st.tuples(points | st.just([]), withdrawals, st.booleans()), min_size=2, max_size=4),
    )
    def change_its_mind(
        self,
        data: st.DataObject,
        instance_id: str,
        worker: str,
        changes: Sequence[tuple[Sequence[AnyPoint], Sequence[str], bool]],
    ) -> None:
        """A run opens, withdraws and opens again, and one of these calls comes late."""
        self.take(instance_id, worker, goes_on=True)
        held = self.run_of(instance_id)
        since = len(self.made)
        for opened, withdrawn, parks in changes:
            if parks:
                self.park_at(held, [*opened, PAST], withdrawn, "", is_answered=True)
            else:
                self.open_at(held, opened, withdrawn, is_answered=True)
        self.make_again(data.draw(st.sampled_from(self.made[since:]), label="call"), may_change=False)

    def run_of(self, instance_id: str) -> Held:
        instance = self.model.instances[self.of(instance_id).name]
        (held,) = [run for run in self.runs if self.model.held_by(run) is instance]
        return held

    @rule(instance_id=ids, worker=workers)
    def deliver(self, instance_id: str, worker: str) -> None:
        given = self.wait(self.stage.deliver(self.of(instance_id), worker))
        self.deliveries.extend(given)
        self.delivered_to.update((held.entry, worker) for held in given)
        self.look()

    @rule(data=st.data(), reads_anew=st.booleans(), is_answered=st.booleans())
    @precondition(lambda self: self.deliveries)
    def claim(self, data: st.DataObject, reads_anew: bool, is_answered: bool) -> None:
        held = self.a_delivery(data)
        self.claim_by(Held(held.keys, held.entry, new_token()) if reads_anew else held, is_answered)

    def claim_by(self, held: Held, is_answered: bool) -> None:
        worker = self.delivered_to[held.entry]
        self.make(
            lambda: self.store.claim(held, worker),
            lambda: self.model.claim(held, worker),
            is_answered=is_answered,
            held=held if held in self.runs else None,
        )
        if self.model.held_by(held) is not None and held not in self.runs:
            self.runs.append(held)

    @rule(data=st.data(), key=keys_of_any_kind, is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def record(self, data: st.DataObject, key: str, is_answered: bool) -> None:
        held = self.a_run(data)
        result = str(len(self.made)).encode()
        self.make(
            lambda: self.store.record(held, key, Draft.completed(StepKind.STEP, "int", result), 1),
            lambda: self.model.record(held, key, result),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), key=keys_of_any_kind, is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def settle(self, data: st.DataObject, key: str, is_answered: bool) -> None:
        held = self.a_run(data)
        result = str(len(self.made)).encode()
        self.make(
            lambda: self.store.settle(held, key, Draft.completed(StepKind.STEP, "int", result, attempts=2), 1),
            lambda: self.model.settle(held, key, result),
            is_answered=is_answered,
            held=held,
        )

    @rule(
        data=st.data(),
        members=members_of_first,
        winner=st.sampled_from(["s", "s", "p", "q"]),
        is_answered=st.booleans(),
    )
    @precondition(lambda self: self.runs)
    def choose(self, data: st.DataObject, members: Sequence[Member], winner: str, is_answered: bool) -> None:
        winner = winner if winner in {each.key for each in members} else members[0].key
        held = self.a_run(data)
        self.make(
            lambda: self.store.choose(held, CHOICE, members, winner, 1),
            lambda: self.model.choose(held, CHOICE, members, winner),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), opened=points, withdrawn=withdrawals, is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def open(
        self, data: st.DataObject, opened: Sequence[AnyPoint], withdrawn: Sequence[str], is_answered: bool
    ) -> None:
        self.open_at(self.a_run(data), opened, withdrawn, is_answered)

    def open_at(self, held: Held, opened: Sequence[AnyPoint], withdrawn: Sequence[str], is_answered: bool) -> None:
        turn = held.turn + 1
        self.make(
            lambda: self.store.open(held, opened, withdrawn),
            lambda: self.model.open(held, opened, withdrawn, turn),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), opened=points, withdrawn=withdrawals, message=texts, is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def park(
        self, data: st.DataObject, opened: Sequence[AnyPoint], withdrawn: Sequence[str], message: str, is_answered: bool
    ) -> None:
        self.park_at(self.a_run(data), opened, withdrawn, message, is_answered)

    def park_at(
        self, held: Held, opened: Sequence[AnyPoint], withdrawn: Sequence[str], message: str, is_answered: bool
    ) -> None:
        turn = held.turn + 1
        self.make(
            lambda: self.store.park(held, opened, withdrawn, message),
            lambda: self.model.park(held, opened, withdrawn, message, turn),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), status=ends, message=texts, expires=st.booleans(), is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def finish(self, data: st.DataObject, status: Status, message: str, expires: bool, is_answered: bool) -> None:
        held = self.a_run(data)
        instance = self.model.held_by(held)
        failed_keys: list[str] = []
        if status is Status.FAILED and instance is not None and instance.records:
            failed_keys = data.draw(st.lists(st.sampled_from(sorted(instance.records)), unique=True), label="failed")
        outcome = Outcome(status, b"{}", message, failed_keys)
        self.end(held, outcome, -1000 if expires else LONG_MS, is_answered=is_answered)

    def end(self, held: Held, outcome: Outcome, retention_ms: int, *, is_answered: bool) -> None:
        status, message, failed_keys = outcome.status, outcome.message, outcome.failed_keys
        self.make(
            lambda: self.store.finish(held, outcome, retention_ms),
            lambda: self.model.finish(held, status, message, failed_keys, expires=retention_ms < 0),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def release(self, data: st.DataObject, is_answered: bool) -> None:
        held = self.a_run(data)
        self.make(
            lambda: self.store.release(held), lambda: self.model.release(held), is_answered=is_answered, held=held
        )

    @rule(data=st.data(), input=st.sampled_from(["1", "2", "3"]), read=withdrawals, is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def continue_as(self, data: st.DataObject, input: str, read: Sequence[str], is_answered: bool) -> None:
        held, life = self.a_run(data), new_token()
        self.make(
            lambda: self.store.continue_as(held, NextLife(life, input.encode(), read)),
            lambda: self.model.continue_as(held, life, input, read),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), progress=texts, is_answered=st.booleans())
    @precondition(lambda self: self.runs)
    def set_status(self, data: st.DataObject, progress: str, is_answered: bool) -> None:
        held = self.a_run(data)
        turn = held.turn + 1
        self.make(
            lambda: self.store.set_status(held, progress),
            lambda: self.model.set_status(held, progress, turn),
            is_answered=is_answered,
            held=held,
        )

    @rule(data=st.data(), worker=workers)
    @precondition(lambda self: self.runs)
    def renew(self, data: st.DataObject, worker: str) -> None:
        held = self.a_run(data)
        instance = self.model.held_by(held)
        # a worker renews what it runs itself
        worker = worker if instance is None or instance.worker is None else instance.worker
        self.make(lambda: self.stage.renew(worker, held), lambda: self.model.renew(held), is_answered=False, held=held)

    # ── the leader ───────────────────────────────────────────────────────────────────────────────────────────────

    @rule(data=st.data(), max_recoveries=st.integers(0, 2), was_run=st.booleans(), is_answered=st.booleans())
    @precondition(lambda self: self.deliveries)
    def recover(self, data: st.DataObject, max_recoveries: int, was_run: bool, is_answered: bool) -> None:
        """Mostly from a run: of the many deliveries few are claimed."""
        held = self.a_run(data) if self.runs and was_run else self.a_delivery(data)
        self.make(
            lambda: self.stage.recover(held, max_recoveries=max_recoveries),
            lambda: self.model.recover(held, max_recoveries, "ValueError: no"),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, key=keys_of_points, is_answered=st.booleans())
    def fire_timer(self, instance_id: str, key: str, is_answered: bool) -> None:
        keys = self.of(instance_id)
        self.make(
            lambda: self.store.fire_timer(keys, key),
            lambda: self.model.fire_timer(keys.name, key),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, is_answered=st.booleans())
    def begin(self, instance_id: str, is_answered: bool) -> None:
        keys = self.of(instance_id)
        self.make(lambda: self.store.begin(keys), lambda: self.model.begin(keys.name), is_answered=is_answered)

    @rule(instance_id=ids, begins=st.booleans(), is_answered=st.booleans())
    def a_delay_ends(self, instance_id: str, begins: bool, is_answered: bool) -> None:
        keys = self.of(instance_id)
        instance = self.model.instances.get(keys.name)
        if instance is None or instance.delay is None:
            return
        self.wait(self.stage.make_delay_due(keys))
        instance.delay = True
        if begins:
            self.begin(instance_id, is_answered)
        self.look()

    @rule(instance_id=ids, is_answered=st.booleans())
    def expire(self, instance_id: str, is_answered: bool) -> None:
        keys = self.of(instance_id)
        self.make(
            lambda: self.store.expire(keys, BROKEN, LONG_MS),
            lambda: self.model.expire(keys.name, BROKEN.message),
            is_answered=is_answered,
        )

    @rule(instance_id=ids, expires=st.booleans(), is_answered=st.booleans())
    def its_own_deadline_comes(self, instance_id: str, expires: bool, is_answered: bool) -> None:
        instance = self.model.instances.get(self.of(instance_id).name)
        if instance is None or instance.ends is None:
            return
        self.wait(self.stage.make_deadline_due(self.of(instance_id)))
        instance.ends = True
        if expires:
            self.expire(instance_id, is_answered)
        self.look()

    @rule(instance_id=ids, fires=st.booleans())
    def a_deadline_comes(self, instance_id: str, fires: bool) -> None:
        keys = self.of(instance_id)
        instance = self.model.instances.get(keys.name)
        if instance is None:
            return
        for key in list(instance.deadlines):
            if key not in instance.deadlines:
                continue  # it raced with the one before
            self.wait(self.stage.make_due(keys, key))
            instance.deadlines[key] = True
            if fires:
                self.fire_timer(instance_id, key, is_answered=False)
        self.look()

    @rule(instance_id=ids, is_answered=st.booleans())
    def forget(self, instance_id: str, is_answered: bool) -> None:
        keys = self.of(instance_id)
        self.make(lambda: self.store.forget(keys), lambda: self.model.forget(keys.name), is_answered=is_answered)

    @rule(data=st.data(), is_answered=st.booleans())
    @precondition(lambda self: self.label_places)
    def unlabel(self, data: st.DataObject, is_answered: bool) -> None:
        """Of an instance whose retention is over, was over, or was to end once."""
        place = data.draw(st.sampled_from(sorted(self.label_places)), label="place")
        workflow, instance_id, created_us, lines = split_expiry_member(place)
        keys = self.stage.keys.of(workflow, instance_id)

        def is_this_life() -> bool:
            return self.scene.hashes.get(keys.instance, {}).get("created_us") == created_us

        self.make(
            lambda: self.store.unlabel(keys, place, created_us, lines),
            lambda: self.model.unlabel(keys.name, is_this_life=is_this_life()),
            is_answered=is_answered,
        )


@pytest.mark.timeout(400)  # many servers' worth of calls: a busy machine takes minutes
def test_the_store_does_what_the_model_says(redis_url: str, namespace: str) -> None:
    with asyncio.Runner() as runner:
        endpoint = Endpoint.from_url(redis_url)

        async def connect() -> ScriptConnection:
            connection = ScriptConnection(endpoint, give_up_after_s=20)
            await connection.start()
            return connection

        connection = runner.run(connect())
        names = map(f"{namespace}-{{}}".format, count())
        machine = type(
            "Machine",
            (StoreMachine,),
            {"runner": runner, "connection": connection, "endpoint": endpoint, "namespaces": names},
        )
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=50,
                    stateful_step_count=30,
                    deadline=None,
                    database=None,
                    suppress_health_check=[
                        HealthCheck.too_slow,
                        HealthCheck.filter_too_much,
                        HealthCheck.data_too_large,
                    ],
                ),
            )
        finally:
            runner.run(connection.close())
