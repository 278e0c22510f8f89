"""What the screen of `memable watch` makes of what it is told."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from rich.console import Console

from memable.cli.frames import Frame, Rate, rates_between, screen
from memable.fleet import Fleet, Load, Worker
from memable.keys import Keys
from memable.presence import Presence
from memable.state import Status

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def load(workflow: str = "order", waiting: int = 0, **counts: int) -> Load:
    known: Mapping[Status, int] = {status: counts.get(status.value, 0) for status in Status}
    return Load(workflow, known, waiting=waiting, oldest_waiting_s=3.0 if waiting else None)


def fleet(*loads: Load, after_s: float = 0, workers: int = 0) -> Fleet:
    presence = Presence.parse(
        b'{"host":"b","pid":1,"version":"1","up_s":1,"slots":9,"in_use":0,"workflows":["order"],"clock_s":1}'
    )
    known = [Worker(f"w{number}", 1.0, presence=presence) for number in range(workers)]
    return Fleet(NOON + timedelta(seconds=after_s), known, [None], loads)


def drawn(seen: Fleet, *, most_workers: int | None = None) -> str:
    out = Console(width=200, file=io.StringIO(), record=True)
    out.print(screen(Frame("ns", "redis://localhost", seen, [], {}), most_workers=most_workers))
    return out.export_text()


def test_rates_are_what_has_ended_meanwhile_a_second() -> None:
    before = fleet(load(completed=10, failed=1))
    now = fleet(load(completed=30, failed=2), load("new", completed=5), after_s=2)
    assert rates_between(before, now) == {"order": Rate(10, 0.5), "new": Rate(0, 0)}
    assert rates_between(None, now) == {}
    # what the leader has trimmed meanwhile
    assert rates_between(now, fleet(load(completed=3, failed=2), after_s=4))["order"] == Rate(0, 0)


def test_a_fleet_that_does_not_fit_shows_some_and_says_so() -> None:
    assert "w7" in drawn(fleet(load(), workers=8))
    shown = drawn(fleet(load(), workers=8), most_workers=3)
    assert "w2" in shown
    assert "w3" not in shown
    assert "… and 5 more" in shown
    assert "8 workers   0 of 72 slots   1 of 1 partitions without a leader" in shown


def test_no_workers_and_no_workflows_are_said() -> None:
    assert "no worker lives: memable worker MODULE:APP starts one" in drawn(fleet())
    assert "no workflow was ever announced" in drawn(fleet())


def test_a_workflow_is_listened_to_by_its_very_name() -> None:
    keys = Keys("ns", partitions=2)
    assert keys.all_events() == "ns:{*}:events:*"
    assert keys.all_events("or[d]er*") == r"ns:{*}:events:or\[d\]er\*/*"
