"""Leases: a thread that keeps what this process runs from looking abandoned, also while the event loop is blocked."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis
from redis.exceptions import NoScriptError

from memable.current_step import CurrentStep
from memable.endpoint import Endpoint
from memable.holding import Held
from memable.lua import Answer
from memable.runtime.tasks import Activity
from memable.store import RENEW, Store, renewal

_log = logging.getLogger("memable.lease")

BLOCKED_WARNING_S = 1.0
"""A loop blocked for longer is reported, with what it does."""

BLOCKED_LIMIT_S = 60.0
"""A loop blocked for longer is taken to hang: its instances go to others."""

RENEWALS_PER_LEASE = 3
_BATCH = 500
_LOST_EARLY_AT_MOST = 1000
"""Of the leases that were lost before they were held, or after, the last are kept."""


class HeldRun(Protocol):
    """What the keeper needs of a run."""

    held: Held
    news_seen: int

    def on_news(self) -> None: ...

    def on_lease_lost(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Lease:
    run: HeldRun
    confirmed_s: float
    """When the last call was sent that Redis has acknowledged: for a lease from then, nobody else can have it."""


class LeaseKeeper:
    """Renews the leases of a worker process every third of a lease, from a thread with a connection of its own."""

    def __init__(self, endpoint: Endpoint, store: Store, worker: str, lease_s: float, activity: Activity) -> None:
        self._store = store
        self._worker = worker
        self._lease_s = lease_s
        self._activity = activity
        self._client = endpoint.sync_client()
        self._leases: dict[str, _Lease] = {}
        self._lost_early: dict[str, bool] = {}
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._beat_asked_s: float | None = None
        self._told_s = 0.0
        self._is_troubled = False
        self._thread = threading.Thread(target=self._keep, name="memable-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Renew no more; waits for the thread."""
        self._stopped.set()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._client.close()

    def hold(self, run: HeldRun, claim_sent_s: float) -> None:
        """Renew for `run` from now on."""
        self._leases[run.held.lease] = _Lease(run, claim_sent_s)
        if self._lost_early.pop(run.held.lease, False):
            run.on_lease_lost()

    def drop(self, held: Held) -> None:
        """Renew no more: the run is over."""
        self._leases.pop(held.lease, None)

    def lose(self, lease: str) -> None:
        """Others have ended the run that has this lease, if it is one of these."""
        if (known := self._leases.get(lease)) is not None:
            known.run.on_lease_lost()
            return
        # the answer to its claim may be on its way still: a step must not begin
        self._lost_early[lease] = True
        if len(self._lost_early) > _LOST_EARLY_AT_MOST:
            del self._lost_early[next(iter(self._lost_early))]

    def confirm(self, held: Held) -> Awaitable[None] | None:
        """Nothing, while no other worker can have the instance; else a question to Redis, which raises `LeaseLost`.

        Asked before each attempt of a step. When a renewal was *sent* counts, not when its reply was read: a reply that
        waited in the socket while this process was stopped proves nothing.
        """
        lease = self._leases.get(held.lease)
        if lease is None or time.monotonic() - lease.confirmed_s <= self._lease_s:
            return None
        return self._ask(lease)

    async def _ask(self, lease: _Lease) -> None:
        sent_s = time.monotonic()
        await self._store.renew(lease.run.held, self._worker)
        lease.confirmed_s = max(lease.confirmed_s, sent_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    @property
    def blocked_s(self) -> float:
        """For how long the loop has given no sign of life; asked every third of a lease, so it may be somewhat more."""
        asked_s = self._beat_asked_s
        return 0.0 if asked_s is None else time.monotonic() - asked_s

    @property
    def blocked_by(self) -> str:
        """What the loop resumed last."""
        return _describe(self._activity.what)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self) -> None:
        while not self._stopped.wait(self._lease_s / RENEWALS_PER_LEASE):
            if self._loop_hangs():
                continue
            try:
                self._renew()
            except redis.RedisError as error:
                if not self._is_troubled:
                    _log.warning("leases cannot be renewed: %s", error)
                self._is_troubled = True
            except Exception:
                _log.exception("leases could not be renewed")
            else:
                self._is_troubled = False

    def _loop_hangs(self) -> bool:
        """Ask the loop for a sign of life, and look whether the last one came."""
        now_s = time.monotonic()
        if self._beat_asked_s is None:
            self._beat_asked_s = now_s
            try:
                self._loop.call_soon_threadsafe(self._on_beat)
            except RuntimeError:  # the loop is closed
                self._stopped.set()
            return False
        blocked_s = self.blocked_s
        if blocked_s > BLOCKED_WARNING_S and now_s - self._told_s > self._lease_s * RENEWALS_PER_LEASE:
            self._told_s = now_s
            _log.warning(
                "the event loop has been blocked for %.1f s by %s: call what blocks in a sync step",
                blocked_s,
                self.blocked_by,
                extra=_place(self._activity.what),
            )
        return blocked_s > BLOCKED_LIMIT_S

    def _on_beat(self) -> None:
        self._beat_asked_s = None

    def _renew(self) -> None:
        for leases in self._batches():
            sent_s = time.monotonic()
            arguments = renewal(self._worker, [each.run.held for each in leases])
            for lease, answer in zip(leases, self._call(1 + len(leases), arguments), strict=True):
                if answer == Answer.LEASE_LOST:
                    self._tell(lease.run.on_lease_lost)
                    continue
                lease.confirmed_s = max(lease.confirmed_s, sent_s)
                if answer > lease.run.news_seen:  # the control channel can drop a message
                    lease.run.news_seen = answer
                    self._tell(lease.run.on_news)

    def _batches(self) -> Iterator[Sequence[_Lease]]:
        """All leases; those of a batch are of one stream."""
        by_stream: defaultdict[str, list[_Lease]] = defaultdict(list)
        for lease in list(self._leases.values()):
            by_stream[lease.run.held.keys.stream].append(lease)
        for leases in by_stream.values():
            for at in range(0, len(leases), _BATCH):
                yield leases[at : at + _BATCH]

    def _call(self, key_count: int, arguments: list[Any]) -> list[int]:
        client: Any = self._client  # the stub promises an awaitable as well
        try:
            return list(client.evalsha(RENEW.sha, key_count, *arguments))
        except NoScriptError:
            return list(client.eval(RENEW.source, key_count, *arguments))

    def _tell(self, callback: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            self._stopped.set()


def _place(what: object) -> dict[str, object] | None:
    if isinstance(what, CurrentStep):
        return {"workflow": what.workflow_name, "instance_id": what.instance_id, "step": what.key}
    return None


def _describe(what: object) -> str:
    if isinstance(what, CurrentStep):
        return f"step {what.key!r} of {what.workflow_name}/{what.instance_id}"
    return f"the code of {what}"
