"""The demo's course: a server, two workers, a sync and many orders, and a kill half-way.

The only file of the package that imports this repository's `worker/`, and only once that is known to be there.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from memable.cli.demo.audit import Books, Evidence, Kill, Records, Rows
from memable.cli.demo.screen import Screen, View, WorkerView, cli_program
from memable.cli.lifeline import Lifeline
from memable.client import Client, connect
from memable.embedded import TemporaryServer
from memable.errors import InstanceNotFound, MemableError, StorageError
from memable.invocation import Invocation
from memable.keys import GROUP
from memable.state import Status, StepState, WorkflowMetadata
from worker.app import app, approval, sync
from worker.approval import APPROVAL, Decision, Order
from worker.ledger import Action, Ledger
from worker.sync import SyncRequest, compare, in_batches
from worker.zones import read_source

WORKERS: Final = 2
SYNC_ID: Final = "zones"
REFUSED_EVERY: Final = 10

_BATCH: Final = 16
_SYNC_TAKES_S: Final = 6.0
_ORDERS_TAKE_S: Final = 4.0
_PROVIDER_LATENCY_S: Final = 0.4
_MANAGER_THINKS_S: Final = 0.8
_COOLING_OFF_S: Final = 1.0
_KILL_AT: Final = 0.5
_LOOK_EVERY_S: Final = 0.25
_LOOK_CLOSELY_EVERY_S: Final = 0.02
_CHOOSE_WITHIN_S: Final = 1.0
_READY_WITHIN_S: Final = 60.0
_STOP_WITHIN_S: Final = 5.0

_PLURAL: Final = {Action.CHARGE: "charges", Action.REFUND: "refunds", Action.SHIP: "shipments"}

_Name = tuple[str, str]
"""Workflow and instance id."""


class Play:
    """One performance. Whatever happens, no process and no file of it is left when `perform` has returned."""

    def __init__(self, screen: Screen, root: Path, *, orders: int, limit_s: float) -> None:
        self._screen, self._root, self._limit_s = screen, root, limit_s
        self._orders = [
            Order(id=f"order-{number:02}", amount_cents=1000 + number, cooling_off_s=_COOLING_OFF_S)
            for number in range(1, orders + 1)
        ]
        self._sync_expected = self._count_sync_steps()
        self._server = TemporaryServer(appendonly=True)
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._names: list[_Name] = []
        self._known: dict[_Name, WorkflowMetadata] = {}
        self._samples: list[Records] = []
        self._outcomes: dict[str, str] = {}
        self._killed: int | None = None
        self._kill: Kill | None = None
        self._client: Client

    async def perform(self) -> Evidence:
        """Everything from the start of the server to its end; `StorageError` if it cannot even begin."""
        async with AsyncExitStack() as exits:
            exits.callback(self._server.stop)
            self._server.start()
            self._directory = self._server.directory / "demo"
            self._directory.mkdir()
            exits.enter_context(self._worker_processes())
            self._client = await exits.enter_async_context(connect(self._server.url, app=app))
            try:
                async with asyncio.timeout(_READY_WITHIN_S):
                    await self._wait_for_workers()
            except TimeoutError:
                raise StorageError(f"the demo's worker processes are not ready after {_READY_WITHIN_S:g} s") from None
            self._screen.say(
                f"Redis in {self._server.directory}, worker processes {', '.join(map(str, self._workers))}"
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limit_s):
                    await self._play_or_say_why()
            return await self._evidence()

    # ── the processes ────────────────────────────────────────────────────────────────────────────────────────────

    def _worker_processes(self) -> ExitStack:
        """Started now, ended when the stack is closed; and, by the lifeline, should this process be killed."""
        with ExitStack() as exits:
            lifeline = exits.enter_context(Lifeline())
            exits.callback(self._end_workers)
            for number in range(1, WORKERS + 1):
                output = exits.enter_context(Path(self._directory, f"worker-{number}.log").open("wb"))
                process = lifeline.start_worker(
                    ["worker.app:app"], environment=self._environment(), directory=self._root, output=output
                )
                self._workers[process.pid] = process
            return exits.pop_all()

    def _environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "MEMABLE_REDIS_URL": self._server.url,
            # told to stop, there is nobody to hand over to
            "MEMABLE_SHUTDOWN_GRACE": "0",
            "WORKER_LEDGER": str(self._directory / "ledger.sqlite3"),
            "WORKER_TARGET": str(self._directory / "zones.sqlite3"),
            "WORKER_PROVIDER_LATENCY_S": str(_PROVIDER_LATENCY_S),
        }

    def _end_workers(self) -> None:
        for process in self._workers.values():
            if process.poll() is None:
                process.terminate()
        deadline_s = time.monotonic() + _STOP_WITHIN_S
        for process in self._workers.values():
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except BaseException:  # a second Ctrl-C too
                process.kill()
                process.wait()

    async def _wait_for_workers(self) -> None:
        online = self._client._online()
        while True:
            names = await online.connection.command("ZRANGE", online.store.keys.workers, 0, -1)
            if {self._pid_of(name.decode()) for name in names} == self._workers.keys():
                return
            for number, process in enumerate(self._workers.values(), start=1):
                if process.poll() is not None:
                    raise StorageError(f"a worker process of the demo does not start: {self._last_words(number)}")
            await asyncio.sleep(_LOOK_CLOSELY_EVERY_S)

    def _last_words(self, number: int) -> str:
        said = Path(self._directory, f"worker-{number}.log").read_text(errors="replace").strip()
        return said.splitlines()[-1] if said else "it left no message"

    def _pid_of(self, worker: str) -> int | None:
        """Which of the processes it is: a worker is named HOST-PID-TOKEN."""
        return next((pid for pid in self._workers if f"-{pid}-" in worker), None)

    # ── the course ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _play_or_say_why(self) -> None:
        try:
            await self._play()
        except BaseExceptionGroup as group:
            errors, others = group.split(MemableError)
            if others is not None or errors is None:
                raise
            # when Redis is gone, all tasks say the same
            error: BaseException = errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    async def _play(self) -> None:
        request = SyncRequest(batch_size=_BATCH, pace_s=_SYNC_TAKES_S / self._batches)
        synced = await self._client.invoke(sync, request, id=SYNC_ID)
        self._names.append((synced.workflow_name, synced.instance_id))
        self._print_redis_lines()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch())
            killing = tasks.create_task(self._kill_half_way())
            async with asyncio.TaskGroup() as work:
                work.create_task(self._await_outcome(synced, lambda report: f"{report.rows} rows"))
                for number, order in enumerate(self._orders):
                    work.create_task(self._sell(number, order))
            await killing
            watching.cancel()

    async def _sell(self, number: int, order: Order) -> None:
        """One customer and one manager."""
        await asyncio.sleep(number * _ORDERS_TAKE_S / len(self._orders))
        invocation = await self._client.invoke(approval, order, id=order.id)
        self._names.append((invocation.workflow_name, invocation.instance_id))
        if (await invocation.wait()).status is Status.SUSPENDED:
            await asyncio.sleep(_MANAGER_THINKS_S)
            await invocation.signal(APPROVAL, Decision(approved=not self._is_refused(number), by="the manager"))
        await self._await_outcome(invocation, lambda receipt: str(receipt.status))

    async def _await_outcome(self, invocation: Invocation[Any], describe: Any) -> None:
        name = f"{invocation.workflow_name}/{invocation.instance_id}"
        async for state in invocation.states():
            if state.is_terminal:
                self._outcomes[name] = (
                    describe(await invocation.result()) if state.status is Status.COMPLETED else str(state)
                )

    @staticmethod
    def _is_refused(number: int) -> bool:
        return number % REFUSED_EVERY == REFUSED_EVERY - 1

    # ── the kill ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _kill_half_way(self) -> None:
        expected = self._sync_expected + sum(3 if self._is_refused(n) else 4 for n, _ in enumerate(self._orders))
        chosen_by_s: float | None = None
        while self._killed is None and len(self._outcomes) <= len(self._orders):
            await asyncio.sleep(_LOOK_CLOSELY_EVERY_S)
            if len(self._samples[-1] if self._samples else ()) < _KILL_AT * expected:
                continue
            chosen_by_s = chosen_by_s or time.monotonic() + _CHOOSE_WITHIN_S
            await self._look()
            if (pid := self._victim(is_picky=time.monotonic() < chosen_by_s)) is not None:
                await self._kill_if_it_holds(pid)

    def _victim(self, *, is_picky: bool) -> int | None:
        """The worker that has the most to lose; while picky, only one in the middle of the sync and of some order."""
        held = self._held_by_worker()
        pid = max(held, key=lambda pid: len(held[pid]), default=None)
        if pid is None or not is_picky:
            return pid
        syncing = next((each for each in held if (sync.name, SYNC_ID) in held[each]), None)
        return syncing if syncing is not None and len(held[syncing]) > 1 else None

    async def _kill_if_it_holds(self, pid: int) -> None:
        process = self._workers[pid]
        # held still, so that what is read is what it dies with
        process.send_signal(signal.SIGSTOP)
        # twice: what was on its way to Redis has arrived after the first
        await self._look()
        await self._look()
        if not self._held_by_worker().get(pid):
            process.send_signal(signal.SIGCONT)
            return
        process.kill()
        killed_s = time.monotonic()
        self._killed = pid
        attempts = {name: self._known[name].attempt for name in self._held_by_worker()[pid]}
        records_before = len(self._samples[-1])
        await asyncio.to_thread(process.wait)
        await self._time_recovery(pid, killed_s, attempts, records_before)

    async def _time_recovery(
        self, pid: int, killed_s: float, attempts: Mapping[_Name, int], records_before: int
    ) -> None:
        """Until each instance that the dead worker ran has been claimed once more, by whoever lives."""
        names = ", ".join(map("/".join, attempts))
        self._screen.say(f"SIGKILL to worker {pid}, which ran {len(attempts)} instances: {names}", style="bold red")
        recovered_s: dict[str, float] = {}
        while len(recovered_s) < len(attempts):
            for name, attempt in attempts.items():
                now = await self._client.get_metadata(*name)
                if now is not None and now.attempt > attempt:
                    recovered_s.setdefault("/".join(name), time.monotonic() - killed_s)
            self._kill = Kill(f"worker {pid}", tuple(map("/".join, attempts)), records_before, dict(recovered_s))
            await asyncio.sleep(_LOOK_CLOSELY_EVERY_S)
        self._screen.say(
            f"all of them run on elsewhere, {max(recovered_s.values()):.1f} s after the kill", style="green"
        )

    def _held_by_worker(self) -> dict[int, list[_Name]]:
        """What each worker process that lives (or was killed) runs, as of the last look."""
        held: dict[int, list[_Name]] = {}
        for name, known in self._known.items():
            pid = self._pid_of(known.worker or "")
            if known.status is Status.RUNNING and pid is not None:
                held.setdefault(pid, []).append(name)
        return held

    # ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        while True:
            await self._look()
            self._screen.update(self._view())
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _look(self) -> None:
        """Read every instance and every record, anew."""
        names = list(self._names)
        known, steps = await asyncio.gather(
            asyncio.gather(*(self._client.get_metadata(*name) for name in names)),
            asyncio.gather(*(self._client.steps(*name) for name in names), return_exceptions=True),
        )
        self._known = {name: each for name, each in zip(names, known, strict=True) if each is not None}
        sample: dict[tuple[str, str], Any] = {}
        for name, records in zip(names, steps, strict=True):
            if isinstance(records, InstanceNotFound):
                continue  # lost: the audit will say so
            if isinstance(records, BaseException):
                raise records
            for record in records:
                if record.state in (StepState.COMPLETED, StepState.FAILED):
                    sample["/".join(name), record.key] = record
        self._samples.append(sample)

    def _view(self) -> View:
        held = self._held_by_worker()
        statuses = {name: known.status for name, known in self._known.items()}
        orders = {name: status for name, status in statuses.items() if name[0] == approval.name}
        sync_name = f"{sync.name}/{SYNC_ID}"
        return View(
            sync_steps=sum(instance == sync_name for instance, _ in self._samples[-1]),
            sync_expected=self._sync_expected,
            orders=len(self._orders),
            orders_begun=len(orders),
            orders_waiting=sum(APPROVAL.key in self._known[name].waiting_on for name in orders),
            orders_done=sum(status.is_terminal for status in orders.values()),
            workers=[WorkerView(pid, len(held.get(pid, [])), pid == self._killed) for pid in self._workers],
        )

    async def _evidence(self) -> Evidence:
        await self._look()
        comparison = await asyncio.to_thread(compare, self._directory / "zones.sqlite3")
        audit = await asyncio.to_thread(Ledger(self._directory / "ledger.sqlite3").audit)
        refused = [order for number, order in enumerate(self._orders) if self._is_refused(number)]
        shipped = [order for order in self._orders if order not in refused]
        return Evidence(
            instances=[f"{sync.name}/{SYNC_ID}", *(f"{approval.name}/{order.id}" for order in self._orders)],
            statuses={"/".join(name): known.status for name, known in self._known.items()},
            outcomes=self._outcomes,
            expected_outcomes={
                f"{sync.name}/{SYNC_ID}": f"{comparison.source_rows} rows",
                **{f"{approval.name}/{order.id}": "shipped" for order in shipped},
                **{f"{approval.name}/{order.id}": "refused" for order in refused},
            },
            samples=self._samples,
            rows=Rows(comparison.source_rows, comparison.target_rows, comparison.differences),
            books=Books(
                {_PLURAL[action]: count for action, count in audit.effects.items()},
                audit.doubled,
                audit.repeated_calls,
                audit.balance_cents,
            ),
            expected_effects={
                _PLURAL[Action.CHARGE]: len(self._orders),
                _PLURAL[Action.REFUND]: len(refused),
                _PLURAL[Action.SHIP]: len(shipped),
            },
            expected_balance_cents=sum(order.amount_cents for order in shipped),
            kill=self._kill,
        )

    # ── for the reader ───────────────────────────────────────────────────────────────────────────────────────────

    def _print_redis_lines(self) -> None:
        program = cli_program()
        keys = self._client._online().store.keys
        begin = [program or "redis-cli", "-s", str(self._server.directory / "r.sock")]
        lines = [
            [*begin, "HGETALL", keys.of(sync.name, SYNC_ID).instance],
            [*begin, "HGETALL", keys.of(approval.name, self._orders[0].id).steps],
            [*begin, "XPENDING", keys.of(approval.name, self._orders[0].id).stream, GROUP],
        ]
        missing = "" if program else " (redis-cli comes with the packages redis-tools, redis or valkey)"
        self._screen.say(f"to look inside from another terminal{missing}:")
        self._screen.copyable([shlex.join(line) for line in lines])

    @property
    def _batches(self) -> int:
        return len(list(in_batches(read_source().rows, _BATCH)))

    def _count_sync_steps(self) -> int:
        """target, source, one for each row, one for each batch, prune, verify."""
        return 4 + len(read_source().rows) + self._batches
