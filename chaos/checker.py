"""What the faults broke: a pure function of the evidence, so that tests can show that it finds what there is to find.

The rules are in modules of their own: calls.py, kept.py, waited.py; for how long faults may hold instances and timers
up, stalls.py; what workers may write into their logs, logs.py.

A worker that leaves in peace takes its **consumers** along. Those of a dead one are the leader's to remove, once they
have been silent for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Final

from chaos import calls, kept, waited
from chaos.evidence import Answer, Evidence, Fault, Kind
from chaos.facts import Facts
from chaos.logs import judge_logs
from chaos.names import child_place, life_of
from chaos.stalls import BEYOND_LEASE_S, TOLERANCE_S

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


class _Judge:
    def __init__(self, seen: Evidence) -> None:
        self.seen = seen
        self._facts = Facts(seen)
        self.stalls = self._facts.stalls

    def verdict(self, beyond_lease_s: float) -> Verdict:
        facts, seen, left = self._facts, self.seen, self.seen.left
        lost, doubled, living = list(kept.lost(facts)), list(kept.doubled(facts)), list(kept.left_living(facts))
        after, old = calls.after_their_record(facts), calls.of_old_runs(facts)
        over, miscounted = calls.of_what_is_over(facts), calls.miscounted(facts)
        too_late = (after, old, over, miscounted)
        signals, messages, timers = (
            list(waited.signals(facts)),
            list(waited.messages(facts)),
            list(waited.timers(facts)),
        )
        signals += waited.choices(facts)
        stalls, calm = self.stalls.all, list(self.stalls.in_calm())
        errors = list(judge_logs(seen))
        by_kind = Counter(fault.kind for fault in seen.faults)
        statuses = Counter(facts.status(each.name) for each in seen.invoked)
        completers = Counter(str(by).split()[0] for all in seen.history.completers.values() for by in all)
        table: dict[str, str | float] = {
            "instances": len(seen.invoked),
            "completed": statuses["completed"],
            "  cancelled by the client": statuses["cancelled"],
            "  failed, as they must": sum(
                each.fails is not None and facts.status(each.name) == "failed" for each in seen.invoked
            ),
            "  resumed by the client": sum(bool(each.resumed_s) for each in seen.invoked),
            "children": sum(child_place(name) is not None for name in left.statuses),
            "further lives": sum(life_of(name) > 1 for name in seen.history.lives),
            "records": sum(map(len, facts.records.values())),
            "calls of steps": len(facts.begins),
            "runs": sum(len(runs) for runs in seen.history.claims.values()),
            "faults injected": len(seen.faults),
            **{f"  {kind}": by_kind[kind] for kind in Kind},
            "lost": len(lost),
            "doubled records": len(doubled),
            "steps called after their record": len(after.wrong),
            "steps called by old runs": len(old.wrong),
            "steps called long after the end": len(over.wrong),
            "attempts that were not counted": len(miscounted.wrong),
            "  of these, explained by a SIGSTOP": sum(each.explained for each in too_late),
            "children that outlived their parents": len(living),
            "signals accepted": sum(each.answer is Answer.ACCEPTED for each in seen.signalled),
            "signals superseded": sum(each.answer is Answer.SUPERSEDED for each in seen.signalled),
            "signals lost or doubled": len(signals),
            "messages received": completers["message"],
            "messages received twice": len(messages),
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
            *living,
            *kept.false_answers(facts),
            *(wrong for each in too_late for wrong in each.wrong),
            *calls.missing(facts),
            *signals,
            *messages,
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
