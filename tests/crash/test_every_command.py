"""A worker dies before and after every Redis command of a representative run; each time the end is the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memable import App, Client, Context, PermanentError, RetryPolicy, Settings, Status, StepFailed, SuspendPoint
from memable.connection import ScriptConnection
from memable.runtime.rest import End
from memable.runtime.run import failure_outcome
from memable.runtime.runtime import Runtime
from memable.store import Store

APPROVAL = SuspendPoint("approval", bool)
OF_A_RUN = {"claim", "record", "open", "park", "finish", "set_status", "release"}
"""The leader, the heartbeat and the stop go by the clock: which of their commands comes when is no run's doing."""

AT_ONCE = 12
"""How many deaths are tried side by side, each in a namespace of its own."""


@dataclass
class Ledger:
    """What the effects did, outside of Redis."""

    calls: Counter[str] = field(default_factory=Counter)

    def effect(self, name: str) -> Any:
        async def call() -> str:
            self.calls[name] += 1
            for _ in range(20):  # long enough for the points beside it to be opened
                await asyncio.sleep(0)
            return name

        return call


def representative(ledger: Ledger) -> App:
    """Steps, a retry, a caught failure, a signal, a timer, a gather of steps and waits, a status."""
    app = App()

    async def flaky() -> str:
        ledger.calls["flaky"] += 1
        if ledger.calls["flaky"] % 2:
            raise ConnectionError("try again")
        return "flaky"

    async def hopeless() -> str:
        ledger.calls["hopeless"] += 1
        raise PermanentError("never")

    @app.workflow("order")
    async def order(ctx: Context, amount: int) -> list[Any]:
        first = await ctx.step("first", ledger.effect("first"))
        ctx.set_status("charging")
        retried = await ctx.step("flaky", flaky, retry=RetryPolicy.fixed(3, 0.001))
        try:
            await ctx.step("hopeless", hopeless)
            caught = "nothing"
        except StepFailed as error:
            caught = error.error_message
        approved = await ctx.suspend(APPROVAL, status="waiting")
        await ctx.timer("pause", 0.01)
        both = await asyncio.gather(
            ctx.step("left", ledger.effect("left")),
            ctx.suspend("note"),
            ctx.step("right", ledger.effect("right")),
        )
        last = await ctx.step("last", ledger.effect("last"))
        return [amount, first, retried, caught, approved, *both, last]

    return app


ANSWERS = {"approval": True, "note": "noted"}
EXPECTED = [7, "first", "flaky", "never", True, "left", "noted", "right", "last"]
STEPS = {"first", "flaky", "hopeless", "left", "right", "last"}


class MortalConnection:
    """A worker's connection that dies with its process at the call with a given number: before it, or after it."""

    def __init__(self, connection: ScriptConnection, *, dies_at: int | None, after: bool) -> None:
        self._connection = connection
        self._dies_at, self._after = dies_at, after
        self.names: list[str] = []
        self.died = asyncio.Event()

    def call(self, script: Any, arguments: Sequence[Any]) -> Any:
        return self._count(script.name, lambda: self._connection.call(script, arguments))

    def command(self, *words: Any) -> Any:
        return self._count(str(words[0]), lambda: self._connection.command(*words))

    def _count(self, name: str, call: Any) -> Any:
        nothing = asyncio.get_running_loop().create_future()
        if self.died.is_set():
            return nothing
        if name not in OF_A_RUN:
            return call()
        self.names.append(name)
        if len(self.names) - 1 != self._dies_at:
            return call()
        if self._after:
            call().add_done_callback(lambda _: self.died.set())  # applied, and the reply is never read
        else:
            self.died.set()
        return nothing


async def start_worker(
    app: App, settings: Settings, *, dies_at: int | None, after: bool
) -> tuple[Runtime, MortalConnection]:
    runtime = Runtime(app, settings)
    await runtime.start()
    mortal = MortalConnection(runtime._connection, dies_at=dies_at, after=after)
    runtime._store.connection = mortal
    return runtime, mortal


