"""`memable watch`: the fleet, or one instance, as it changes."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Never, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from memable.cli.frames import Frame, rates_between, screen
from memable.cli.naming import InstanceCommand, may_name_instance
from memable.cli.options import Target, finite, takes_target
from memable.cli.printing import console, now, one_line, print_json_line, print_rendered
from memable.cli.root import FINE, INSTANCE_FAILED
from memable.cli.timeline import Known, drawn, look, step_line
from memable.client import Client
from memable.errors import StorageError
from memable.fleet import Fleet, fleet
from memable.state import Status, WorkflowState

_FAILURES: Final = 5


@click.command(cls=InstanceCommand, short_help="Watch the fleet, or an instance, live.")
@may_name_instance
@click.option("--once", is_flag=True, help="Show it once, and end: for scripts.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    callback=finite,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@takes_target(stream=True)
def watch(target: Target, *, workflow: str | None, id: str | None, once: bool, interval: float) -> int:
    """Watch the fleet live, of all workflows or of WORKFLOW; or the timeline of one instance, until it has ended.

    Ctrl-C ends it. Where the output is no terminal it is plain lines; with --json one JSON object a line. With an
    instance the exit code is 1 if that failed or was cancelled.

    What a look at the fleet costs Redis: some 20 short commands a workflow and partition and one a worker, which
    read lengths and sizes, however many instances there are. A look at an instance reads its journal. Rates are told by
    how many instances have ended since the last look, less those whose retention ended meanwhile.
    """

    async def act(client: Client) -> int:
        if workflow is not None and id is not None:
            return await _watch_instance(client, target, workflow, id, None if once else interval)
        return await _watch_fleet(client, target, workflow, None if once else interval)

    return target.run(act)


def _end(number: int, _: object) -> Never:
    # as a shell names it; asyncio cancels the command, which puts the terminal in order
    raise SystemExit(128 + number)


class _Shown:
    """Where it is shown: redrawn in place on a terminal, printed elsewhere."""

    def __init__(self, out: Console, *, is_live: bool, alternate: bool) -> None:
        self._out = out
        self._live = (
            Live(console=out, screen=alternate, auto_refresh=False, transient=not alternate)
            if is_live and out.is_terminal and not out.is_dumb_terminal
            else None
        )
        self._last: RenderableType = Text()
        self._before: Any = None
        """What SIGTERM did."""

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def __enter__(self) -> Self:
        if self._live is not None:
            if threading.current_thread() is threading.main_thread():
                # by its own way the process would leave the terminal as it is now: another screen, without a cursor
                self._before = signal.signal(signal.SIGTERM, _end)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)

    def draw(self, what: RenderableType) -> None:
        """Show this instead of what was shown before; elsewhere, below that."""
        self._last = what
        if self._live is not None:
            self._live.update(what, refresh=True)
        else:
            print_rendered(self._out, what)

    def complain(self, error: StorageError) -> None:
        """Say what keeps it from being shown as it is now."""
        if self._live is not None:
            self._live.update(Group(Text(one_line(error), style="red"), Text(), self._last), refresh=True)
        else:
            click.echo(f"memable: {one_line(error)}", err=True)


# ── the fleet ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Looker:
    """Looks at the fleet again and again."""

    def __init__(self, client: Client, workflow: str | None = None) -> None:
        self._client, self._workflow = client, workflow
        self._before: Fleet | None = None

    async def look(self) -> Frame:
        """The fleet now, and what has ended since the look before."""
        online = self._client._online()
        seen, failed = await asyncio.gather(
            fleet(online.store, None if self._workflow is None else [self._workflow]),
            self._client.list_instances(self._workflow, status=Status.FAILED, limit=_FAILURES),
        )
        rates, self._before = rates_between(self._before, seen), seen
        where = online.subscriptions.endpoint.safe_url
        latest = sorted(failed.items, key=lambda each: each.completed_at or each.created_at, reverse=True)
        return Frame(online.store.keys.namespace, where, seen, latest, rates)


async def _watch_fleet(client: Client, target: Target, workflow: str | None, interval_s: float | None) -> int:
    looker, out = Looker(client, workflow), console()
    is_live = interval_s is not None and not target.as_json
    with _Shown(out, is_live=is_live, alternate=True) as shown:

        async def show() -> None:
            frame = await looker.look()
            if target.as_json:
                print_json_line(frame.document())
                return
            lines = len(frame.fleet.loads) + len(frame.failures) + 9
            shown.draw(screen(frame, most_workers=max(3, out.height - lines) if shown.is_live else None))
            if interval_s is not None and not shown.is_live:
                out.print()

        if interval_s is None:
            await show()
            return FINE
        while True:
            await _each(interval_s, show, shown)


async def _each(interval_s: float, show: Callable[[], Coroutine[Any, Any, None]], shown: _Shown) -> None:
    """One look, and the rest of the interval."""
    began_s = time.monotonic()
    try:
        await show()
    except StorageError as error:
        shown.complain(error)
    await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))


# ── one instance ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Told:
    """What was printed of an instance already, where nothing can be redrawn."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[Any, ...]] = {}
        self._document: Any = None

    def lines(self, known: Known) -> list[Text]:
        """A line for each step that is not as it was."""
        changed: list[Text] = []
        for step in known.steps:
            is_now = (step.state, step.attempts, known.children.get(step.key))
            if self._steps.get(step.key) != is_now:
                self._steps[step.key] = is_now
                changed.append(step_line(known, step))
        return changed

    def document(self, known: Known) -> dict[str, Any] | None:
        """All of it, if anything but the time has changed."""
        is_now = (known.facts, list(known.steps), dict(known.children))
        if is_now == self._document:
            return None
        self._document = is_now
        return known.document()


