"""A worker that is stopped for longer than its lease and then goes on: what it held is another's now, and stays so."""

from __future__ import annotations

import pytest

from memable import App, Engine, Invocation, Settings, Status
from tests.apps import labour
from tests.faults.crew import Crew, results
from tests.worker_process import TOO_LONG_S, WorkerProcess

BRIEF_S = 1
"""A lease that is over soon."""


async def take_new_work(crew: Crew, process: WorkerProcess, count: int) -> None:
    """As many slots of `process` are free: every other worker is full."""
    names = [f"new-{number}" for number in range(count)]
    invocations = await crew.client.invoke_many(labour.hold, names)
    await crew.called(process, *names)
    crew.let_go_on(process)
    assert await results(invocations) == [process.pid] * count


async def test_its_renewal_does_not_steal_back_what_another_has_taken_over(crew: Crew) -> None:
    settings = {"lease": BRIEF_S, "concurrency": 1}
    async with crew.worker(**settings) as stopped:
        held = await crew.client.invoke(labour.hold, "held", id="held")
        await crew.called(stopped, "held")
        async with crew.worker(**settings) as other:
            crew.stop(stopped)
            await crew.called(other, "held")
            before = await crew.scene("hold")
            assert await crew.holders("hold") == {other.pid: 1}

            crew.wake(stopped)
            # its only slot is free once it has learnt that its run is over: only the renewal can tell it
            new = await crew.client.invoke(labour.brief, "new")
            assert await new.result(timeout=TOO_LONG_S) == stopped.pid
            assert await crew.scene("hold") == before

            crew.let_go_on(other)
            assert await held.result(timeout=TOO_LONG_S) == other.pid
            assert crew.calls("held") == [stopped.pid, other.pid]


WRITES = ("record", "park", "open", "set_status", "complete", "fail")
ENDS = {
    "record": Status.COMPLETED,
    "park": Status.SUSPENDED,
    "complete": Status.COMPLETED,
    "fail": Status.FAILED,
}


@pytest.mark.spec("recorded-once")
async def test_every_write_of_its_old_runs_is_refused(crew: Crew, redis_url: str, namespace: str) -> None:
    """One that has not even noticed by renewing: to Redis it is as if that had been on its way all the time."""
    everything = [*WRITES, "release"]
    # the lead is taken before the unsuspecting worker comes, which would keep it for its own lease
    sweeper = Engine(App(), url=redis_url, settings=Settings(namespace=namespace, lease=BRIEF_S))
    async with sweeper, crew.worker(lease=600, concurrency=len(everything), shutdown_grace=0) as stopped:
        held = await crew.client.invoke_many(labour.write, everything, ids=everything)
        await crew.called(stopped, *everything, "beside")
        crew.stop(stopped)
        async with crew.worker(lease=BRIEF_S, concurrency=len(everything)) as other:
            await crew.called(other, *everything, "beside")
            before = await crew.scene("write")
            assert await crew.holders("write") == {other.pid: len(everything)}

            crew.let_go_on(stopped)
            crew.wake(stopped)
            await take_new_work(crew, stopped, len(WRITES))
            assert await crew.scene("write") == before
            assert await stopped.terminate() == 0  # and hands back the last one, which is not its own any more
            assert await crew.scene("write") == before

            crew.let_go_on(other)
            for invocation, what in zip(held, everything, strict=True):
                assert isinstance(invocation, Invocation)
                if what in ENDS:
                    state = await invocation.wait(timeout=TOO_LONG_S)
                    assert state.status is ENDS[what]
                    if state.status is Status.COMPLETED:
                        assert await invocation.result() == other.pid


async def test_it_begins_no_further_step_and_those_that_had_ended_are_not_called_again(crew: Crew) -> None:
    names = ["async", "thread"]
    settings = {"lease": BRIEF_S, "concurrency": len(names)}
    async with crew.worker(**settings) as stopped:
        held = await crew.client.invoke_many(labour.chain, names)
        await crew.called(stopped, "async-middle", "thread-middle")
        async with crew.worker(**settings) as other:
            crew.stop(stopped)
            await crew.called(other, "async-middle", "thread-middle")
            crew.let_go_on(stopped)  # the step in which it was stopped ends as soon as it is woken
            crew.wake(stopped)
            await take_new_work(crew, stopped, len(names))
            crew.let_go_on(other)
            assert await results(held) == [[stopped.pid, other.pid, other.pid]] * len(names)
            for name in names:
                assert crew.calls(f"{name}-before") == [stopped.pid]
                assert crew.calls(f"{name}-middle") == [stopped.pid, other.pid]
                assert crew.calls(f"{name}-after") == [other.pid]


async def test_it_begins_no_further_attempt_of_a_step(crew: Crew) -> None:
    names = ["at-once", "backoff"]
    settings = {"lease": BRIEF_S, "concurrency": len(names)}
    async with crew.worker(**settings) as stopped:
        held = await crew.client.invoke_many(labour.retried, names)
        await crew.called(stopped, "at-once-attempt-1", "backoff-failed")
        crew.stop(stopped)
        async with crew.worker(**settings) as other:
            await crew.called(other, "at-once-attempt-1", "backoff-failed")
            crew.let_go_on(stopped)  # its attempt fails as soon as it is woken, and the policy allows another at once
            crew.wake(stopped)
            await take_new_work(crew, stopped, len(names))
            crew.let_go_on(other)
            assert await results(held) == [other.pid] * len(names)
            for name in names:
                assert crew.calls(f"{name}-attempt-1") == [stopped.pid, other.pid]
                assert crew.calls(f"{name}-attempt-2") == [other.pid]
