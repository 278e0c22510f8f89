"""One performance: a server, workers, traffic and a storm over them; in the end, the evidence."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.app import app
from chaos.evidence import Evidence, Kind, Left
from chaos.fleet import Fleet
from chaos.history import read_history
from chaos.ledger import read_ledger
from chaos.storm import Storm
from chaos.traffic import Traffic
from memable import Client, Status, connect
from memable.connection import Endpoint, ScriptConnection
from memable.embedded import TemporaryServer
from memable.keys import Keys
from tests.lua import invariants
from tests.proxy import Proxy

NAMESPACE: Final = "chaos"
_CONCURRENCY: Final = 50
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
    kinds: Collection[Kind] = tuple(Kind)
    environment: Mapping[str, str] = field(default_factory=dict)
    """For the workers."""


async def perform(plan: Plan, directory: Path) -> Evidence:
    """Do as planned. What was written to `directory` (ledger, faults, logs of the workers) stays there."""
    os.environ["CHAOS_DIR"] = str(directory)
    # made here, so that no worker is needed for it to be there
    (directory / "ledger").touch()
    async with AsyncExitStack() as exits:
        server = exits.enter_context(TemporaryServer(appendonly=True))
        # half of the workers and the client reach Redis through these, the others directly
        proxies = [await exits.enter_async_context(Proxy(server.url, keeps_requests=False)) for _ in range(3)]
        urls = [proxies[n // 2].url if n % 2 == 0 and n < 4 else server.url for n in range(plan.workers)]
        fleet = exits.enter_context(Fleet(directory, urls, _environment(plan, directory)))
        client = await exits.enter_async_context(connect(proxies[2].url, app=app, namespace=NAMESPACE))
        await _ready(client, plan.workers)
        storm = Storm(plan.seed, fleet, server, proxies, lease_s=plan.lease_s, kinds=plan.kinds)
        traffic = Traffic(client, plan.seed, lease_s=plan.lease_s)
        drift_s = time.time() - time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(traffic.flow(plan.seconds, plan.per_second))
            tasks.create_task(storm.rage(plan.seconds))
        settled = await traffic.settle(plan.settle_s)
        ended_s = time.time()
        faults = sorted(storm.faults, key=lambda fault: fault.at_s)
        (directory / "faults").write_text("".join(f"{fault}\n" for fault in faults))
        fleet.look()
        await fleet.dismiss()
        keys = client._online().store.keys
        return Evidence(
            lease_s=plan.lease_s,
            faults=faults,
            invoked=traffic.invoked,
            signalled=traffic.signalled,
            ledger=read_ledger(directory / "ledger"),
            history=read_history(server.directory, keys.partitions[0]),
            left=await _left(server.url, keys),
            ended_s=ended_s,
            settled=settled,
            surprises=[*fleet.deaths, *traffic.surprises],
            clock_drift_s=time.time() - time.monotonic() - drift_s,
        )


def _environment(plan: Plan, directory: Path) -> dict[str, str]:
    return {
        "MEMABLE_NAMESPACE": NAMESPACE,
        "MEMABLE_LEASE": str(plan.lease_s),
        "MEMABLE_CONCURRENCY": str(_CONCURRENCY),
        "MEMABLE_SHUTDOWN_GRACE": str(_GRACE_S),
        "CHAOS_DIR": str(directory),
        **plan.environment,
    }


async def _ready(client: Client, workers: int) -> None:
    online = client._online()
    async with asyncio.timeout(_READY_WITHIN_S):
        # asked again and again: a worker tells Redis, and nobody else
        while await online.connection.command("ZCARD", online.store.keys.workers) < workers:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _left(url: str, keys: Keys) -> Left:
    connection = ScriptConnection(Endpoint.from_url(url), give_up_after_s=20)
    await connection.start()
    try:
        scene = await invariants.look(connection, keys.namespace)
    finally:
        await connection.close()
    (partition,) = keys.partitions
    start = f"{partition.prefix}instance:"
    instances = {name.removeprefix(start): fields for name, fields in scene.hashes.items() if name.startswith(start)}
    of_instances = [name for name in scene.hashes if name.startswith((start, f"{partition.prefix}steps:"))]
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
        disorder=list(invariants.violations(scene, keys)),
    )
