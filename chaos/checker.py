"""What the faults broke: a pure function of the evidence, so that tests can show that it finds what there is to find.

Two kinds of calls are nobody's right, and the first is the harm that the second can do:

- a call **after the record**: it begins more than `TOLERANCE_S` after the time at which the record of its step was
  written, and before a resume has dropped that record;
- a call **of an old run**: it begins more than `TOLERANCE_S` after a later run of the same instance has begun.

One thing explains them: the worker was stopped (SIGSTOP) before it could know, that is before the record was written,
or the later run begun; and it began the call within `WAKING_S` of being continued, having passed the check that stands
before each call when it was stopped. Such calls are counted, and allowed: steps are called at least once.

A **stall** is the time from a fault that hit a worker to the next sign of life of an instance that it ran. A sign of
life is a later run, a record, the end; and what the worker itself did with it, unless it was killed. Further faults
meanwhile may have hit whoever took over: it counts from the last of them. The server's own downtime does not count, nor
does the time for which another worker was stopped: whoever leads may be that one.
An instance that has lost two workers in a row runs alone in the next (runtime/solitude.py), and waits for that: its
stalls are told apart, and have no limit.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from textwrap import shorten
from typing import Any, Final

from chaos.evidence import Answer, Evidence, Fault, Kind, Signalled
from chaos.history import Place
from chaos.ledger import Line, What

TOLERANCE_S: Final = 0.02
"""Records have their times in whole milliseconds; from being begun to writing its line, a call takes less than this."""

WAKING_S: Final = 0.25
"""From SIGCONT to the line of a call that had passed its check before: the process has to be given the processor."""

STALL_BEYOND_LEASE_S: Final = 2.0
_SUSPECT_FROM: Final = 2
_SHOWN: Final = 20
_SHOWN_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Written:
    """A finished record, and how long it stood."""

    kind: str
    text: str
    completed_s: float
    dropped_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The table to show, and each thing that went wrong, in a line."""

    table: Mapping[str, str | float]
    complaints: Sequence[str]

    @property
    def exit_code(self) -> int:
        """0 only if nothing went wrong."""
        return 1 if self.complaints else 0


def judge(seen: Evidence, *, stall_limit_s: float | None = None) -> Verdict:
    """The verdict; with a limit, a longer stall of any instance is a violation as well."""
    return _Judge(seen).verdict(stall_limit_s)


@dataclass
class _Stall:
    name: str
    fault: Fault
    lasted_s: float
    counted_s: float
    is_suspect: bool


@dataclass
class _Calls:
    """Calls that came too late."""

    wrong: list[str] = field(default_factory=list)
    explained: int = 0


