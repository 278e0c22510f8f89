"""Calls of steps that are nobody's right, or that are missing.

- a call **after the record**: it begins more than `TOLERANCE_S` after the time at which the record of its step was
  written, and before a resume has dropped that record;
- a call **of an old run**: it begins more than `TOLERANCE_S` after a later run of the same instance has begun;
- a call **of an old life**: the same, after a later life has begun;
- a call **of what is over**: it begins more than a lease after its instance has ended, was cancelled or has reached its
  deadline. Whoever runs it is told at once, and learns of it by its next renewal if it does not hear that;
- a call **that was counted**: an attempt of a step that backs off for long, after the moment for which the next one is
  announced; or the next one, before that.

The first is the harm that the others can do. One thing explains them: the worker was stopped (SIGSTOP) before it could
know, and it began the call within `WAKING_S` of being continued, having passed the check that stands before each call
when it was stopped. Such calls are counted, and allowed: steps are called at least once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.facts import Facts
from chaos.history import RETRYING, Place
from chaos.ledger import Line
from chaos.names import instance_name, life_name, life_of
from chaos.stalls import TOLERANCE_S


@dataclass
class Calls:
    """Calls that came too late."""

    facts: Facts
    wrong: list[str] = field(default_factory=list)
    explained: int = 0

    def sort(self, line: Line, could_know_s: float, when: str) -> None:
        """Into those that are wrong, and those that are explained."""
        if self.facts.is_waking(line, could_know_s):
            self.explained += 1
        else:
            self.wrong.append(
                f"step {line.key!r} of {line.name} was called by worker {line.pid}, in run {line.run}, {when}"
            )


def after_their_record(facts: Facts) -> Calls:
    """Calls of steps that were recorded already."""
    calls = Calls(facts)
    for line in facts.begins:
        for written in facts.records.get((line.name, line.key), ()):
            if written.completed_s + TOLERANCE_S < line.at_s < written.dropped_s:
                late_s = line.at_s - written.completed_s
                calls.sort(line, written.completed_s, f"{late_s:.3f} s after its record was written")
                break
    return calls


def of_old_runs(facts: Facts) -> Calls:
    """Calls by zombies."""
    calls = Calls(facts)
    for line in facts.begins:
        later = [(at_s, f"run {run}") for run, at_s in facts.runs_begun_s.get(line.name, ()) if run > line.run]
        next_life = life_of(line.name) + 1
        runs = facts.runs_begun_s.get(life_name(instance_name(line.name), next_life), ())
        later += [(at_s, f"life {next_life}") for _, at_s in runs]
        if later:
            at_s, what = min(later)
            if at_s + TOLERANCE_S < line.at_s:
                calls.sort(line, at_s, f"{line.at_s - at_s:.3f} s after {what} had begun")
    return calls


def of_what_is_over(facts: Facts) -> Calls:
    """Effects of what was ended, by itself or others, when every worker could know it."""
    calls, lease_s = Calls(facts), facts.seen.lease_s
    for line in facts.begins:
        ended_ms = facts.seen.left.completed_ms.get(instance_name(line.name))
        if ended_ms is not None and line.at_s > (could_know_s := ended_ms / 1000 + lease_s) + TOLERANCE_S:
            calls.sort(line, could_know_s, f"{line.at_s - ended_ms / 1000:.3f} s after it was over")
    return calls


def miscounted(facts: Facts) -> Calls:
    """Attempts that were made again although they are counted, and attempts before their time."""
    calls = Calls(facts)
    begins: defaultdict[Place, list[Line]] = defaultdict(list)
    for line in facts.begins:
        begins[line.name, line.key].append(line)
    for place, texts in facts.seen.history.records.items():
        counts = dict[int, float]()
        for text in texts:
            if text is not None and text.startswith(RETRYING):
                record = json.loads(text)
                counts[record.get("attempts", 1)] = record["due_ms"] / 1000
        for line in begins[place] if counts else ():
            over_s = min((due_s for count, due_s in counts.items() if line.attempt <= count), default=float("inf"))
            if line.at_s > over_s + TOLERANCE_S:
                calls.sort(line, over_s, f"as attempt {line.attempt}, which was counted")
            due_s = counts.get(line.attempt - 1, 0.0)
            if line.attempt > 1 and due_s == 0.0:
                calls.wrong.append(f"attempt {line.attempt} at {place} was announced by nobody")
            if line.at_s < due_s and not any(at_s < line.at_s for at_s in facts.resumed_s(line.name)):
                calls.wrong.append(f"attempt {line.attempt} at {place} began {due_s - line.at_s:.3f} s early")
    return calls


def missing(facts: Facts) -> Iterator[str]:
    """Records of steps that were never called."""
    called = {(line.name, line.key) for line in facts.begins}
    for (name, key), records in facts.records.items():
        if any(written.kind == "step" for written in records) and (name, key) not in called:
            yield f"step {key!r} of {name} has a record, and was never called"
