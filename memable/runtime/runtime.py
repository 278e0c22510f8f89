"""The executing side of a worker process: takes instances from the streams, and carries each to its rest.

It knows nothing of what hosts it (an arq worker, an Engine): `start`, `stop`, and tasks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

from memable.announcement import announcement
from memable.codec import Codec
from memable.connection import BlockingReader, Endpoint, ScriptConnection, Traffic
from memable.definitions import Definitions
from memable.entering import enter
from memable.errors import MemableError, StorageError
from memable.holding import Held, LeaseLost
from memable.keys import NEWS, OVER, InstanceKeys, Keys, Partition
from memable.observability.watch import Watch
from memable.presence import BEAT_EVERY_S, STALE_MS, Presence, own_version
from memable.pubsub import Subscription, Subscriptions
from memable.reading import Reader
from memable.runtime.intake import Intake
from memable.runtime.leader import Leader
from memable.runtime.lease import LeaseKeeper
from memable.runtime.logs import enter_instance
from memable.runtime.observing import NOBODY, Observer, RunObserver, RunOutcome
from memable.runtime.rest import End
from memable.runtime.run import Run, Workshop
from memable.runtime.solitude import Solitude
from memable.runtime.steps import StepCaller
from memable.runtime.tasks import Activity, install_task_factory
from memable.runtime.threads import StepThreads
from memable.settings import Settings
from memable.store import DELAYED_MS, Store, new_token
from memable.workflow import App, Workflow

_log = logging.getLogger("memable.runtime")

_LAST_WORDS_S = 10.0


def worker_name() -> str:
    """A name that no other worker has, now or later."""
    # without blanks: it stands in `leader`, before a word
    return f"{'-'.join(socket.gethostname().split())}-{os.getpid()}-{new_token()[:6]}"


class Runtime:
    """Runs the workflows of one app, up to `settings.concurrency` instances at a time."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        url: str | None = None,
        caller: Callable[[StepThreads, Activity], StepCaller] = StepCaller,
    ) -> None:
        self.app = app
        self.settings = settings
        self.worker = worker_name()
        self._version, self._made_s = own_version(), time.monotonic()
        self._endpoint = Endpoint.from_url(url or settings.redis_url, client_name=f"memable-worker:{self.worker}")
        self._connection = ScriptConnection(self._endpoint, give_up_after_s=None)
        self._subscriptions = Subscriptions(self._endpoint, give_up_after_s=None)
        self._reader = BlockingReader(self._endpoint)
        self._codec = Codec(max_payload_bytes=settings.max_payload)
        self._activity = Activity()
        self._threads = StepThreads(settings.concurrency)
        self._caller = caller(self._threads, self._activity)
        self._runs: dict[str, Run] = {}
        self._carrying: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._is_handing_back = False
        self._streams: dict[str, tuple[Partition, Workflow[Any, Any]]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._leaders: list[Leader] = []
        self._controls: list[Subscription] = []
        self._watch = Watch(self, settings)
        self._observer: Observer = NOBODY
        self._exits = AsyncExitStack()

    # ── start and stop ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_healthy(self) -> bool:
        """Whether this process takes work: connected, not stopping, its loops alive."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why this process takes no work; nothing if it does. From any thread."""
        if self._is_stopping:
            return "it is stopping"
        if not self._loops:
            return "it is starting"
        if not self._connection.is_healthy:
            return "Redis does not serve it"
        if not self._intake.is_well:
            return "it cannot read its streams"
        return self.fault

    @property
    def fault(self) -> str | None:
        """Why this process should be replaced by another; nothing if it lives. From any thread."""
        if not self._loops:
            return None
        if (blocked_s := self._leases.blocked_s) > self.settings.lease:
            return f"the event loop has been blocked for {blocked_s:.1f} s by {self._leases.blocked_by}"
        if self._is_stopping:
            return None
        if any(loop.done() for loop in self._loops):
            return "the loop that takes work has ended"
        if self._intake.is_stuck:
            return "the loop that takes work is stuck"
        return None if self._leases.is_alive else "the thread that renews leases has ended"

    @property
    def slots(self) -> int:
        """How many instances can be run here at once."""
        return self.settings.concurrency

    @property
    def partitions_led(self) -> int:
        """How many partitions this worker leads."""
        return sum(leader.is_leading for leader in self._leaders) if self.is_connected else 0

    @property
    def leads_first(self) -> bool:
        """Whether it leads the first partition, and so is the one that does what one is to do for all."""
        return any(leader.is_leading for leader in self._leaders[:1])

    @property
    def endpoint_url(self) -> str | None:
        """Where metrics and health are served, if they are."""
        return self._watch.url

    @property
    def is_connected(self) -> bool:
        """Whether Redis serves it."""
        return self._connection.is_healthy

    @property
    def traffic(self) -> Traffic:
        """What it has asked Redis for."""
        return self._connection.traffic

    @property
    def running(self) -> int:
        """How many instances are being run here."""
        return len(self._carrying)

    @property
    def running_names(self) -> list[str]:
        """The instances (`WF/ID`) that are being run here."""
        return list(self._runs)

    async def start(self) -> None:
        """Connect, announce the workflows, begin to take work.

        `StorageError` if Redis cannot be reached or used, `SettingsError` if metrics cannot be served where they are to
        be.
        """
        install_task_factory(asyncio.get_running_loop())
        async with AsyncExitStack() as exits:
            exits.push_async_callback(self._watch.close)
            self._watch.open()
            exits.push_async_callback(self._connection.close)
            await self._connection.start()
            keys = await self._enter(self.settings.partitions)
            self._store = Store(self._connection, keys)
            exits.push_async_callback(self._subscriptions.close)
            exits.push_async_callback(self._reader.close)
            exits.callback(self._threads.close)
            resources = await self._enter_lifespan(exits)
            self._observer = self._watch.observer(workflow.name for workflow in self.app)
            exits.push_async_callback(self._watch.stop_counting)
            self._leases = LeaseKeeper(self._endpoint, self._store, self.worker, self.settings.lease, self._activity)
            self._leases.start()
            exits.push_async_callback(self._leases.stop)
            reader = Reader(self._store)
            self._workshop = Workshop(
                store=self._store,
                codec=self._codec,
                definitions=Definitions(self._codec, self.app, lambda: reader),
                caller=self._caller,
                activity=self._activity,
                resources=resources,
                park_grace_s=self.settings.park_grace,
                retention_s=self.settings.retention,
                max_records=self.settings.max_records,
                confirm_lease=self._leases.confirm,
            )
            self._streams = {
                partition.stream(workflow.name): (partition, workflow)
                for partition in keys.partitions
                for workflow in self.app
            }
            self._intake = Intake(
                self._reader,
                self._connection,
                self.worker,
                self._streams,
                free_slots=lambda: self.settings.concurrency - len(self._carrying),
                begin=self._begin,
            )
            self._solitude = Solitude(
                self._store,
                self._intake,
                lease_s=self.settings.lease,
                max_recoveries=self.settings.max_recoveries,
                running=lambda: len(self._carrying),
            )
            self.app.freeze(self, f"worker {self.worker}")
            exits.callback(self.app.thaw, self)
            await asyncio.gather(self._announce(), self._intake.create_groups(), self._listen())
            self._exits = exits.pop_all()
        await self._start_leaders()
        self._watch.begin_to_count(self._store)
        self._loops = [asyncio.ensure_future(self._intake.run()), asyncio.ensure_future(self._beat())]
        _log.info(
            "worker %s runs %s", self.worker, ", ".join(sorted(workflow.name for workflow in self.app)) or "nothing"
        )

    async def stop(self, *, grace_s: float | None = None) -> None:
        """Take no more work, let runs end within the grace, and hand the rest back, to be taken at once by others."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._loops:  # else the start has failed
            taking, beating = self._loops
            beating.cancel()
            await self._intake.stop(taking)
        await self._wait_for_runs(self.settings.shutdown_grace if grace_s is None else grace_s)
        self.hand_all_back()
        await self._wait_for_runs(_LAST_WORDS_S)
        for control in self._controls:
            control.close()
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._take_leave()
        await self._exits.aclose()
        await self._wait_for_runs(_LAST_WORDS_S)  # without a connection none of them waits for Redis any more
        _log.info("worker %s has stopped", self.worker)

    def hand_all_back(self) -> None:
        """End every run here now; its instance is queued again, for any worker. A step in flight is cancelled."""
        self._is_handing_back = True
        for name in list(self._runs):
            self.hand_back(name)

    def hand_back(self, name: str) -> None:
        """End the run of one instance (`WF/ID`), if there is one here."""
        if (run := self._runs.get(name)) is not None:
            run.stop(End.HANDED_BACK)
            self._solitude.on_end()

    async def is_idle(self) -> bool:
        """Whether nothing is run here, and nothing that this worker could run is queued or running anywhere."""
        if self._carrying:
            return False
        lengths = await asyncio.gather(*(self._connection.command("XLEN", stream) for stream in self._streams))
        return not any(lengths)

    async def _take_leave(self) -> None:
        await asyncio.gather(*(leader.stop() for leader in self._leaders))
        if self._leaders:  # else the start has failed, and nobody has seen this worker
            await self._store.leave(self.worker)
        await asyncio.gather(*(self._store.drop_consumer(stream, self.worker) for stream in self._streams))

    async def _enter_lifespan(self, exits: AsyncExitStack) -> Mapping[str, Any]:
        if self.app.lifespan is None:
            return {}
        return await exits.enter_async_context(self.app.lifespan(self.app)) or {}

    async def _wait_for_runs(self, timeout_s: float) -> None:
        if self._carrying:
            await asyncio.wait(set(self._carrying), timeout=timeout_s)

    # ── presence ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _enter(self, partitions: int | None) -> Keys:
        return await enter(self._connection, self._endpoint, self.settings.namespace, partitions)

    async def _announce(self) -> None:
        words: list[Any] = []
        for workflow in self.app:
            words += (workflow.name, announcement(workflow, self._codec, self.settings.retention))
        if words:
            await self._connection.command("HSET", self._store.keys.workflows, *words)

    async def _listen(self) -> None:
        self._controls = await asyncio.gather(
            *(
                self._subscriptions.open(partition.control(self.worker), self._on_control)
                for partition in self._store.keys.partitions
            )
        )

    def _on_control(self, message: bytes | None) -> None:
        # None: connected again, and anything may have been missed
        if message is None:
            for each in list(self._runs.values()):
                each.on_news()
            return
        word, _, what = message.decode().partition(" ")
        if word == OVER:
            self._leases.lose(what)
        elif word == NEWS and (run := self._runs.get(what)) is not None:
            run.on_news()

    async def _start_leaders(self) -> None:
        self._leaders = [
            Leader(
                self._store,
                self._connection,
                partition,
                self.worker,
                lease_s=self.settings.lease,
                max_recoveries=self.settings.max_recoveries,
                default_retention_ms=round((self.settings.retention or self.app.retention.total_seconds()) * 1000),
                observer=self._observer,
            )
            for partition in self._store.keys.partitions
        ]
        await asyncio.gather(*(leader.start(self._subscriptions) for leader in self._leaders))

    def _presence(self) -> Presence:
        return Presence(
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            up_s=round(time.monotonic() - self._made_s, 3),
            slots=self.settings.concurrency,
            in_use=len(self._carrying),
            workflows=tuple(sorted(workflow.name for workflow in self.app)),
            clock_s=round(time.time(), 3),
        )

    async def _beat(self) -> None:
        said = ""
        while True:
            try:
                await self._store.beat(self.worker, self._presence().said(), STALE_MS)
                # again and again: a FLUSHALL takes it away
                await self._announce()
                await self._enter(len(self._store.keys.partitions))
            except StorageError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("worker %s: %s", self.worker, error)
            else:
                said = ""
            await asyncio.sleep(BEAT_EVERY_S)

    # ── carrying it ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, partition: Partition, workflow: Workflow[Any, Any], instance_id: str, entry: str) -> None:
        keys = partition.of(workflow.name, instance_id)
        task = asyncio.get_running_loop().create_task(self._carry(workflow, keys, entry))
        self._carrying.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._carrying.discard(task)
        self._intake.look_again()
        self._solitude.on_end()

    async def _carry(self, workflow: Workflow[Any, Any], keys: InstanceKeys, entry: str) -> None:
        enter_instance(keys)
        held = Held(keys, entry, new_token())
        observer: RunObserver | None = None
        outcome = RunOutcome.BROKEN
        try:
            sent_s = time.monotonic()
            try:
                claim = await self._store.claim(held, self.worker)
            except LeaseLost:
                self._observer.claim_refused(workflow.name)
                raise
            run = Run(self._workshop, workflow, held, claim)
            observer = run.observer = self._observer.run_begins(held, claim)
            self._runs[keys.name] = run
            self._leases.hold(run, sent_s - DELAYED_MS / 1000)
            if self._is_handing_back:  # its claim was on its way
                run.stop(End.HANDED_BACK)
            try:
                if self._solitude.is_suspect(claim.recoveries):
                    end = await self._solitude.carry(run, claim.recoveries)
                else:
                    end = await run.carry()
                if end is End.HANDED_BACK:
                    await self._store.release(held, has_begun=run.has_begun)
                if observer is not None:
                    outcome = await self._outcome(run, end)
            finally:
                self._leases.drop(held)
                if self._runs.get(keys.name) is run:
                    del self._runs[keys.name]
        except LeaseLost:
            outcome = RunOutcome.LOST
            _log.info("%s is another's now", keys.name)
        except MemableError as error:
            _log.error("%s is left to its lease: %s", keys.name, error)
        except Exception:
            _log.exception("%s is left to its lease: memable failed", keys.name)
        finally:
            if observer is not None:
                observer.ended(outcome)

    async def _outcome(self, run: Run, end: End) -> RunOutcome:
        """How a run ended, for those who watch it."""
        if end is End.RETURNED:
            return RunOutcome.CONTINUED if run.outcome is None else RunOutcome(run.outcome.status)
        if end is not End.LOST:
            return _OUTCOMES[end]
        # it may have been ended from outside, by a cancel or a deadline
        try:
            status = await self._connection.command("HGET", run.held.keys.instance, "status")
        except StorageError:  # the run is over whatever the answer would be
            return RunOutcome.LOST
        ended = {each.value: each for each in (RunOutcome.CANCELLED, RunOutcome.FAILED)}
        return ended.get((status or b"").decode(), RunOutcome.LOST)


_OUTCOMES = {
    End.PARKED: RunOutcome.SUSPENDED,
    End.HANDED_BACK: RunOutcome.HANDED_BACK,
    End.BROKEN: RunOutcome.BROKEN,
}
