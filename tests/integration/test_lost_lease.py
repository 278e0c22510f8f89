"""A worker that was cut off for longer than a lease: its instance is another's, and it starts nothing more for it."""

from __future__ import annotations

import asyncio

from memable import App, Context, Engine, RetryPolicy, Settings
from tests.proxy import Proxy
from tests.worker_process import until


class Worker:
    """An engine with a step that waits for `may_end`, and then does what it was made for."""

    def __init__(self, url: str, namespace: str, *, fails: bool) -> None:
        self.calls = 0
        self.called, self.may_end = asyncio.Event(), asyncio.Event()
        self._fails = fails
        app = App()
        app.register("order", self._order)
        self.engine = Engine(app, url=url, settings=Settings(namespace=namespace, lease=1, shutdown_grace=0))

    async def _order(self, ctx: Context) -> str:
        return await ctx.step("charge:v1", self._charge, retry=RetryPolicy.fixed(3, 0))

    async def _charge(self) -> str:
        self.calls += 1
        self.called.set()
        await self.may_end.wait()
        if self._fails:
            raise ConnectionError("the payment API does not answer")
        return "charged"


async def test_it_starts_no_further_attempt_before_it_knows_that_the_instance_is_still_its_own(
    proxy: Proxy, redis_url: str, namespace: str
) -> None:
    cut_off, other = Worker(proxy.url, namespace, fails=True), Worker(redis_url, namespace, fails=False)
    async with cut_off.engine:
        await cut_off.engine.invoke("order", id="42")
        await cut_off.called.wait()
        proxy.pause()
        async with other.engine:
            await other.called.wait()  # the instance has been taken over
            cut_off.may_end.set()  # its attempt fails, and the policy allows another at once
            await asyncio.sleep(0)
            proxy.resume()
            await until(lambda: cut_off.engine._runtime.running == 0, "the end of the run that lost its lease")
            assert cut_off.calls == 1
            other.may_end.set()
            assert await other.engine.get("order", "42").result() == "charged"
            assert other.calls == 1


async def test_a_worker_that_is_told_that_a_run_is_over_stops_it_at_once_and_no_other(
    redis_url: str, namespace: str
) -> None:
    worker = Worker(redis_url, namespace, fails=False)
    settings = Settings(namespace=namespace, lease=60)  # so long that no renewal tells it
    worker.engine = Engine(worker.engine.app, url=redis_url, settings=settings)
    async with worker.engine as engine:
        await asyncio.gather(*(engine.invoke("order", id=id) for id in ("42", "43")))
        await until(lambda: worker.calls == 2, "both steps")
        online = engine._online()
        keys = online.store.keys.of("order", "42")
        lease, control = await online.connection.command("HMGET", keys.instance, "lease", "control")
        await online.connection.command("PUBLISH", control, b"over " + lease)
        await until(lambda: engine._runtime.running == 1, "the end of the run")
        worker.may_end.set()
        assert await engine.get("order", "43").result() == "charged"
