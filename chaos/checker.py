"""What the faults broke: a pure function of the evidence, so that tests can show that it finds what there is to find.

Two kinds of calls are nobody's right, and the first is the harm that the second can do:

- a call **after the record**: it begins more than `TOLERANCE_S` after the time at which the record of its step was
  written, and before a resume has dropped that record;
- a call **of an old run**: it begins more than `TOLERANCE_S` after a later run of the same instance has begun.

One thing explains them: the worker was stopped (SIGSTOP) before it could know, that is before the record was written,
or the later run begun; and it began the call within `WAKING_S` of being continued, having passed the check that stands
before each call when it was stopped. Such calls are counted, and allowed: steps are called at least once.

For how long faults may hold instances and timers up: stalls.py. What workers may write into their logs: logs.py.

A worker that leaves in peace takes its **consumers** along. Those of a dead one are the leader's to remove, once they
have been silent for a while.
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

from chaos.evidence import Answer, Evidence, Fault, Kind, Signalled, Written
from chaos.history import Place
from chaos.ledger import Line, What
from chaos.logs import judge_logs
from chaos.stalls import BEYOND_LEASE_S, TOLERANCE_S, Stalls

WAKING_S: Final = 0.25
"""From SIGCONT to the line of a call that had passed its check before: the process has to be given the processor."""

CONSUMERS_GO_WITHIN_S: Final = 30.0 + 30.0 + 15.0
"""Silent for 30 s, and seen by a leader, who looks every 30 s; the rest is for a leader to be there."""

_SHOWN: Final = 20
_SHOWN_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Verdict:
    """The table to show, and each thing that went wrong, in a line."""

    table: Mapping[str, str | float]
    complaints: Sequence[str]

    @property
    def exit_code(self) -> int:
        """0 only if nothing went wrong."""
        return 1 if self.complaints else 0


def judge(seen: Evidence, *, beyond_lease_s: float = BEYOND_LEASE_S) -> Verdict:
    """The verdict; `beyond_lease_s` is more than the default only where a busy machine makes everything late."""
    return _Judge(seen).verdict(beyond_lease_s)


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
        self.stalls = Stalls(seen, self.records)

    def verdict(self, beyond_lease_s: float) -> Verdict:
        seen, left = self.seen, self.seen.left
        lost = list(self._lost())
        doubled = list(self._doubled())
        after, old = self._calls_after_their_record(), self._calls_of_old_runs()
        signals, timers = list(self._signals()), list(self._timers())
        stalls, calm = self.stalls.all, list(self.stalls.in_calm())
        errors = list(judge_logs(seen))
        by_kind = Counter(fault.kind for fault in seen.faults)
        begins = Counter((line.name, line.key) for line in seen.ledger if line.what is What.BEGIN)
        table: dict[str, str | float] = {
            "instances": len(seen.invoked),
            "completed": sum(status == "completed" for status in left.statuses.values()),
            "records": sum(map(len, self.records.values())),
            "calls of steps": begins.total(),
            "runs": sum(len(runs) for runs in seen.history.claims.values()),
            "  failed, as they must": sum(each.fails is not None for each in seen.invoked),
            "faults injected": len(seen.faults),
            **{f"  {kind}": by_kind[kind] for kind in Kind},
            "lost": len(lost),
            "doubled records": len(doubled),
            "steps called after their record": len(after.wrong),
            "steps called by old runs": len(old.wrong),
            "  of both, explained by a SIGSTOP": after.explained + old.explained,
            "signals accepted": sum(each.answer is Answer.ACCEPTED for each in seen.signalled),
            "signals superseded": sum(each.answer is Answer.SUPERSEDED for each in seen.signalled),
            "signals lost or doubled": len(signals),
            "timers fired": len(self.stalls.fired),
            "timers early": len(timers),
            "latest timer per fault, s": _longest_s(map(self.stalls.late_s, self.stalls.fired)),
            f"  in a calm ({len(calm)} timers), s": _longest_s(each.at_s - each.due_s for each in calm),
            "instances hit by a fault": len({each.name for each in stalls}),
            "longest stall, s": _longest_s(each.lasted_s for each in stalls),
            "longest stall per fault, s": _longest_s(each.counted_s for each in stalls if not each.is_suspect),
            "  of suspects, s": _longest_s(each.counted_s for each in stalls if each.is_suspect),
            "keys without a lifetime": len(left.immortal),
            "stream entries left": left.entries,
            "pending entries left": left.pending,
            "consumers left": len(left.consumers),
            "errors in logs": len(errors),
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
            *self._late(beyond_lease_s),
            *self._stalled(beyond_lease_s),
            *self._consumers(),
            *errors,
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
            completed_s = (facts["started_ms"] + facts["took_ms"]) / 1000
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
            elif each.fails is not None:
                if status != "failed" or each.fails not in str(each.result):
                    yield f"{each.name} is {status}, not failed with {each.fails}: {each.result}"
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

    def _timers(self) -> Iterator[str]:
        for (name, key), dues_ms in self.seen.history.dues_ms.items():
            if len(set(dues_ms)) > 1:
                yield f"timer {key!r} of {name} had the deadlines {dues_ms}"
            for written in self.records.get((name, key), ()):
                if written.completed_s * 1000 < dues_ms[0]:
                    early_ms = dues_ms[0] - written.completed_s * 1000
                    yield f"timer {key!r} of {name} fired {early_ms:.0f} ms early"

    # ── stalls and late timers ───────────────────────────────────────────────────────────────────────────────────

    def _stalled(self, beyond_lease_s: float) -> Iterator[str]:
        for each in self.stalls.all:
            if each.counted_s > self.stalls.limit_s(each, beyond_lease_s):
                suspect = ", a suspect," if each.is_suspect else ""
                yield f"{each.name}{suspect} did not move for {each.counted_s:.1f} s after {_told(each.fault)}"

    def _late(self, beyond_lease_s: float) -> Iterator[str]:
        for timer in self.stalls.fired:
            late_s = self.stalls.late_s(timer)
            if late_s > self.seen.lease_s + beyond_lease_s:
                name, key = timer.place
                yield f"timer {key!r} of {name}, due at {timer.due_s:.3f}, fired {late_s:.1f} s late"

    # ── what is left of the workers ──────────────────────────────────────────────────────────────────────────────

    def _consumers(self) -> Iterator[str]:
        seen = self.seen
        for stream, pid in ((each.stream, each.pid) for each in seen.left.consumers):
            gone_s = seen.gone_s.get(pid, 0.0)
            if gone_s >= seen.ended_s:
                yield f"worker {pid} has left in peace, and its consumer is left in {stream}"
            elif (age_s := seen.ended_s - gone_s) > CONSUMERS_GO_WITHIN_S:
                yield f"the consumer of worker {pid} is left in {stream}, {age_s:.0f} s after the worker was gone"


def _longest_s(times_s: Iterable[float]) -> float:
    return round(max(times_s, default=0.0), 3)


def _told(fault: Fault) -> str:
    return str(fault.kind) if fault.pid is None else f"{fault.kind} {fault.pid}"


def show(verdict: Verdict) -> str:
    """The verdict for people."""
    width = max(map(len, verdict.table))
    lines = [f"{name:{width}}  {value}" for name, value in verdict.table.items()]
    complaints = [f"✗ {shorten(each, _SHOWN_CHARACTERS)}" for each in verdict.complaints[:_SHOWN]]
    if (more := len(verdict.complaints) - _SHOWN) > 0:
        complaints.append(f"✗ and {more} more")
    return "\n".join([*lines, "", *(complaints or ["nothing lost, nothing doubled"])])
