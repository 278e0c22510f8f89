"""Workers that die before or after a chosen Redis command, and a play that is given with each of these deaths."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memable import App, Client, Invocation, Settings, Status, current_step
from memable.connection import ScriptConnection
from memable.runtime.failing import failure_outcome
from memable.runtime.rest import End
from memable.runtime.runtime import Runtime
from memable.store import Store
from tests.lua import invariants

OF_A_RUN = {
    *("claim", "record", "settle", "choose", "open", "park", "finish", "set_status", "release", "continue_as"),
    *("spawn", "cancel", "resume"),
}
"""The leader, the heartbeat and the stop go by the clock: which of their commands comes when is no run's doing."""

AT_ONCE = 12
"""How many deaths are tried side by side, each in a namespace of its own."""


@dataclass
class Ledger:
    """What the effects did, outside of Redis."""

    calls: Counter[str] = field(default_factory=Counter)
    idempotency_keys: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def effect(self, name: str) -> Any:
        async def call() -> str:
            self.calls[name] += 1
            self.idempotency_keys[name].add(current_step().idempotency_key)
            for _ in range(20):  # long enough for the points beside it to be opened
                await asyncio.sleep(0)
            return name

        return call


async def nothing(order: Invocation[Any]) -> None: ...


@dataclass(frozen=True)
class Play:
    """A workflow `order`, what people answer it, and how it ends."""

    make: Callable[[Ledger], App]
    input: Any
    answers: Mapping[str, Any]
    """By the key of the point."""
    end: Any
    records: set[str]
    """Keys of the records that are there in the end."""
    commands: set[str]
    said: Mapping[str, Any] = field(default_factory=dict)
    """What comes to the mailbox `chat`, by the key of the receive that waits for it."""
    begin: Callable[[Invocation[Any]], Awaitable[None]] = nothing
    """What people do at once."""


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
    store = Store(online.connection, online.store.keys)
    for partition in online.store.keys.partitions:
        stream, command = partition.stream(workflow), online.connection.command
        await command("DEL", partition.leader)
        for entry, *_ in await command("XPENDING", stream, "workers", "-", "+", 100):
            found = await command("XRANGE", stream, entry, entry)
            keys = partition.of(workflow, found[0][1][1].decode())
            await store.recover(
                keys,
                entry.decode(),
                latest_ms=1e15,
                lease_ms=0,
                max_recoveries=5,
                failure=failure_outcome("WorkerLost", "test"),
                retention_ms=60_000,
                parent=await store.parent_of(keys),
            )


async def answer_every_wait(client: Client, play: Play) -> Status:
    """What the people outside do, until the instance is over."""
    instance = client.get("order", "1")
    async for state in instance.states():
        key = state.key if state.status is Status.SUSPENDED else None
        # the same id each time: an answer that was given before a death is given once
        if key is not None and key in play.answers:
            await instance.signal(key, play.answers[key], signal_id=f"{key}, {state.message}")
        elif key is not None and key in play.said:
            await instance.send("chat", play.said[key], message_id=key)
    return (await instance.wait()).status


async def until_over_or_dead(client: Client, died: asyncio.Event, play: Play) -> Status | None:
    """How the instance ended; nothing if the worker died first."""
    answering, death = asyncio.ensure_future(answer_every_wait(client, play)), asyncio.ensure_future(died.wait())
    await asyncio.wait({answering, death}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    status = answering.result() if answering.done() else None
    for task in (answering, death):
        task.cancel()
    await asyncio.gather(answering, death, return_exceptions=True)
    return status


async def live(play: Play, url: str, namespace: str, *, dies_at: int | None, after: bool) -> tuple[list[str], Ledger]:
    """One instance whose first worker dies at a command, and whose second one carries it to its end."""
    ledger = Ledger()
    settings = Settings(redis_url=url, namespace=namespace, lease=30)
    async with Client(url, namespace=namespace, app=play.make(ledger)) as client:
        runtime, mortal = await start_worker(play.make(ledger), settings, dies_at=dies_at, after=after)
        await play.begin(await client.invoke("order", play.input, id="1"))
        status = await until_over_or_dead(client, mortal.died, play)
        await bury(runtime, mortal)
        if mortal.died.is_set():
            for workflow in play.make(ledger):
                await recover(client, workflow.name)
            successor, _ = await start_worker(play.make(ledger), settings, dies_at=None, after=False)
            status = await until_over_or_dead(client, asyncio.Event(), play)
            await successor.stop()
        assert status is Status.COMPLETED
        assert await client.get("order", "1").result() == play.end
        assert {record.key for record in await client.steps("order", "1")} == play.records
        assert not (await client.invoke("order", play.input, id="1")).created
        await invariants.check(client._online().connection, client._online().store.keys)
        return mortal.names, ledger


async def die_everywhere(play: Play, url: str, namespace: str, *, most_repeated: int) -> list[Ledger]:
    """Die before and after each command, once each; all ledgers, first that of a life without a death.

    Only what was in flight at the death is called again.
    """
    names, untroubled = await live(play, url, f"{namespace}-none", dies_at=None, after=False)
    assert set(names) == play.commands
    gate = asyncio.Semaphore(AT_ONCE)

    async def death(at: int, *, after: bool) -> Ledger:
        async with gate:
            try:
                _, ledger = await live(play, url, f"{namespace}-{at}-{after}", dies_at=at, after=after)
            except BaseException as error:
                error.add_note(f"died {'after' if after else 'before'} command {at}: {names[at]}")
                raise
            repeated = {key: count - untroubled.calls[key] for key, count in ledger.calls.items()}
            assert all(times >= 0 for times in repeated.values()), repeated
            assert sum(1 for times in repeated.values() if times) <= most_repeated, (at, names[at], repeated)
            return ledger

    ledgers = await asyncio.gather(*(death(at, after=after) for at in range(len(names)) for after in (False, True)))
    return [untroubled, *ledgers]
