"""What the reader of the demo sees: live on a terminal, a line a second elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from memable.cli.demo.audit import Verdict
from memable.cli.printing import one_line, print_rendered

_EVERY_S: Final = 1.0


@dataclass(slots=True)
class WorkerView:
    """One of the worker processes."""

    pid: int
    running: int = 0
    is_killed: bool = False

    def __str__(self) -> str:
        return f"worker {self.pid} " + ("killed" if self.is_killed else f"runs {self.running}")


@dataclass(slots=True)
class View:
    """How far everything has come."""

    sync_steps: int = 0
    sync_expected: int = 0
    orders: int = 0
    orders_begun: int = 0
    orders_waiting: int = 0
    orders_done: int = 0
    workers: Sequence[WorkerView] = field(default_factory=list[WorkerView])


class Screen:
    """Shows a `View` as it changes, and events as they come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()
        self._shown_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        """Something happened."""
        line = Text(f"{time.monotonic() - self._began_s:5.1f} s  ", style="dim")
        self._console.print(line.append(text, style=style or "not dim"), soft_wrap=True)

    def copyable(self, lines: Sequence[str]) -> None:
        """Lines to be copied: nothing before them, and never folded."""
        for line in lines:
            self._console.print(Text(line, style="bold"), soft_wrap=True)

    def update(self, view: View) -> None:
        """How far it is now."""
        if self._live is not None:
            self._live.update(_drawn(view), refresh=True)
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= _EVERY_S:
            self._shown_s = now_s
            workers = ", ".join(map(str, view.workers))
            self.say(
                f"sync {view.sync_steps}/{view.sync_expected} steps; orders {view.orders_begun} begun, "
                f"{view.orders_waiting} wait for the manager, {view.orders_done}/{view.orders} done; {workers}"
            )

    def show(self, verdict: Verdict) -> None:
        """The end."""
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for label, value in verdict.table:
            table.add_row(label, Text(value, style="bold"))
        self._console.print()
        print_rendered(self._console, table)
        self._console.print()
        for complaint in verdict.complaints:
            self._console.print(Text(f"WRONG: {one_line(complaint)}", style="red"), soft_wrap=True)
        if not verdict.complaints:
            self._console.print(Text("Nothing lost, nothing done twice.", style="green"))


def cli_program() -> str | None:
    """The Redis shell that this machine has, if any."""
    return next((name for name in ("redis-cli", "valkey-cli") if shutil.which(name)), None)


def _drawn(view: View) -> RenderableType:
    bars = Progress(TextColumn("{task.description:8}"), BarColumn(40), TextColumn("{task.fields[said]}"))
    bars.add_task(
        "sync",
        total=view.sync_expected,
        completed=view.sync_steps,
        said=f"{view.sync_steps}/{view.sync_expected} steps",
    )
    bars.add_task(
        "approval",
        total=view.orders,
        completed=view.orders_done,
        said=f"{view.orders_done}/{view.orders} done, {view.orders_waiting} wait for the manager",
    )
    workers = [
        Text(f"{each.pid:8} killed", style="red") if each.is_killed else Text(f"{each.pid:8} runs {each.running}")
        for each in view.workers
    ]
    return Group(bars, Text("workers"), *workers)