class _Following:
    """The states of an instance as they come; whoever waits for the next look is woken by them."""

    def __init__(self, client: Client, workflow: str, id: str) -> None:
        self._client, self._workflow, self._id = client, workflow, id
        self._states: list[WorkflowState] = []
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _follow(self) -> None:
        async for state in self._client.subscribe(self._workflow, self._id):
            self._states.append(state)
            self._came.set()

    async def wait(self, timeout_s: float) -> None:
        """Return with the next state, or when the time is over; `InstanceNotFound`."""
        if self._task is None or self._task.done():
            if self._task is not None:
                self._task.result()
            self._task = asyncio.ensure_future(self._follow())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._came.wait()
        self._came.clear()

    def states(self) -> list[WorkflowState]:
        """Those that came since they were asked for last."""
        states, self._states = self._states, []
        return states

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _watch_instance(client: Client, target: Target, workflow: str, id: str, interval_s: float | None) -> int:
    out, told, following = console(), _Told(), _Following(client, workflow, id)
    known = await look(client, workflow, id)
    is_live = interval_s is not None and not target.as_json
    with _Shown(out, is_live=is_live, alternate=False) as shown:
        try:
            while interval_s is not None:
                _tell(known, following.states(), target, told, shown, out)
                if known.facts.status.is_terminal:
                    break
                await following.wait(interval_s)
                try:
                    known = await look(client, workflow, id)
                except StorageError as error:
                    shown.complain(error)
        finally:
            following.stop()
    if interval_s is None and target.as_json:
        print_json_line(known.document())
    elif interval_s is None or shown.is_live:
        print_rendered(out, drawn(known, out))
    return INSTANCE_FAILED if known.facts.status in (Status.FAILED, Status.CANCELLED) else FINE


def _tell(known: Known, states: list[WorkflowState], target: Target, told: _Told, shown: _Shown, out: Console) -> None:
    if target.as_json:
        if (document := told.document(known)) is not None:
            print_json_line(document)
        return
    if shown.is_live:
        shown.draw(drawn(known, out, most_steps=max(3, out.height - 16)))
        return
    name = f"{known.facts.workflow}/{known.facts.instance_id}"
    terminal = [known.facts.state] if known.facts.status.is_terminal else []
    before = [state for state in states if not state.is_terminal]
    lines = [
        *(_state_line(name, each) for each in before),
        *told.lines(known),
        *(_state_line(name, each) for each in terminal),
    ]
    for line in lines:
        out.print(Text(f"{now().astimezone():%H:%M:%S} ").append_text(line), soft_wrap=True)


def _state_line(name: str, state: WorkflowState) -> Text:
    return Text(one_line(f"{name} {state}"))
