"""Redis has lost the last part of what it had acknowledged: a power loss without an fsync, a failover to a replica."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memable import (
    App,
    Client,
    Context,
    Engine,
    Invocation,
    Settings,
    SignalRejected,
    SignalSuperseded,
    Status,
    StepState,
    SuspendPoint,
)
from memable.embedded import TemporaryServer
from memable.holding import Held, LeaseLost
from memable.lua import Answer
from tests.apps import errands
from tests.lua.stage import DONE, LONG_MS, STEP, Stage, approval
from tests.worker_process import TOO_LONG_S, Started, WorkerProcess, until


class Past:
    """What a server has on its disk now, for it to wake up with again."""

    def __init__(self, server: TemporaryServer, directory: Path) -> None:
        self._server, self._copy = server, directory / "past"
        shutil.copytree(self._data, self._copy)

    @property
    def _data(self) -> Path:
        return self._server.directory / "appendonlydir"

    def come_back(self) -> None:
        self._server.kill()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._server.start()


# ── one run, played by hand ──────────────────────────────────────────────────────────────────────────────────────────


WRITES: dict[str, Callable[[Stage, Held], Awaitable[object]]] = {
    "record": lambda stage, held: stage.store.record(held, "charge", STEP, 1),
    "open": lambda stage, held: stage.store.open(held, [approval("b")], []),
    "set_status": lambda stage, held: stage.store.set_status(held, "on my way"),
    "isolate": lambda stage, held: stage.store.isolate(held, alone=True),
    "park": lambda stage, held: stage.store.park(held, [approval()], [], ""),
    "finish": lambda stage, held: stage.store.finish(held, DONE, LONG_MS),
    "release": lambda stage, held: stage.store.release(held),
}


async def refused_all(stage: Stage, old: Held) -> None:
    """Whatever `old` writes is refused, and changes nothing."""
    before = await stage.check()
    for write in WRITES.values():
        with pytest.raises(LeaseLost):
            await write(stage, old)
    assert await stage.renew("w1", old) == [Answer.LEASE_LOST]
    assert await stage.check() == before


async def test_a_run_whose_lease_was_rolled_away_is_refused_before_and_after_another_has_it(
    server: TemporaryServer, stage: Stage, tmp_path: Path
) -> None:
    keys = await stage.invoke()
    await stage.make_group(keys.stream)
    past = Past(server, tmp_path)
    old = await stage.take(keys)
    past.come_back()
    await refused_all(stage, old)
    # it is again the first lease since then, and of the same entry
    new = await stage.take(keys, "w2")
    assert (new.entry, new.lease == old.lease) == (old.entry, False)
    await refused_all(stage, old)
    with pytest.raises(LeaseLost):
        await stage.store.claim(old, "w1")
    await stage.store.finish(new, DONE, LONG_MS)


async def test_a_delivery_that_was_rolled_away_is_of_no_use(
    server: TemporaryServer, stage: Stage, tmp_path: Path
) -> None:
    first = await stage.run()
    past = Past(server, tmp_path)
    await stage.store.release(first)
    (later,) = await stage.deliver(first.keys, "w2")
    past.come_back()
    before = await stage.check()
    with pytest.raises(LeaseLost):
        await stage.store.claim(later, "w2")
    assert await stage.check() == before
    # it hangs on a run that is over, and will not be renewed
    assert await stage.recover(first) is Answer.DONE
    await refused_all(stage, first)
    await stage.store.finish(await stage.take(first.keys, "w2"), DONE, LONG_MS)


@pytest.mark.parametrize("rest", ["park", "finish"])
async def test_an_instance_that_had_come_to_rest_is_carried_there_again(
    server: TemporaryServer, stage: Stage, tmp_path: Path, rest: str
) -> None:
    first = await stage.run()
    past = Past(server, tmp_path)
    await WRITES[rest](stage, first)
    past.come_back()
    assert await stage.status(first.keys) is Status.RUNNING
    assert await stage.recover(first) is Answer.DONE
    second = await stage.take(first.keys, "w2")
    await refused_all(stage, first)
    await WRITES[rest](stage, second)
    assert (await stage.status(first.keys)).is_at_rest


# ── under load ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def results_of(client: Client, instance_id: str) -> dict[str, Any]:
    """What is recorded of the steps of an errand."""
    steps = await client.steps(errands.errand, instance_id)
    return {each.key: each.result for each in steps if each.kind == "step" and each.state is StepState.COMPLETED}


async def see_through(invocation: Invocation[list[str]]) -> list[str]:
    """Send the signal again whenever it is waited for: one that was sent may be lost."""

    async def has_ended() -> bool:
        state = await invocation.wait(timeout=TOO_LONG_S)
        if state.key == errands.NEXT.key and not state.is_terminal:
            with suppress(SignalRejected, SignalSuperseded):
                await invocation.signal(errands.NEXT, "second")
        return state.is_terminal

    await until(has_ended, f"the end of {invocation.instance_id}")
    return await invocation.result(timeout=TOO_LONG_S)


async def test_instances_go_on_from_what_is_still_recorded(
    server: TemporaryServer, worker: Started, client: Client, tmp_path: Path
) -> None:
    def one_more() -> WorkerProcess:
        return worker("-m", "arq", "tests.apps.errands.WorkerSettings", MEMABLE_LEASE="1", MEMABLE_CONCURRENCY="10")

    names = [f"n{number}" for number in range(60)]
    async with one_more() as one, one_more() as other:
        made = await client.invoke_many(errands.errand, names, ids=names)
        invocations = [each for each in made if isinstance(each, Invocation)]
        await asyncio.gather(*(see_through(each) for each in invocations[:20]))
        await asyncio.gather(*(each.wait(timeout=TOO_LONG_S) for each in invocations))
        recorded = [await results_of(client, name) for name in names]
        past = await asyncio.to_thread(Past, server, tmp_path)

        # all this is acknowledged, and lost in its midst
        lost = await client.invoke(errands.errand, "lost", id="lost")
        calls = len(errands.calls(tmp_path))
        ahead = [asyncio.ensure_future(see_through(each)) for each in invocations[20:]]
        await until(lambda: len(errands.calls(tmp_path)) > calls + 20, "what will be lost")
        await asyncio.to_thread(past.come_back)
        for each in ahead:
            each.cancel()

        done = await asyncio.gather(*(see_through(each) for each in invocations))
        called = [call.split()[0] for call in errands.calls(tmp_path)]
        for name, result, steps in zip(names, done, recorded, strict=True):
            # no hole, and nothing that is not its own
            assert result == list((await results_of(client, name)).values())
            assert steps.items() <= dict(zip(("first:v1", "second:v1", "third:v1"), result, strict=True)).items()
            # what was recorded all the time was not called again
            for call in steps.values():
                assert called.count(call.split()[0]) == 1
        assert await lost.metadata() is None
        assert "Traceback" not in one.log + other.log


# ── a run whose lease came back, and what it had recorded since did not ──────────────────────────────────────────────

GO = SuspendPoint("go:v1", str)


class Author:
    """Two pieces of work, of which the first is recorded; each goes on when the test lets it."""

    def __init__(self, then: str) -> None:
        self.calls: list[str] = []
        self.may_end = {"first": asyncio.Event(), "second": asyncio.Event()}
        self._then = then
        self.app = App()
        self.app.register("order", self._order)

    async def _order(self, ctx: Context) -> list[str]:
        done = [await ctx.step("first:v1", self._work, "first")]
        match self._then:
            case "record":
                done.append(await ctx.step("second:v1", self._work, "second"))
            case "park":
                await self._work("second")
                done.append(await ctx.suspend(GO))
            case _:
                await self._work("second")
        return done

    async def _work(self, name: str) -> str:
        call = f"{name} {len(self.calls)}"
        self.calls.append(call)
        await self.may_end[name].wait()
        return call


@pytest.mark.parametrize("then", ["record", "park", "finish"])
async def test_a_run_that_goes_by_what_is_lost_is_ended_and_leaves_no_hole(
    server: TemporaryServer, namespace: str, tmp_path: Path, then: str
) -> None:
    author = Author(then)
    # a lease that no test lasts: nobody else takes the instance, and the run itself must notice
    settings = Settings(namespace=namespace, lease=600, park_grace=0)
    async with Engine(author.app, url=server.url, settings=settings) as engine:
        invocation = await engine.invoke("order", id="42")
        await until(lambda: author.calls == ["first 0"], "the first step")
        past = Past(server, tmp_path)
        author.may_end["first"].set()
        await until(lambda: author.calls == ["first 0", "second 1"], "the second")
        await asyncio.to_thread(past.come_back)
        assert await engine.steps("order", "42") == []
        author.may_end["second"].set()
        if then == "park":
            state = await invocation.wait(timeout=TOO_LONG_S)
            assert state.status is Status.SUSPENDED
            await invocation.signal(GO, "the signal")
        result = await invocation.result(timeout=TOO_LONG_S)
        expected = {"record": ["first 2", "second 3"], "park": ["first 2", "the signal"], "finish": ["first 2"]}
        assert result == expected[then]
        assert [each.result for each in await engine.steps("order", "42")] == result
