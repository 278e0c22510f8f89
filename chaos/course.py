"""One performance: a server, workers, traffic and a storm over them; in the end, the evidence."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.app import app
from chaos.evidence import Consumer, Evidence, Fault, Kind, Left
from chaos.fleet import Fleet
from chaos.history import read_history, worker_pid
from chaos.kin import part
from chaos.ledger import Line, What, read_ledger
from chaos.logs import read_log
from chaos.storm import BURST, STOPPED_LEASES, WEIGHTS, Storm
from chaos.traffic import Traffic
from memable import Client, Status, connect
from memable.connection import Endpoint, ScriptConnection
from memable.embedded import TemporaryServer
from memable.keys import GROUP, Keys
from memable.settings import load_settings
from tests.lua import invariants
from tests.proxy import Proxy

NAMESPACE: Final = "chaos"
_CONCURRENCY: Final = 50
_WHOLE_HISTORY: Final = {"auto-aof-rewrite-percentage": "0"}
"""The AOF stays as it was written. Set when it starts, not after that: a large one would be rewritten in between."""
_GRACE_S: Final = 1.0
_READY_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done."""

    seconds: float
    seed: int
    per_second: float = 20.0
    """Instances that are started."""
    workers: int = 4
    lease_s: float = 3.0
    settle_s: float = 60.0
    """How long all instances may take to come to their ends, once the faults have stopped."""
    kinds: Collection[Kind] = tuple(WEIGHTS)
    burst: int = BURST
    stopped_leases: tuple[float, float] = STOPPED_LEASES
    partitions: int = 1
    poison: int = 2
    """Instances that kill their workers."""
    blockers: int = 0
    """Instances that block the event loops of their workers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """For the workers."""


async def perform(plan: Plan, directory: Path) -> Evidence:
    """Do as planned. What was written to `directory` stays there: ledger, faults, logs of the workers, Redis's AOF."""
    os.environ["CHAOS_DIR"] = str(directory)
    # made here, so that no worker is needed for it to be there
    (directory / "ledger").touch()
    async with AsyncExitStack() as exits:
        server = exits.enter_context(TemporaryServer(appendonly=True, options=_WHOLE_HISTORY))
        # half of the workers and the client reach Redis through these, the others directly
        proxies = [await exits.enter_async_context(Proxy(server.url, keeps_requests=False)) for _ in range(3)]
        urls = [proxies[n // 2].url if n % 2 == 0 and n < 4 else server.url for n in range(plan.workers)]
        fleet = exits.enter_context(Fleet(directory, urls, _environment(plan, directory)))
        settings = load_settings(namespace=NAMESPACE, partitions=plan.partitions)
        client = await exits.enter_async_context(connect(proxies[2].url, app=app, settings=settings))
        await _ready(client, plan.workers)
        storm = Storm(
            plan.seed,
            fleet,
            server,
            proxies,
            lease_s=plan.lease_s,
            kinds=plan.kinds,
            burst=plan.burst,
            stopped_leases=plan.stopped_leases,
        )
        traffic = Traffic(client, plan.seed, lease_s=plan.lease_s)
        drift_s = time.time() - time.monotonic()
        supervising = asyncio.create_task(fleet.supervise())
        exits.push_async_callback(_end, supervising)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic.flow(plan.seconds, plan.per_second, plan.poison, plan.blockers))
            tasks.create_task(storm.rage(plan.seconds))
        settled = await traffic.settle(plan.settle_s) and await _no_child_lives(client, plan.settle_s)
        ended_s = time.time()
        await _end(supervising)
        await fleet.dismiss()
        ledger = read_ledger(directory / "ledger")
        faults = sorted([*storm.faults, *_by_instances(ledger)], key=lambda fault: fault.at_s)
        (directory / "faults").write_text("".join(f"{fault}\n" for fault in faults))
        shutil.copytree(server.directory / "appendonlydir", directory / "appendonlydir")
        keys = client._online().store.keys
        return Evidence(
            lease_s=plan.lease_s,
            faults=faults,
            invoked=traffic.invoked,
            signalled=traffic.signalled,
            ledger=ledger,
            history=read_history(directory, keys.partitions),
            left=await _left(server.url, keys),
            ended_s=ended_s,
            settled=settled,
            gone_s=fleet.gone_s,
            said=[said for pid, log in fleet.logs.items() for said in read_log(log, pid)],
            surprises=[*fleet.deaths, *traffic.surprises],
            clock_drift_s=time.time() - time.monotonic() - drift_s,
        )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _by_instances(ledger: Sequence[Line]) -> Iterator[Fault]:
    """The faults that no storm has brought: what instances did to their workers."""
    ends_s = {(line.pid, line.name, line.run): line.at_s for line in ledger if line.what is What.END}
    for line in ledger:
        if line.what is What.BEGIN and line.key == "die":
            yield Fault(Kind.POISON, line.at_s, line.at_s, line.pid)
        elif line.what is What.BEGIN and line.key == "block":
            # without an end: killed meanwhile, by what is a fault of its own
            until_s = ends_s.get((line.pid, line.name, line.run), line.at_s)
            yield Fault(Kind.BLOCK, line.at_s, until_s, line.pid)


def _environment(plan: Plan, directory: Path) -> dict[str, str]:
    return {
        "MEMABLE_NAMESPACE": NAMESPACE,
        "MEMABLE_LEASE": str(plan.lease_s),
        "MEMABLE_CONCURRENCY": str(_CONCURRENCY),
        "MEMABLE_SHUTDOWN_GRACE": str(_GRACE_S),
        "MEMABLE_PARTITIONS": str(plan.partitions),
        "MEMABLE_LOG_FORMAT": "json",
        "CHAOS_DIR": str(directory),
        **plan.environment,
    }


async def _ready(client: Client, workers: int) -> None:
    online = client._online()
    async with asyncio.timeout(_READY_WITHIN_S):
        # asked again and again: a worker tells Redis, and nobody else
        while await online.connection.command("ZCARD", online.store.keys.workers) < workers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _no_child_lives(client: Client, within_s: float) -> bool:
    """Whether the children of what is over are over, too, in time: some are left to the leader."""
    try:
        async with asyncio.timeout(within_s):
            for status in Status:
                # asked again and again, as above
                while not status.is_terminal and (await client.list_instances(part, status=status)).items:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
    except TimeoutError:
        return False
    return True


async def _left(url: str, keys: Keys) -> Left:
    connection = ScriptConnection(Endpoint.from_url(url), give_up_after_s=20)
    await connection.start()
    try:
        scene = await invariants.look(connection, keys.namespace)
        consumers = [each for stream in scene.streams for each in await _consumers(connection, stream)]
    finally:
        await connection.close()
    starts = tuple(f"{partition.prefix}instance:" for partition in keys.partitions)
    instances = {name.split(":instance:", 1)[1]: each for name, each in scene.hashes.items() if name.startswith(starts)}
    starts += tuple(f"{partition.prefix}steps:" for partition in keys.partitions)
    of_instances = [name for name in scene.hashes if name.startswith(starts)]
    return Left(
        statuses={name: fields["status"] for name, fields in instances.items()},
        completed_ms={
            name: int(fields["completed_ms"])
            for name, fields in instances.items()
            if Status(fields["status"]).is_terminal
        },
        entries=sum(len(stream.entries) for stream in scene.streams.values()),
        pending=sum(len(stream.pending) for stream in scene.streams.values()),
        immortal=[name for name in of_instances if name not in scene.expires_ms],
        consumers=consumers,
        disorder=list(invariants.violations(scene, keys)),
    )


async def _consumers(connection: ScriptConnection, stream: str) -> list[Consumer]:
    found = await connection.command("XINFO", "CONSUMERS", stream, GROUP)
    names = (dict(zip(each[::2], each[1::2], strict=True))[b"name"].decode() for each in found)
    return [Consumer(stream, worker_pid(name)) for name in names]
