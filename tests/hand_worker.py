"""A worker that does only what it is told: drives instances through the store, so that tests need no runtime."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from memable.codec import Codec, to_json
from memable.connection import Endpoint, ScriptConnection, ServerRefused
from memable.errors import StepFailed
from memable.holding import Claim, Held, Outcome, Point
from memable.journal import Draft
from memable.keys import ENTRY_FIELD, GROUP, Keys
from memable.state import Status, StepKind
from memable.store import Store, enter, new_token

_WORKER = "by-hand"
_RETENTION_MS = 60_000


def point(key: str, type: Any = Any, *, after_ms: float | None = None) -> Point:
    """A place to wait for a signal with a payload of `type`; with `after_ms` a timer."""
    codec = Codec().of(None if after_ms is not None else type)
    kind = StepKind.SIGNAL if after_ms is None else StepKind.TIMER
    return Point(key, kind, codec.tag, sorted(codec.json_types), after_ms=after_ms)


class HandRun:
    """One run: claimed, until `park`, `complete`, `fail` or `release`."""

    def __init__(self, store: Store, held: Held, claim: Claim) -> None:
        self._store, self.held, self.claim = store, held, claim
        self.id = held.keys.instance_id

    async def step(self, key: str, result: Any = None) -> None:
        await self._store.record(self.held, key, Draft.completed(StepKind.STEP, "", to_json(result)), 0)

    async def failed_step(self, key: str, error_type: str, error_message: str) -> None:
        error = StepFailed(f"step {key!r}", key=key, attempts=1, error_type=error_type, error_message=error_message)
        await self._store.record(self.held, key, Draft.failed(StepKind.STEP, error, 1), 0)

    async def set_status(self, message: str) -> None:
        await self._store.set_status(self.held, message)

    async def park(self, *points: Point, message: str = "") -> dict[str, bytes]:
        return await self._store.park(self.held, points, (), message)

    async def complete(self, output: Any = None, *, message: str = "", retention_ms: int = _RETENTION_MS) -> None:
        await self._store.finish(self.held, Outcome(Status.COMPLETED, to_json(output), message), retention_ms)

    async def fail(self, error_type: str, message: str, *, failed_keys: Sequence[str] = ()) -> None:
        value = {"type": error_type, "message": message, "step": failed_keys[0] if failed_keys else None}
        outcome = Outcome(Status.FAILED, to_json(value), f"{error_type}: {message}", failed_keys)
        await self._store.finish(self.held, outcome, _RETENTION_MS)

    async def release(self) -> None:
        await self._store.release(self.held)


class HandWorker:
    """Takes instances one at a time, in the order in which they were queued."""

    def __init__(self, url: str, namespace: str, *, partitions: int | None = None) -> None:
        self._connection = ScriptConnection(Endpoint.from_url(url), give_up_after_s=None)
        self._namespace, self._partitions = namespace, partitions

    async def __aenter__(self) -> Self:
        await self._connection.start()
        self.store = Store(self._connection, await enter(self._connection, self._namespace, self._partitions))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    @property
    def keys(self) -> Keys:
        return self.store.keys

    async def command(self, *words: bytes | str | float) -> Any:
        return await self._connection.command(*words)

    async def next_millisecond(self) -> None:
        """Until Redis's clock shows another millisecond: the resolution of a record's times."""
        begun = await self._milliseconds()
        while await self._milliseconds() == begun:
            pass

    async def _milliseconds(self) -> int:
        seconds, microseconds = await self.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def announce(self, name: str, said: bytes) -> None:
        await self.command("HSET", self.keys.workflows, name, said)

    async def take_if_any(self, workflow: str) -> HandRun | None:
        """Claim the instance of `workflow` that was queued first, if one is."""
        for partition in self.keys.partitions:
            stream = partition.stream(workflow)
            try:
                await self.command("XGROUP", "CREATE", stream, GROUP, "0", "MKSTREAM")
            except ServerRefused as error:
                if error.code != "BUSYGROUP":
                    raise
            read = await self.command("XREADGROUP", "GROUP", GROUP, _WORKER, "COUNT", 1, "STREAMS", stream, ">")
            if read:
                [[_, [[entry, [field, id]]]]] = read
                assert field.decode() == ENTRY_FIELD
                held = Held(partition.of(workflow, id.decode()), entry.decode(), new_token())
                return HandRun(self.store, held, await self.store.claim(held, _WORKER))
        return None

    async def take(self, workflow: str) -> HandRun:
        run = await self.take_if_any(workflow)
        assert run is not None, f"nothing of {workflow} is queued"
        return run
