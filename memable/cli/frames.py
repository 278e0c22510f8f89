"""The fleet as people see it: tables of workers and workflows, and the screen of `memable watch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memable.cli.printing import add_row, duration, one_line, table
from memable.fleet import Fleet, Load, Worker
from memable.presence import BEAT_EVERY_S
from memable.state import Status, WorkflowMetadata

_LATE_S: Final = 2.5 * BEAT_EVERY_S
"""A worker that has been silent for longer has missed a beat."""
_LONG_S: Final = 60.0
"""Work that has waited for longer deserves a look."""
_METER: Final = 10


@dataclass(frozen=True, slots=True)
class Rate:
    """What came to its end, a second."""

    completed: float
    failed: float


@dataclass(frozen=True, slots=True)
class Frame:
    """All that the screen shows."""

    namespace: str
    where: str
    fleet: Fleet
    failures: Sequence[WorkflowMetadata]
    rates: Mapping[str, Rate]
    """By workflow, since the frame before; without one for the first."""

    def document(self) -> dict[str, Any]:
        """All of it, with stable names."""
        fleet = self.fleet
        return {
            "at": fleet.at.isoformat(),
            "namespace": self.namespace,
            "leaders": list(fleet.leaders),
            "workers": [worker_document(fleet, each) for each in fleet.workers],
            "workflows": [
                {
                    **load_document(fleet, each),
                    "completed_per_s": None if (rate := self.rates.get(each.workflow)) is None else rate.completed,
                    "failed_per_s": None if rate is None else rate.failed,
                }
                for each in fleet.loads
            ],
            "failures": [
                {
                    "workflow": each.workflow,
                    "instance_id": each.instance_id,
                    "error": each.error,
                    "completed_at": None if each.completed_at is None else each.completed_at.isoformat(),
                }
                for each in self.failures
            ],
        }


def rates_between(before: Fleet | None, now: Fleet) -> dict[str, Rate]:
    """How fast instances ended meanwhile, told by how many there are."""
    if before is None or (passed_s := (now.at - before.at).total_seconds()) <= 0:
        return {}
    counted = {each.workflow: each.counts for each in before.loads}
    rates: dict[str, Rate] = {}
    for load in now.loads:
        then = counted.get(load.workflow)
        # what the leader trims meanwhile takes from that: less than nothing is not shown
        ended = [
            max(0, load.counts[status] - then[status]) if then else 0 for status in (Status.COMPLETED, Status.FAILED)
        ]
        rates[load.workflow] = Rate(ended[0] / passed_s, ended[1] / passed_s)
    return rates


# ── drawn ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def screen(frame: Frame, *, most_workers: int | None = None) -> RenderableType:
    """The whole screen; of more than `most_workers` the busiest."""
    fleet = frame.fleet
    parts: list[RenderableType] = [_headline(frame), Text()]
    shown = list(fleet.workers)
    if most_workers is not None and len(shown) > most_workers:
        shown = sorted(sorted(shown, key=fleet.in_use, reverse=True)[:most_workers], key=lambda each: each.name)
    if shown:
        parts.append(workers_table(fleet, shown, has_room=False))
        if len(shown) < len(fleet.workers):
            parts.append(Text(f"… and {len(fleet.workers) - len(shown)} more", style="dim"))
    else:
        parts.append(Text("no worker lives: memable worker MODULE:APP starts one", style="red"))
    parts.append(Text())
    parts.append(_loads_table(frame) if fleet.loads else Text("no workflow was ever announced", style="dim"))
    if frame.failures:
        parts += [Text(), _failures_table(frame)]
    return Group(*parts)


def _headline(frame: Frame) -> Text:
    fleet = frame.fleet
    slots = sum(each.presence.slots for each in fleet.workers if each.presence)
    used = sum(map(fleet.in_use, fleet.workers))
    line = Text()
    line.append(frame.namespace, style="bold").append(f" at {one_line(frame.where)}   ", style="dim")
    line.append(f"{len(fleet.workers)} worker{'' if len(fleet.workers) == 1 else 's'}   {used} of {slots} slots   ")
    led = sum(leader is not None for leader in fleet.leaders)
    if led < len(fleet.leaders):
        line.append(f"{len(fleet.leaders) - led} of {len(fleet.leaders)} partitions without a leader   ", style="red")
    return line.append(f"{fleet.at.astimezone():%H:%M:%S}", style="dim")


def workers_table(fleet: Fleet, workers: Sequence[Worker], *, has_room: bool = True) -> Table:
    """Who they are, what they hold, when they were last heard of; without room, host and pid are in the name only."""
    where = ("HOST", "PID") if has_room else ()
    shown = table("WORKER", *where, "SLOTS", "", "LAST BEAT", "UP", "VERSION", "LEADS", "WORKFLOWS")
    for each in workers:
        said, used = each.presence, fleet.in_use(each)
        beat = Text(f"{duration(each.silent_s)} ago", style="yellow" if each.silent_s > _LATE_S else "")
        add_row(
            shown,
            (
                each.name,
                *((said.host, said.pid) if said else ("", ""))[: len(where)],
                _meter(used, said.slots) if said else "",
                f"{used}/{said.slots}" if said else used,
                beat,
                span(said.up_s + each.silent_s) if said else "",
                said.version if said else "",
                _led(each, fleet),
                ", ".join(said.workflows) if said else "",
            ),
        )
    return shown


def _led(worker: Worker, fleet: Fleet) -> str:
    if len(fleet.leaders) == 1:
        return "yes" if worker.leads else ""
    return ",".join(map(str, worker.leads))


def _meter(used: int, slots: int) -> Text:
    full = min(_METER, round(_METER * used / max(1, slots)))
    full = max(full, 1) if used else 0
    colour = "red" if used >= slots else "yellow" if used > 0.8 * slots else "green"
    return Text("█" * full, style=colour).append("░" * (_METER - full), style="dim")


def _loads_table(frame: Frame) -> Table:
    columns = ("WORKFLOW", "WORKERS", "WAITING", "OLDEST", "RUNNING", "POSTPONED", "SUSPENDED")
    shown = numbers_table(*columns, "COMPLETED", "/S", "FAILED", "/S", "CANCELLED")
    for load in frame.fleet.loads:
        rate = frame.rates.get(load.workflow)
        add_row(
            shown,
            (
                *load_cells(frame.fleet, load),
                load.counts[Status.COMPLETED],
                "" if rate is None else _per_second(rate.completed),
                Text(str(load.counts[Status.FAILED]), style="red" if load.counts[Status.FAILED] else ""),
                "" if rate is None else _per_second(rate.failed),
                load.counts[Status.CANCELLED],
            ),
        )
    return shown


def load_cells(fleet: Fleet, load: Load) -> tuple[object, ...]:
    """Workflow, workers, waiting, oldest, running, postponed, suspended."""
    served, oldest_s = len(fleet.served_by(load.workflow)), load.oldest_waiting_s
    is_stuck = bool(load.waiting) and not served
    oldest = "" if oldest_s is None else span(oldest_s)
    return (
        load.workflow,
        Text(str(served), style="red" if is_stuck else ""),
        Text(str(load.waiting), style="red" if is_stuck else ""),
        Text(oldest, style="yellow" if (oldest_s or 0) > _LONG_S else ""),
        Text(str(load.running), style="cyan" if load.running else ""),
        load.postponed,
        load.counts[Status.SUSPENDED],
    )


def numbers_table(*columns: str) -> Table:
    """A table whose columns behind the first are numbers."""
    shown = table(*columns)
    for column in shown.columns[1:]:
        column.justify = "right"
    return shown


def _failures_table(frame: Frame) -> Table:
    shown = table("LAST FAILURES", "AGO", "ERROR")
    for each in frame.failures:
        ago = "" if each.completed_at is None else span((frame.fleet.at - each.completed_at).total_seconds())
        add_row(shown, (f"{each.workflow}/{each.instance_id}", ago, Text(one_line(each.error), style="red")))
    return shown


def _per_second(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def span(seconds: float) -> str:
    """A span of time in its two largest units.

    >>> span(4.2), span(90), span(4200), span(200_000), span(-90)
    ('4 s', '1 min 30 s', '1 h 10 min', '2 d 7 h', '-1 min 30 s')
    """
    if seconds < 0:
        return f"-{span(-seconds)}"
    whole = timedelta(seconds=int(seconds))
    hours, rest = divmod(whole.seconds, 3600)
    units = [(whole.days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s")]
    first = next((at for at, (number, _) in enumerate(units) if number), len(units) - 1)
    two = units[first : first + 2]
    return " ".join(f"{number} {unit}" for at, (number, unit) in enumerate(two) if number or not at)


# ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def worker_document(fleet: Fleet, worker: Worker) -> dict[str, Any]:
    """A worker with stable names."""
    said = worker.presence
    since = None if said is None else fleet.at - timedelta(seconds=said.up_s + worker.silent_s)
    return {
        "worker": worker.name,
        "host": said.host if said else None,
        "pid": said.pid if said else None,
        "version": said.version if said else None,
        "workflows": list(said.workflows) if said else None,
        "slots": said.slots if said else None,
        "in_use": fleet.in_use(worker),
        "since": since.isoformat(timespec="seconds") if since else None,
        "silent_s": round(worker.silent_s, 3),
        "leads": list(worker.leads),
    }


def load_document(fleet: Fleet, load: Load) -> dict[str, Any]:
    """The work of a workflow, with stable names."""
    return {
        "workflow": load.workflow,
        "workers": len(fleet.served_by(load.workflow)),
        "waiting": load.waiting,
        "oldest_waiting_s": None if load.oldest_waiting_s is None else round(load.oldest_waiting_s, 3),
        "taken": load.running,
        "postponed": load.postponed,
        "counts": {str(status): count for status, count in load.counts.items()},
    }
