"""How long faults held instances and timers up.

A **fault hits** an instance that is in the hands of the worker that it hits: from the delivery of its stream entry
until the instance parks, ends, or is queued again. What kills or stops the server hits all that is in anybody's hands.

A **stall** is the time from there to the next sign of life: a later run, what the same run did itself, the record of a
step, the end. It may last a lease and `BEYOND_LEASE_S`: that is for the leader to see that a lease is over, and for a
worker to begin. It counts from the last fault that hit the instance, whoever had it by then, or, while somebody had it,
the leader of its partition: who was to recover it is gone, and a lead lasts a lease. The server's own downtime does not
count, nor does the time for which an instance blocks the event loop of the worker that has it.

Nobody may recover before having been there, in peace, for a lease: after an outage everything looks abandoned. If an
instance is still to be recovered a lease after the last fault, and there is no such worker in the whole fleet, it
counts from when the first of them was left in peace. Nothing else is an excuse; in particular no fault of other workers
is one, nor of the leader while the instance waits in its stream.

An instance that has lost `SUSPECT_FROM` workers in a row runs alone in the next (runtime/solitude.py). For that it may
wait `SUSPECT_WAITS_LEASES` longer; its stalls have a line of their own.

A **timer is late** by the time from its deadline, or from the last fault of the server or the leader after that; it has
as long as a stall. If a lease after that there is no worker at all that is left in peace, it is from when the first of
them is. In a **calm** no fault is in the air: none goes on, or has ended less than a lease and `BEYOND_LEASE_S` ago.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from chaos.evidence import DEADLY, Evidence, Fault, Kind, Written
from chaos.history import RETRYING, Delivery, Place
from chaos.ledger import Line, What
from chaos.names import instance_name, life_name, life_of
from memable.keys import DEADLINE_KEY, DELAY_KEY
from memable.state import Status

TOLERANCE_S: Final = 0.02
"""Records have their times in whole milliseconds; from being begun to writing its line, a call takes less than this."""

BEYOND_LEASE_S: Final = 2.0
SUSPECT_FROM: Final = 2
SUSPECT_WAITS_LEASES: Final = 1
"""For so long a suspect waits for its neighbours to come to rest; then it runs in their company."""

_WHOLE: Final = frozenset({Kind.SERVER, Kind.BLOCK})
"""Faults whose whole duration does not count: meanwhile nobody can do anything for what they hit."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What a fault did to an instance."""

    name: str
    fault: Fault
    lasted_s: float
    counted_s: float
    """From the last fault, and without the server's downtime."""
    is_suspect: bool


class Fired(NamedTuple):
    """A timer that has fired."""

    place: Place
    due_s: float
    at_s: float


class _Sign(NamedTuple):
    at_s: float
    run: int | None
    pid: int | None


