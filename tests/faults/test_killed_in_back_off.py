"""A step that waits for its next attempt outlives whoever called it, and Redis: with its attempts and its deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from memable import Client, Invocation, Status, StepState
from memable.embedded import TemporaryServer
from tests.apps import labour
from tests.faults.crew import Crew
from tests.integration.connecting import connected
from tests.worker_process import TOO_LONG_S, until


async def waits(invocation: Invocation[int], attempt: int) -> bool:
    known = await invocation.metadata()
    return known is not None and f"retrying try:v1 ({attempt} of 5)" in str(known.state)


async def an_hour_passes(crew: Crew) -> None:
    """The leader looks again within a third of a lease."""
    timers = crew.partition.timers
    assert await crew.connection.command("ZADD", timers, "XX", "CH", 1000, "persistent/p/try:v1") == 1


@pytest.mark.spec("durable-backoff")
async def test_attempts_and_deadline_outlive_worker_and_redis(
    server: TemporaryServer, namespace: str, tmp_path: Path
) -> None:
    async with Client(server.url, app=labour.app, namespace=namespace) as client, connected(server.url) as connection:
        crew = Crew(tmp_path, server.url, namespace, client=client, connection=connection)
        invocation: Invocation[int] = await client.invoke("persistent", "p", id="p")

        async with crew.worker(lease=1) as first:
            await until(lambda: waits(invocation, 2), "the wait for the second attempt")
            before = await crew.scene("persistent")
            first.process.kill()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await until(lambda: waits(invocation, 2), "the same after Redis has come back")
        assert await crew.scene("persistent") == before

        # one that dies in an attempt has not ended it
        await an_hour_passes(crew)
        async with crew.worker(lease=1) as second:
            await crew.called(second, "p-attempt-2")
            second.process.kill()

        async with crew.worker(lease=1) as third:
            crew.let_go_on(third)
            await crew.called(third, "p-attempt-2")
            await until(lambda: waits(invocation, 3), "the wait for the third attempt")
            await an_hour_passes(crew)
            assert await invocation.result(TOO_LONG_S) == third.pid

        assert [name for name, _ in crew.ledger()] == [f"p-attempt-{number}" for number in (1, 2, 2, 3)]
        [step] = await client.steps("persistent", "p")
        assert (step.state, step.attempts) == (StepState.COMPLETED, 3)


@pytest.mark.spec("durable-backoff")
async def test_a_worker_is_free_while_its_instances_wait(crew: Crew) -> None:
    """More of them than it has slots."""
    async with crew.worker(lease=1, concurrency=2) as worker:
        waiting = [await crew.client.invoke("persistent", f"p{number}") for number in range(6)]
        for invocation in waiting:
            await until(lambda each=invocation: waits(each, 2), "the wait for the second attempt")  # type: ignore[misc]
        assert await (await crew.client.invoke("brief", "b")).result(TOO_LONG_S) == worker.pid
        for invocation in waiting:
            known = await invocation.metadata()
            assert known is not None
            assert (known.status, known.worker) == (Status.QUEUED, None)
