"""A worker's metrics after a known workload: exactly right, with every name of the table."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from memable import App, Context, Engine, PermanentError, RetryPolicy, Settings, WorkflowFailed, current_step
from memable.errors import SettingsError
from memable.keys import Keys
from memable.observability import watch
from memable.observability.metrics import METRICS, NAMES
from memable.runtime.observing import RunOutcome
from memable.runtime.rest import End
from tests.scraping import Scrape, ask, scrape, url_of
from tests.worker_process import until


async def works() -> None: ...


async def fails_at_first() -> None:
    if current_step().attempt == 1:
        raise ConnectionError("away")


async def fails() -> None:
    raise PermanentError("no")


class Work:
    """Workflows whose ends are known."""

    def __init__(self) -> None:
        self.app = App()
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        for workflow in (self.order, self.bad, self.held, self.again):
            self.app.register(workflow.__name__, workflow)

    async def order(self, ctx: Context) -> None:
        await ctx.step("a", works)
        await ctx.step("b", fails_at_first, retry=RetryPolicy.fixed(1, 0))
        await ctx.suspend("approval")
        await ctx.step("c", works)

    async def bad(self, ctx: Context) -> None:
        await ctx.step("a", fails)

    async def hold(self) -> None:
        self.begun.set()
        await self.may_end.wait()

    async def held(self, ctx: Context) -> None:
        await ctx.step("hold", self.hold)

    async def again(self, ctx: Context, is_last: bool) -> None:
        if not is_last:
            ctx.continue_as(True)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def settings(namespace: str) -> Settings:
    return Settings(namespace=namespace, metrics_port=0)


async def seen(engine: Engine, runs: int) -> Scrape:
    """What is told once so many runs have ended: the last of them is counted a moment after its instance is done."""
    found = await scrape(engine)

    async def all_ended() -> bool:
        nonlocal found
        found = await scrape(engine)
        return sum(sum(found.by("memable_runs_total", "outcome", workflow=each).values()) for each in WORKFLOWS) == runs

    await until(all_ended, f"the end of {runs} runs")
    return found


WORKFLOWS = ("order", "bad", "held", "again")


async def test_a_known_workload_is_counted_exactly(redis_url: str, settings: Settings, work: Work) -> None:
    async with Engine(work.app, url=redis_url, settings=settings) as engine:
        for number in range(3):
            order = await engine.invoke("order", id=str(number))
            await order.wait()
            await order.signal("approval")
            await order.result()
        await (await engine.invoke("bad")).wait()
        held = await engine.invoke("held")
        await work.begun.wait()
        await held.cancel()
        await (await engine.invoke("again", False, delay=0.01)).result()
        found = await seen(engine, 3 * 2 + 1 + 1 + 2)

    def runs(workflow: str) -> object:
        return found.by("memable_runs_total", "outcome", workflow=workflow)

    assert runs("order") == {"suspended": 3, "completed": 3}
    assert runs("bad") == {"failed": 1}
    assert runs("held") == {"cancelled": 1}
    assert runs("again") == {"continued": 1, "completed": 1}
    assert found.by("memable_instances_started_total", "workflow") == {"order": 3, "bad": 1, "held": 1, "again": 2}
    assert found.by("memable_steps_total", "outcome", workflow="order") == {"completed": 9}
    assert found.by("memable_steps_total", "outcome", workflow="bad") == {"failed": 1}
    assert found.by("memable_steps_total", "outcome", workflow="held") == {"cancelled": 1}
    assert found.by("memable_step_retries_total", "workflow") == {"order": 3}
    assert found.by("memable_step_seconds_count", "workflow") == {"order": 12, "bad": 1, "held": 1}
    for histogram in ("memable_run_seconds", "memable_queue_delay_seconds"):
        counted = {"order": 6, "bad": 1, "held": 1, "again": 2}
        assert found.by(f"{histogram}_count", "workflow") == counted
        assert found.by(f"{histogram}_bucket", "workflow", le="+Inf") == counted
    # the delay alone: it was begun by the leader
    assert found.by("memable_timer_lateness_seconds_count", "workflow") == {"again": 1}
    assert (found["memable_slots"], found["memable_slots_used"]) == (100, 0)
    assert (found["memable_partitions_led"], found["memable_redis_connected"]) == (1, 1)
    assert found["memable_redis_calls_total"] >= found["memable_redis_round_trips_total"] > 20


async def test_an_instance_that_its_leader_fails_at_its_deadline_is_counted(
    redis_url: str, settings: Settings, work: Work
) -> None:
    @work.app.workflow("mortal", deadline=0.05)
    async def mortal(ctx: Context) -> None:
        await ctx.suspend("approval")

    async with Engine(work.app, url=redis_url, settings=settings) as engine:
        with pytest.raises(WorkflowFailed, match="DeadlineExceeded"):
            await (await engine.invoke(mortal)).result()

        async def counted() -> bool:
            found = await scrape(engine)
            return found.by("memable_deadlines_exceeded_total", "workflow") == {"mortal": 1}

        await until(counted, "the deadline in the metrics")


async def test_a_lost_run_is_over_though_redis_cannot_say_how_its_instance_ended(
    redis_url: str, settings: Settings, work: Work
) -> None:
    async with Engine(work.app, url=redis_url, settings=settings) as engine:
        runtime = engine._runtime
    run: Any = SimpleNamespace(held=SimpleNamespace(keys=Keys(settings.namespace, partitions=1).of("order", "1")))
    assert await runtime._outcome(run, End.LOST) is RunOutcome.LOST  # its connection is closed


async def test_every_name_of_the_table_is_there_with_its_kind_and_help(
    redis_url: str, settings: Settings, work: Work
) -> None:
    async with Engine(work.app, url=redis_url, settings=settings) as engine:
        families = (await scrape(engine)).families
        for metric in METRICS:
            family = families[metric.name.removesuffix("_total")]
            assert (family.type, family.documentation) == (metric.kind, metric.help)
            assert not any(label in ("instance", "instance_id", "key") for label in metric.labels)
        assert {name for name in families if name.startswith("memable_")} == {
            name.removesuffix("_total") for name in NAMES
        }
        # what the application counts by itself, and what prometheus-client knows of the process
        assert "python_info" in families
        # a rate needs a zero to start from
        counted = await scrape(engine)
        assert counted.of("memable_runs_total", workflow="order", outcome="lost") == 0


async def test_the_leader_tells_what_waits(
    redis_url: str, settings: Settings, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_COUNT_EVERY_S", 0.01)
    one_slot = settings.model_copy(update={"concurrency": 1})
    async with Engine(work.app, url=redis_url, settings=one_slot) as engine:
        invocations = [await engine.invoke("held") for _ in range(3)]
        await work.begun.wait()

        async def waits() -> bool:
            found = await scrape(engine)
            return found.by("memable_backlog", "workflow") == {"held": 2} and found.by(
                "memable_instances", "status", workflow="held"
            ) == {"running": 1, "queued": 2}

        await until(waits, "the backlog in the metrics")
        found = await scrape(engine)
        assert found["memable_slots_used"] == found["memable_slots"] == 1
        assert found.of("memable_backlog_oldest_seconds", workflow="held") >= 0
        work.may_end.set()
        for each in invocations:
            await each.result()


async def test_without_prometheus_client_health_is_served_and_metrics_say_what_to_install(
    redis_url: str, settings: Settings, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "memable.observability.exposition", raising=False)
    async with Engine(work.app, url=redis_url, settings=settings) as engine:
        said = "this needs prometheus_client, which is not installed: pip install 'memable[metrics]'\n"
        assert await ask(f"{url_of(engine)}/metrics") == (501, said)
        assert await ask(f"{url_of(engine)}/livez") == (200, "ok\n")


async def test_a_port_that_is_taken_is_one_line(redis_url: str, settings: Settings, work: Work) -> None:
    async with Engine(work.app, url=redis_url, settings=settings) as engine:
        taken = int(url_of(engine).rpartition(":")[2])
        second = Engine(Work().app, url=redis_url, settings=settings.model_copy(update={"metrics_port": taken}))
        with pytest.raises(SettingsError, match=f"^MEMABLE_METRICS_PORT is {taken} and .*Address already in use$"):
            await second.start()


async def test_without_a_port_nothing_is_served_and_nobody_is_told(redis_url: str, namespace: str, work: Work) -> None:
    async with Engine(work.app, url=redis_url, settings=Settings(namespace=namespace)) as engine:
        assert engine._runtime.endpoint_url is None
        assert (await (await engine.invoke("bad")).wait()).status == "failed"