class _Judge:
    def __init__(self, seen: Evidence) -> None:
        self.seen = seen
        self.invoked = {each.name: each for each in seen.invoked}
        self.records = {place: list(self._written(place, texts)) for place, texts in seen.history.records.items()}

    def verdict(self, stall_limit_s: float | None) -> Verdict:
        seen, left = self.seen, self.seen.left
        lost = list(self._lost())
        doubled = list(self._doubled())
        after, old = self._calls_after_their_record(), self._calls_of_old_runs()
        signals, timers = list(self._signals()), list(self._timers())
        stalls = self.stalls
        by_kind = Counter(fault.kind for fault in seen.faults)
        begins = Counter((line.name, line.key) for line in seen.ledger if line.what is What.BEGIN)
        table: dict[str, str | float] = {
            "instances": len(seen.invoked),
            "completed": sum(status == "completed" for status in left.statuses.values()),
            "records": sum(map(len, self.records.values())),
            "calls of steps": begins.total(),
            "runs": sum(len(runs) for runs in seen.history.claims.values()),
            "faults": len(seen.faults),
            **{f"  {kind}": by_kind[kind] for kind in Kind},
            "lost": len(lost),
            "doubled": len(doubled),
            "calls after their record": len(after.wrong),
            "calls of old runs": len(old.wrong),
            "  of both, explained by a SIGSTOP": after.explained + old.explained,
            "signals accepted": sum(each.answer is Answer.ACCEPTED for each in seen.signalled),
            "signals superseded": sum(each.answer is Answer.SUPERSEDED for each in seen.signalled),
            "signals lost or doubled": len(signals),
            "timers fired": sum(len(each) for each in self._fired.values()),
            "timers early": len(timers),
            "latest timer, s": round(self._latest_timer_s, 3),
            "instances hit by a fault": len({each.name for each in stalls}),
            "longest stall, s": round(max((each.lasted_s for each in stalls), default=0.0), 3),
            "longest stall per fault, s": _longest_s(each for each in stalls if not each.is_suspect),
            "  of what lost two in a row, s": _longest_s(each for each in stalls if each.is_suspect),
            "keys without a lifetime": len(left.immortal),
            "stream entries left": left.entries,
            "pending entries left": left.pending,
        }
        complaints = [
            *([] if seen.faults else ["there was no fault"]),
            *([] if seen.invoked else ["there was no instance"]),
            *lost,
            *doubled,
            *self._false_answers(),
            *after.wrong,
            *old.wrong,
            *self._uncalled(begins),
            *signals,
            *timers,
            *seen.surprises,
            *(f"{name} would never go" for name in left.immortal),
            *([f"{left.entries} entries are left in the streams"] if left.entries else []),
            *([f"{left.pending} entries are left pending"] if left.pending else []),
            *left.disorder,
        ]
        if not seen.settled:
            complaints.append("not all instances came to their ends in time")
        if abs(seen.clock_drift_s) > TOLERANCE_S:
            complaints.append(f"the clock was moved by {seen.clock_drift_s:.3f} s meanwhile: nothing can be told")
        if stall_limit_s is not None:
            complaints += (
                f"{each.name} did not move for {each.counted_s:.1f} s after {each.fault.kind} {each.fault.pid}"
                for each in stalls
                if each.counted_s > stall_limit_s and not each.is_suspect
            )
        return Verdict(table, complaints)

    # ── records ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _written(self, place: Place, texts: Sequence[str | None]) -> Iterator[Written]:
        """The finished records at a place, in order."""
        found: list[tuple[dict[str, Any], str, bool]] = []
        for text in texts:
            if text is None:
                if found:
                    found[-1] = (*found[-1][:2], True)
            elif (facts := json.loads(text))["state"] in ("completed", "failed"):
                found.append((facts, text, False))
        invoked = self.invoked.get(place[0])
        for facts, text, was_dropped in found:
            completed_s = facts["completed_ms"] / 1000
            # a resume is what drops one; its reply may have come late, it was not asked for before this
            dropped = (at_s for at_s in (invoked.resumed_s if invoked else ()) if at_s >= completed_s)
            yield (
                Written(facts["kind"], text, completed_s, min(dropped, default=completed_s))
                if was_dropped
                else (Written(facts["kind"], text, completed_s))
            )

    def _lost(self) -> Iterator[str]:
        for each in self.seen.invoked:
            status = self.seen.left.statuses.get(each.name)
            if status is None:
                yield f"{each.name} is lost: its invoke was acknowledged, and it is not there"
            elif status != "completed":
                yield f"{each.name} is {status}, not completed: {each.result}"
            elif each.result is None:
                yield f"{each.name} is completed, and the client still waits for it"
            elif list(each.result) != list(each.output):
                yield f"{each.name} returned {each.result}, not {each.output}"
        for (name, key), texts in self.seen.history.records.items():
            drops = sum(
                before is not None and not before.startswith('{"state":"suspended"') and after is None
                for before, after in pairwise(texts)
            )
            if drops > (len(invoked.resumed_s) if (invoked := self.invoked.get(name)) else 0):
                yield f"the record {key!r} of {name} is lost: {drops} times it was dropped after it was finished"

    def _doubled(self) -> Iterator[str]:
        for name, lives in self.seen.history.lives.items():
            if len(lives) != 1:
                yield f"{name} was made {len(lives)} times"
        for (name, key), texts in self.seen.history.records.items():
            for before, after in pairwise(texts):
                if before is not None and after is not None and not before.startswith('{"state":"suspended"'):
                    yield f"the record {key!r} of {name} was {before}, and became {after}"

    def _false_answers(self) -> Iterator[str]:
        for each in self.seen.invoked:
            if each.tries == 1 and not each.created:
                yield f"{each.name}: the client that started it was told that it was there already"

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _lines(self) -> Mapping[str, Sequence[Line]]:
        """By instance."""
        lines: defaultdict[str, list[Line]] = defaultdict(list)
        for line in self.seen.ledger:
            lines[line.name].append(line)
        return lines

    @cached_property
    def _begun_s(self) -> Mapping[str, Sequence[tuple[int, float]]]:
        """By instance: when each of its runs entered the function, by the number of the run."""
        return {
            name: sorted((line.run, line.at_s) for line in lines if line.what is What.RUN)
            for name, lines in self._lines.items()
        }

    def _calls_after_their_record(self) -> _Calls:
        calls = _Calls()
        for line in self.seen.ledger:
            if line.what is not What.BEGIN:
                continue
            for written in self.records.get((line.name, line.key), ()):
                if written.completed_s + TOLERANCE_S < line.at_s < written.dropped_s:
                    late_s = line.at_s - written.completed_s
                    self._sort(calls, line, written.completed_s, f"{late_s:.3f} s after its record was written")
                    break
        return calls

    def _calls_of_old_runs(self) -> _Calls:
        calls = _Calls()
        for line in self.seen.ledger:
            if line.what is not What.BEGIN:
                continue
            later = [(run, at_s) for run, at_s in self._begun_s[line.name] if run > line.run]
            if later:
                run, at_s = min(later, key=lambda each: each[1])
                if at_s + TOLERANCE_S < line.at_s:
                    self._sort(calls, line, at_s, f"{line.at_s - at_s:.3f} s after run {run} had begun")
        return calls

    def _sort(self, calls: _Calls, line: Line, could_know_s: float, when: str) -> None:
        if any(
            fault.kind in (Kind.STOP, Kind.PAUSE)
            and fault.pid == line.pid
            and fault.at_s <= could_know_s
            and line.at_s <= fault.until_s + WAKING_S
            for fault in self.seen.faults
        ):
            calls.explained += 1
        else:
            calls.wrong.append(
                f"step {line.key!r} of {line.name} was called by worker {line.pid}, in run {line.run}, {when}"
            )

    def _uncalled(self, begins: Mapping[Place, int]) -> Iterator[str]:
        for (name, key), records in self.records.items():
            if any(written.kind == "step" for written in records) and not begins.get((name, key)):
                yield f"step {key!r} of {name} has a record, and was never called"

    # ── signals and timers ───────────────────────────────────────────────────────────────────────────────────────

    def _signals(self) -> Iterator[str]:
        by_place: defaultdict[Place, list[Signalled]] = defaultdict(list)
        for each in self.seen.signalled:
            by_place[each.name, each.key].append(each)
        for (name, key), sent in by_place.items():
            accepted = {each.signal_id: each for each in sent if each.answer is Answer.ACCEPTED}
            completers = self.seen.history.completers.get((name, key), [])
            if len(accepted) > 1:
                yield f"{key!r} of {name}: the signals {sorted(accepted)} were all accepted"
            if not accepted:
                yield f"{key!r} of {name}: {len(sent)} signals were superseded, and none was accepted"
            for signal_id, each in accepted.items():
                texts = [written.text for written in self.records.get((name, key), ())]
                results = [json.loads(text)["result"] for text in texts]
                if completers != [f"signal {signal_id}"] or results != [each.payload]:
                    yield f"{key!r} of {name}: accepted was {signal_id}, recorded is {results} by {completers}"
        for (name, key), completers in self.seen.history.completers.items():
            if len([each for each in completers if each is not None]) > 1:
                yield f"{key!r} of {name} was completed more than once: {completers}"

    @cached_property
    def _fired(self) -> Mapping[Place, Sequence[Written]]:
        return {
            place: [each for each in records if each.kind == "timer"]
            for place, records in self.records.items()
            if any(each.kind == "timer" for each in records)
        }

    def _timers(self) -> Iterator[str]:
        for (name, key), dues_ms in self.seen.history.dues_ms.items():
            if len(set(dues_ms)) > 1:
                yield f"timer {key!r} of {name} had the deadlines {dues_ms}"
            for written in self._fired.get((name, key), ()):
                if written.completed_s * 1000 < dues_ms[0]:
                    early_ms = dues_ms[0] - written.completed_s * 1000
                    yield f"timer {key!r} of {name} fired {early_ms:.0f} ms early"

    @property
    def _latest_timer_s(self) -> float:
        """How late a timer fired at most; faults included."""
        return max(
            (
                written.completed_s - dues_ms[0] / 1000
                for place, dues_ms in self.seen.history.dues_ms.items()
                for written in self._fired.get(place, ())
            ),
            default=0.0,
        )

    # ── stalls ───────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def stalls(self) -> Sequence[_Stall]:
        """What each fault did to each instance that the worker ran which it hit."""
        runs_by_pid: defaultdict[int, list[tuple[Line, float]]] = defaultdict(list)
        for lines in self._lines.values():
            rested_s = {(line.run, line.pid): line.at_s for line in lines if line.what is What.REST}
            for line in lines:
                if line.what is What.RUN:
                    runs_by_pid[line.pid].append((line, rested_s.get((line.run, line.pid), float("inf"))))
        return [
            self._stall(run, fault)
            for fault in self.seen.faults
            if fault.kind in (Kind.KILL, Kind.STOP, Kind.TERM) and fault.pid is not None
            for run, rested_s in runs_by_pid[fault.pid]
            if run.at_s < fault.at_s < rested_s and not self._is_over(run, fault.at_s)
        ]

    def _is_over(self, run: Line, at_s: float) -> bool:
        return any(number > run.run and begun_s <= at_s for number, begun_s in self._begun_s[run.name])

    def _stall(self, run: Line, fault: Fault) -> _Stall:
        signs = (sign for sign in self._signs_of_life(run, fault) if sign[0] > fault.at_s)
        moved_s, number = min(signs, default=(self.seen.ended_s, run.run))
        # what hit it again: from there on somebody else has it, or whoever would have taken it is gone
        again = [
            other.until_s if other.kind in (Kind.SERVER, Kind.STOP) and other.until_s < moved_s else other.at_s
            for other in self.seen.faults
            if other is not fault
            and other.kind is not Kind.PAUSE
            and fault.at_s < other.until_s
            and other.at_s < moved_s
        ]
        from_s = max([fault.at_s, *again])
        is_suspect = self.seen.history.losses.get(run.name, {}).get(number, 0) >= _SUSPECT_FROM
        return _Stall(run.name, fault, moved_s - fault.at_s, moved_s - from_s, is_suspect)

    def _signs_of_life(self, run: Line, fault: Fault) -> Iterator[tuple[float, int]]:
        """When, and in which run if that is known."""
        for line in self._lines[run.name]:
            if (line.what is What.RUN and line.run > run.run) or (line.run == run.run and fault.kind is not Kind.KILL):
                yield line.at_s, line.run
        for key in self._keys[run.name]:
            yield from ((written.completed_s, run.run) for written in self.records[run.name, key])
        if (completed_ms := self.seen.left.completed_ms.get(run.name)) is not None:
            yield completed_ms / 1000, run.run

    @cached_property
    def _keys(self) -> Mapping[str, Sequence[str]]:
        keys: defaultdict[str, list[str]] = defaultdict(list)
        for name, key in self.records:
            keys[name].append(key)
        return keys


def _longest_s(stalls: Iterable[_Stall]) -> float:
    return round(max((each.counted_s for each in stalls), default=0.0), 3)


def show(verdict: Verdict) -> str:
    """The verdict for people."""
    width = max(map(len, verdict.table))
    lines = [f"{name:{width}}  {value}" for name, value in verdict.table.items()]
    complaints = [f"✗ {shorten(each, _SHOWN_CHARACTERS)}" for each in verdict.complaints[:_SHOWN]]
    if (more := len(verdict.complaints) - _SHOWN) > 0:
        complaints.append(f"✗ and {more} more")
    return "\n".join([*lines, "", *(complaints or ["nothing lost, nothing doubled"])])