async def bury(runtime: Runtime, mortal: MortalConnection) -> None:
    """End what is left of a dead worker in this process, without a word of its runs to Redis."""
    mortal.died.set()
    runs = list(runtime._runs.values())
    for run in runs:
        run.stop(End.BROKEN)
    left = [
        *runtime._loops,
        *runtime._carrying,
        *(leader._task for leader in runtime._leaders),
        *(task for run in runs for task in (run.rest._checker, run._progress_said)),
        *(task for run in runs for task in run._recordings.values()),
    ]
    tasks = [task for task in left if task is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await runtime._connection.command("CLIENT", "UNBLOCK", str(runtime._reader.client_id))
    await runtime._exits.aclose()


async def recover(client: Client, workflow: str) -> None:
    """What the leader does a lease later: take everything from the dead worker."""
    online = client._online()
    for partition in online.store.keys.partitions:
        stream, command = partition.stream(workflow), online.connection.command
        await command("DEL", partition.leader)
        for entry, *_ in await command("XPENDING", stream, "workers", "-", "+", 100):
            found = await command("XRANGE", stream, entry, entry)
            await Store(online.connection, online.store.keys).recover(
                partition.of(workflow, found[0][1][1].decode()),
                entry.decode(),
                latest_ms=1e15,
                lease_ms=0,
                max_recoveries=5,
                failure=failure_outcome("WorkerLost", "test"),
                retention_ms=60_000,
            )


async def answer_every_wait(client: Client) -> Status:
    """What the people outside do, until the instance is over."""
    instance = client.get("order", "1")
    async for state in instance.states():
        if state.status is Status.SUSPENDED and state.key in ANSWERS:
            # the same id each time: an answer that was given before a death is given once
            await instance.signal(state.key, ANSWERS[state.key], signal_id=f"answer-{state.key}")
    return (await instance.wait()).status


async def until_over_or_dead(client: Client, died: asyncio.Event) -> Status | None:
    """How the instance ended; nothing if the worker died first."""
    answering, death = asyncio.ensure_future(answer_every_wait(client)), asyncio.ensure_future(died.wait())
    await asyncio.wait({answering, death}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    status = answering.result() if answering.done() else None
    for task in (answering, death):
        task.cancel()
    await asyncio.gather(answering, death, return_exceptions=True)
    return status


async def live(url: str, namespace: str, *, dies_at: int | None, after: bool) -> tuple[list[str], Ledger]:
    """One instance whose first worker dies at a command, and whose second one carries it to its end."""
    ledger = Ledger()
    settings = Settings(redis_url=url, namespace=namespace, lease=30)
    async with Client(url, namespace=namespace, app=representative(ledger)) as client:
        runtime, mortal = await start_worker(representative(ledger), settings, dies_at=dies_at, after=after)
        await client.invoke("order", 7, id="1")
        status = await until_over_or_dead(client, mortal.died)
        await bury(runtime, mortal)
        if mortal.died.is_set():
            await recover(client, "order")
            successor, _ = await start_worker(representative(ledger), settings, dies_at=None, after=False)
            status = await until_over_or_dead(client, asyncio.Event())
            await successor.stop()
        assert status is Status.COMPLETED
        assert await client.get("order", "1").result() == EXPECTED
        records = {record.key: record for record in await client.steps("order", "1")}
        assert set(records) == STEPS | {"approval", "pause", "note"}
        return mortal.names, ledger


async def test_a_worker_that_dies_at_any_command_changes_nothing_of_the_end(redis_url: str, namespace: str) -> None:
    names, untroubled = await live(redis_url, f"{namespace}-none", dies_at=None, after=False)
    assert set(names) == OF_A_RUN - {"release"}
    assert untroubled.calls == Counter({**dict.fromkeys(STEPS, 1), "flaky": 2})
    gate = asyncio.Semaphore(AT_ONCE)

    async def death(at: int, *, after: bool) -> None:
        async with gate:
            try:
                _, ledger = await live(redis_url, f"{namespace}-{at}-{after}", dies_at=at, after=after)
            except BaseException as error:
                error.add_note(f"died {'after' if after else 'before'} command {at}: {names[at]}")
                raise
            # only what was in flight at the death is called again: at most the two steps of the gather
            repeated = {key: count - untroubled.calls[key] for key, count in ledger.calls.items()}
            assert all(times >= 0 for times in repeated.values()), repeated
            assert sum(1 for times in repeated.values() if times) <= 2, (at, names[at], repeated)

    await asyncio.gather(*(death(at, after=after) for at in range(len(names)) for after in (False, True)))