class Stalls:
    """Stalls and late timers in the evidence, and in the finished records that the checker has found there."""

    def __init__(self, seen: Evidence, records: Mapping[Place, Sequence[Written]]) -> None:
        self._seen = seen
        self._records = records

    # ── stalls ───────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def all(self) -> Sequence[Stall]:
        """What each fault did to each instance that it hit."""
        return [
            self._stall(name, delivery, fault, hit_s)
            for name, deliveries in self._seen.history.deliveries.items()
            for delivery in deliveries
            for fault in self._seen.faults
            if (hit_s := self._hit_s(fault, name, delivery)) is not None
        ]

    def limit_s(self, stall: Stall, beyond_lease_s: float) -> float:
        """How long the stall may be."""
        leases = 1 + (SUSPECT_WAITS_LEASES if stall.is_suspect else 0)
        return leases * self._seen.lease_s + beyond_lease_s

    def _hit_s(self, fault: Fault, name: str, delivery: Delivery) -> float | None:
        """When the fault hit what was delivered; for a fault that hits for as long as it lasts, when that was over."""
        if (fault.kind is not Kind.SERVER and fault.pid != delivery.pid) or not self._overlap(fault, name, delivery):
            return None
        hit_s = fault.until_s if fault.kind in _WHOLE else max(fault.at_s, delivery.at_s)
        return None if self._until_s[name, delivery.at_s] <= hit_s + TOLERANCE_S else hit_s

    def _overlap(self, fault: Fault, name: str, delivery: Delivery) -> bool:
        """Whether the fault went on while the worker had what was delivered."""
        # a server may not have noticed yet that a worker is dead
        until_s = fault.until_s + TOLERANCE_S if fault.kind in DEADLY else fault.until_s
        return delivery.at_s <= until_s and self._until_s[name, delivery.at_s] > fault.at_s + TOLERANCE_S

    def _stall(self, name: str, delivery: Delivery, fault: Fault, hit_s: float) -> Stall:
        deliveries = self._seen.history.deliveries[name]
        moved = min(
            (
                sign
                for sign in self._signs[name]
                if sign.at_s > hit_s + TOLERANCE_S
                and not (fault.kind in DEADLY and sign.pid == delivery.pid)
                and (sign.run is None or sign.run >= (delivery.run or 0))
            ),
            default=_Sign(self._seen.ended_s, None, None),
            key=lambda sign: sign.at_s,
        )
        from_s = max([hit_s, *self._restarts(name, hit_s, moved.at_s, but=fault)])
        abandoned_s = from_s + self._seen.lease_s
        if any(each.at_s <= abandoned_s < self._until_s[name, each.at_s] for each in deliveries):
            manned_s = self._manned_s(abandoned_s, peace_s=self._seen.lease_s)
            from_s = max(from_s, min(manned_s, moved.at_s) - self._seen.lease_s)
        run = delivery.run if moved.run is None else moved.run
        losses = 0 if run is None else self._seen.history.losses.get(name, {}).get(run, 0)
        return Stall(name, fault, moved.at_s - hit_s, moved.at_s - from_s, losses >= SUSPECT_FROM)

    def _restarts(self, name: str, from_s: float, to_s: float, *, but: Fault) -> Iterator[float]:
        """Each moment between these two from which a further fault has the instance wait anew."""
        partition = self._seen.history.partitions.get(name, 0)
        for fault in self._seen.faults:
            if fault is but or fault.at_s >= to_s or fault.until_s + TOLERANCE_S <= from_s:
                continue
            if fault.kind is Kind.SERVER:
                yield min(fault.until_s, to_s)
                continue
            for delivery in self._seen.history.deliveries[name]:
                if delivery.at_s >= to_s:
                    continue
                if not self._overlap(fault, name, delivery):
                    continue
                if fault.pid == delivery.pid:
                    until_s = min(fault.until_s, self._until_s[name, delivery.at_s], to_s)
                    yield until_s if fault.kind in _WHOLE else max(fault.at_s, delivery.at_s)
                elif fault in self._at_leaders[partition]:
                    yield fault.at_s

    def _manned_s(self, from_s: float, *, peace_s: float) -> float:
        """The first moment from then on at which some worker has been left in peace for so long."""
        ready_s = ((max(begin_s + peace_s, from_s), end_s) for begin_s, end_s in self._peaces)
        return min((at_s for at_s, end_s in ready_s if at_s < end_s), default=float("inf"))

    @cached_property
    def _peaces(self) -> Sequence[tuple[float, float]]:
        """From when until when a worker was at work, and no fault hit it or the server."""
        started_s: dict[int, float] = {}
        for line in self._seen.ledger:
            if line.what is What.MAY_LEAD:
                started_s.setdefault(line.pid, line.at_s)
        peaces = []
        for pid, at_work_s in started_s.items():
            begin_s = at_work_s
            gone_s = self._seen.gone_s.get(pid, float("inf"))
            for fault in sorted(self._seen.faults, key=lambda fault: fault.at_s):
                if (fault.pid == pid or fault.kind is Kind.SERVER) and fault.until_s > begin_s:
                    peaces.append((begin_s, min(fault.at_s, gone_s)))
                    begin_s = fault.until_s
            peaces.append((begin_s, gone_s))
        return peaces

    @cached_property
    def _until_s(self) -> Mapping[tuple[str, float], float]:
        """Until when the worker had what was delivered, by instance and time of the delivery."""
        last_s: dict[tuple[str, int | None, int], float] = {}
        for line in self._seen.ledger:
            last_s[line.name, line.run, line.pid] = line.at_s
        until_s = {}
        for name, deliveries in self._seen.history.deliveries.items():
            for each in deliveries:
                ended_s = float("inf") if each.until_s is None else each.until_s
                if each.parked:
                    # as it leaves its function; one that died before that has done nothing later
                    ended_s = last_s.get((name, each.run, each.pid), each.at_s)
                until_s[name, each.at_s] = ended_s
        return until_s

    @cached_property
    def _signs(self) -> Mapping[str, Sequence[_Sign]]:
        """Signs of life by instance."""
        signs: defaultdict[str, list[_Sign]] = defaultdict(list)
        for line in self._seen.ledger:
            if line.what is not What.MAY_LEAD:
                signs[line.name].append(_Sign(line.at_s, line.run, line.pid))
        for (name, _), records in self._records.items():
            # signals and timers are written by others
            signs[name] += (_Sign(each.completed_s, None, None) for each in records if each.kind == "step")
        for name, completed_ms in self._seen.left.completed_ms.items():
            signs[self._last_lives.get(name, name)].append(_Sign(completed_ms / 1000, None, None))
        for line in self._seen.ledger:
            if line.what is What.RUN and (life := life_of(line.name)) > 1:
                signs[life_name(instance_name(line.name), life - 1)].append(_Sign(line.at_s, None, line.pid))
        return signs

    @cached_property
    def _last_lives(self) -> Mapping[str, str]:
        """By instance: its name in its last life, if it has had more than one."""
        later = (name for name in self._seen.history.lives if life_of(name) > 1)
        return {instance_name(name): name for name in sorted(later, key=life_of)}

    @cached_property
    def _at_leaders(self) -> Mapping[int, AbstractSet[Fault]]:
        """The faults that hit the leader, by the number of its partition."""
        tokens: defaultdict[int, set[str]] = defaultdict(set)
        for line in self._seen.ledger:
            if line.what is What.MAY_LEAD:
                tokens[line.pid].add(line.name)
        return defaultdict(
            frozenset,
            {
                partition: frozenset(
                    fault
                    for fault in self._seen.faults
                    if fault.pid is not None
                    and any(
                        lead.until_s - self._seen.lease_s <= fault.until_s and fault.at_s <= lead.until_s
                        for lead in leads
                        if lead.token in tokens[fault.pid]
                    )
                )
                for partition, leads in self._seen.history.leads.items()
            },
        )

    # ── timers ───────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def fired(self) -> Sequence[Fired]:
        """Each deadline that was waited for until it came: of timers, waits, delays, instances and further attempts."""
        return [*self._deadlines(), *self._further_attempts()]

    def _deadlines(self) -> Iterator[Fired]:
        history = self._seen.history
        for place, dues_ms in history.dues_ms.items():
            if place[1] == DELAY_KEY:
                yield from (Fired(place, dues_ms[-1] / 1000, at_ms / 1000) for at_ms in history.queued_ms[place[0]][:1])
            elif place[1] == DEADLINE_KEY:
                if self._seen.left.statuses.get(place[0]) == Status.FAILED:
                    yield Fired(place, dues_ms[-1] / 1000, self._seen.left.completed_ms[place[0]] / 1000)
            elif "timer" in history.completers.get(place, ()):
                yield from (Fired(place, dues_ms[-1] / 1000, each.completed_s) for each in self._records.get(place, ()))

    def _further_attempts(self) -> Iterator[Fired]:
        """Of instances that were at rest meanwhile: what runs is told, and leaves no trace of that."""
        history = self._seen.history
        for place, texts in history.records.items():
            for text in texts:
                if text is not None and text.startswith(RETRYING):
                    due_s = json.loads(text)["due_ms"] / 1000
                    after_s = [ms / 1000 for ms in history.queued_ms[place[0]] if ms / 1000 >= due_s]
                    again_s = (line.at_s for line in self._begins.get(place, ()) if line.at_s >= due_s)
                    first_s = min(again_s, default=float("inf"))
                    yield from (Fired(place, due_s, at_s) for at_s in after_s[:1] if at_s <= first_s)

    @cached_property
    def _begins(self) -> Mapping[Place, Sequence[Line]]:
        begins: defaultdict[Place, list[Line]] = defaultdict(list)
        for line in self._seen.ledger:
            if line.what is What.BEGIN:
                begins[line.name, line.key].append(line)
        return begins

    def late_s(self, timer: Fired) -> float:
        """How late it fired, counted from the last fault of those that were to see to it."""
        partition = self._seen.history.partitions.get(timer.place[0], 0)
        at_leader = self._at_leaders[partition]
        again = (
            min(fault.until_s, timer.at_s) if fault.kind is Kind.SERVER else fault.at_s
            for fault in self._seen.faults
            if fault.at_s < timer.at_s and (fault.kind is Kind.SERVER or fault in at_leader)
        )
        from_s = max([timer.due_s, *again])
        if timer.at_s - from_s <= self._seen.lease_s:
            return timer.at_s - from_s  # nearly all of them: whether anybody was there need not be asked
        manned_s = self._manned_s(from_s + self._seen.lease_s, peace_s=0.0)
        return timer.at_s - max(from_s, min(manned_s, timer.at_s) - self._seen.lease_s)

    def in_calm(self) -> Iterable[Fired]:
        """Those from whose deadline to whose end no fault was in the air."""
        shadow_s = self._seen.lease_s + BEYOND_LEASE_S
        return (
            timer
            for timer in self.fired
            if not any(
                fault.at_s <= timer.at_s and timer.due_s <= fault.until_s + shadow_s for fault in self._seen.faults
            )
        )
