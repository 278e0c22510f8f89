"""`/livez` and `/readyz` of a worker: red when it should be, and with the reason."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import memable
from memable import App, Context, Engine, Settings
from memable.cli.fleet import Fleet
from memable.embedded import TemporaryServer
from tests.scraping import Answer, ask, get, url_of
from tests.worker_process import TOO_LONG_S, Started, until

LEASE_S = 1.0
OK = Answer(200, "ok\n")


async def turns(url: str, predicate: Callable[[Answer], bool]) -> None:
    async def asked() -> bool:
        return predicate(await ask(url))

    await until(asked, f"another answer of {url}")


async def says(url: str, answer: tuple[int, str]) -> None:
    """At some time: on a machine that is slow enough every loop looks blocked for a moment."""
    await turns(url, lambda each: each == answer)


async def test_livez_is_red_while_the_loop_is_blocked_and_says_by_what(redis_url: str, namespace: str) -> None:
    """The loop cannot answer meanwhile: a thread of the test looks, and lets it go on once it has seen red."""
    app, seen = App(), list[Answer]()
    blocked, may_go_on = threading.Event(), threading.Event()

    async def block() -> None:
        blocked.set()
        may_go_on.wait(TOO_LONG_S)

    @app.workflow("careless")
    async def careless(ctx: Context) -> None:
        await ctx.step("block:v1", block)

    def look(url: str) -> None:
        blocked.wait(TOO_LONG_S)
        try:
            while not seen or (seen[-1].status == 200 and len(seen) < 10_000):
                seen.append(get(f"{url}/livez"))
            seen.append(get(f"{url}/readyz"))
        finally:
            may_go_on.set()

    settings = Settings(namespace=namespace, metrics_port=0, lease=LEASE_S)
    async with Engine(app, url=redis_url, settings=settings) as engine:
        url = url_of(engine)
        await says(f"{url}/livez", OK)
        await says(f"{url}/readyz", OK)
        looking = asyncio.create_task(asyncio.to_thread(look, url))
        await (await engine.invoke(careless, id="42")).result()
        await looking
        live, ready = seen[-2:]
        assert live.status == ready.status == 503
        for each in (live, ready):
            assert each.text.startswith("the event loop has been blocked for ")
            assert each.text.endswith(" s by step 'block:v1' of careless/42\n")
        await says(f"{url}/livez", OK)


async def test_livez_is_red_when_the_loop_that_takes_work_has_ended(redis_url: str, namespace: str) -> None:
    app = App()
    async with Engine(app, url=redis_url, settings=Settings(namespace=namespace, metrics_port=0)) as engine:
        taking, _ = engine._runtime._loops
        taking.cancel()
        await says(f"{url_of(engine)}/livez", (503, "the loop that takes work has ended\n"))


async def test_livez_is_red_when_the_loop_that_takes_work_is_stuck(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memable.runtime.intake._STUCK_S", 0.0)  # so every read counts
    async with Engine(App(), url=redis_url, settings=Settings(namespace=namespace, metrics_port=0)) as engine:
        await says(f"{url_of(engine)}/livez", OK)  # without workflows it reads nothing
    async with Engine(reading(), url=redis_url, settings=Settings(namespace=namespace, metrics_port=0)) as engine:
        await says(f"{url_of(engine)}/livez", (503, "the loop that takes work is stuck\n"))


def reading() -> App:
    """With something to read."""
    app = App()

    @app.workflow("idle")
    async def idle(ctx: Context) -> None: ...

    return app


async def test_readyz_is_red_while_redis_is_away_and_livez_is_not(server: TemporaryServer) -> None:
    async with Engine(App(), url=server.url, settings=Settings(metrics_port=0)) as engine:
        url = url_of(engine)
        await says(f"{url}/readyz", OK)
        await asyncio.to_thread(server.kill)
        await says(f"{url}/readyz", (503, "Redis does not serve it\n"))
        await says(f"{url}/livez", OK)
        await asyncio.to_thread(server.start)
        await says(f"{url}/readyz", OK)


async def test_a_worker_that_stops_is_not_ready_but_lives_until_its_runs_have_ended(
    worker: Started, server: TemporaryServer, tmp_path: Path
) -> None:
    async with worker(MEMABLE_METRICS_PORT="0") as process, memable.connect(server.url) as client:
        await process.logged("metrics and health are at http://127.0.0.1:")
        url = process.log.partition("metrics and health are at ")[2].split()[0]
        await says(f"{url}/readyz", OK)
        invocation = await client.invoke("hold", "held")
        await until((tmp_path / "held.started").exists, "the step")
        process.process.send_signal(signal.SIGTERM)
        await says(f"{url}/readyz", (503, "it is stopping\n"))
        await says(f"{url}/livez", OK)
        assert "memable_slots_used 1.0" in (await ask(f"{url}/metrics")).text
        (tmp_path / "held.go").touch()
        assert await invocation.result() == process.pid
        assert await process.ended() == 0


def test_processes_of_a_fleet_have_ports_of_their_own() -> None:
    fleet = Fleet([], 3, is_burst=False, metrics_port=9400)
    environments = [fleet._environment(place) for place in fleet._places]
    assert [each and each["MEMABLE_METRICS_PORT"] for each in environments] == ["9400", "9401", "9402"]
    # any port, or none: as the environment says
    for port in (0, None):
        fleet = Fleet([], 2, is_burst=False, metrics_port=port)
        assert [fleet._environment(place) for place in fleet._places] == [None, None]


@pytest.mark.parametrize("path", ["/", "/healthz"])
async def test_another_path_is_told_which_there_are(redis_url: str, namespace: str, path: str) -> None:
    async with Engine(App(), url=redis_url, settings=Settings(namespace=namespace, metrics_port=0)) as engine:
        await says(url_of(engine) + path, (404, "there is only /metrics, /livez, /readyz\n"))
