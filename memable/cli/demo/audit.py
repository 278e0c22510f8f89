"""Whether the demo kept its promise: a pure function of what was seen, so that tests can show that it can fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memable.state import Status, StepRecord

Records = Mapping[tuple[str, str], StepRecord]
"""The finished records at one moment, by instance and key."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What the kill hit, and how long its instances were nobody's."""

    worker: str
    held: tuple[str, ...]
    """Instances that the worker ran when it was killed."""
    records_before: int
    """Finished records that were seen before it."""
    recovered_s: Mapping[str, float]
    """For each of those instances: from the kill until another worker had claimed it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The target of the sync beside its source, read without trusting any record."""

    source: int
    target: int
    differences: Sequence[str]


@dataclass(frozen=True, slots=True)
class Books:
    """What the payment provider and the warehouse have in their books."""

    effects: Mapping[str, int]
    doubled: Sequence[str]
    repeated_calls: int
    balance_cents: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was seen, beside what should have been."""

    instances: Sequence[str]
    statuses: Mapping[str, Status]
    """In the end; an instance that is not in it is gone."""
    outcomes: Mapping[str, str]
    expected_outcomes: Mapping[str, str]
    samples: Sequence[Records]
    """In the order in which they were read; the last is from the end."""
    rows: Rows
    books: Books
    expected_effects: Mapping[str, int]
    expected_balance_cents: int
    kill: Kill | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The table to show, and each thing that went wrong, in a line."""

    table: Sequence[tuple[str, str]]
    complaints: Sequence[str]

    @property
    def exit_code(self) -> int:
        """0 only if nothing went wrong."""
        return 1 if self.complaints else 0


def judge(seen: Evidence) -> Verdict:
    """The verdict. Every number in it is counted from what was observed, none is assumed."""
    last = seen.samples[-1] if seen.samples else {}
    doubled = recorded_again(seen.samples)
    vanished = sorted({place for sample in seen.samples for place in sample} - last.keys())
    gone = [name for name in seen.instances if name not in seen.statuses]
    completed = [name for name in seen.instances if seen.statuses.get(name) is Status.COMPLETED]
    effects = sum(seen.books.effects.values())
    table = [
        ("instances", str(len(seen.instances))),
        ("completed", str(len(completed))),
        ("steps recorded", str(len(last))),
        ("steps recorded twice", f"{len(doubled)}{_of_records_before(seen.kill)}"),
        ("lost", str(len(gone) + len(vanished))),
        ("rows in the target", _rows(seen.rows)),
        ("effects", f"{effects} ({', '.join(f'{count} {name}' for name, count in seen.books.effects.items())})"),
        ("effects done twice", str(len(seen.books.doubled))),
        ("calls repeated", f"{seen.books.repeated_calls} (answered by their idempotency keys)"),
        ("seconds to recover", _recovery(seen.kill)),
    ]
    complaints = [
        *(f"{name} is lost" for name in gone),
        *(
            f"{name} is {seen.statuses[name]}, not completed"
            for name in seen.instances
            if name in seen.statuses and name not in completed
        ),
        *([] if last else ["no record was ever seen"]),
        *(f"step {key!r} of {name} was recorded twice" for name, key in doubled),
        *(f"the record of step {key!r} of {name} is lost" for name, key in vanished),
        *_wrong_outcomes(seen),
        *_wrong_rows(seen.rows),
        *_wrong_books(seen),
        *_wrong_kill(seen.kill),
    ]
    return Verdict(table, complaints)


def recorded_again(samples: Sequence[Records]) -> list[tuple[str, str]]:
    """The records that were once seen finished, and another time with another content: result, attempts, any time."""
    first: dict[tuple[str, str], StepRecord] = {}
    changed: set[tuple[str, str]] = set()
    for sample in samples:
        for place, record in sample.items():
            if first.setdefault(place, record) != record:
                changed.add(place)
    return sorted(changed)


def _of_records_before(kill: Kill | None) -> str:
    return "" if kill is None else f" ({kill.records_before} were there before the kill, and stayed as they were)"


def _rows(rows: Rows) -> str:
    equal = "equal to the source" if not rows.differences and rows.source == rows.target else "NOT the source's"
    return f"{rows.target} of {rows.source}, {equal}"


def _recovery(kill: Kill | None) -> str:
    if kill is None or not kill.recovered_s:
        return "–"
    times_s = sorted(kill.recovered_s.values())
    return f"{times_s[0]:.1f} (the first of {len(kill.held)} instances; all after {times_s[-1]:.1f})"


def _wrong_outcomes(seen: Evidence) -> list[str]:
    return [
        f"{name} ended as {seen.outcomes.get(name)!r}, not as {expected!r}"
        for name, expected in seen.expected_outcomes.items()
        if seen.outcomes.get(name) != expected
    ]


def _wrong_rows(rows: Rows) -> list[str]:
    if rows.source == rows.target and not rows.differences:
        return []
    some = "; ".join(rows.differences[:3])
    return [f"the target has {rows.target} rows, the source {rows.source}, and {len(rows.differences)} differ: {some}"]


def _wrong_books(seen: Evidence) -> list[str]:
    complaints = [f"done twice: {each}" for each in seen.books.doubled]
    complaints += [
        f"{seen.books.effects.get(name, 0)} {name} instead of {expected}"
        for name, expected in seen.expected_effects.items()
        if seen.books.effects.get(name, 0) != expected
    ]
    if seen.books.balance_cents != seen.expected_balance_cents:
        complaints.append(
            f"the customers paid {seen.books.balance_cents} cents instead of {seen.expected_balance_cents}"
        )
    return complaints


def _wrong_kill(kill: Kill | None) -> list[str]:
    if kill is None:
        return ["no worker was killed: everything was over before one held an instance half-way"]
    if not kill.held:
        return [f"{kill.worker} ran nothing when it was killed"]
    return [
        f"{name}, which {kill.worker} ran when it was killed, was taken over by nobody"
        for name in kill.held
        if name not in kill.recovered_s
    ]
