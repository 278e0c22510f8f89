"""Lesson 17. New code under running instances.

An instance may live for months, and code changes. A step is found by its key, not by its place: steps may be
reordered, added and removed while instances wait. Whoever changes what a step *means* gives its key a new version.

`deploy` stands for a new release: the old worker has gone, and one with other code for the same name comes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from memable import App, Context, Engine, Status, WorkflowFailed
from tests.fundamentals.starting import Start

Body = Callable[[Context], Awaitable[Any]]


class Deployment:
    """One release after another of the workflow `order`, and what its steps have done."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.called: list[str] = []

    def step(self, name: str) -> Callable[[], Awaitable[str]]:
        async def effect() -> str:
            self.called.append(name)
            return name

        return effect

    def deploy(self, body: Body) -> Engine:
        app = App()
        app.register("order", body)
        return self._start(app)

    async def released(self, before: Body, after: Body) -> Any:
        """The result of an instance that came to `pause` in the old code, and went on in the new."""
        async with self.deploy(before) as engine:
            instance = await engine.invoke("order", id="42")
            assert (await instance.wait()).key == "pause"
        async with self.deploy(after) as engine:
            instance = engine.get("order", "42")
            await instance.signal("pause")
            return await instance.result()


@pytest.fixture
def deployment(start: Start) -> Deployment:
    return Deployment(start)


async def test_steps_may_be_reordered(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("a", step("a"))
        await ctx.step("b", step("b"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> list[str]:
        results = [await ctx.step("b", step("b")), await ctx.step("a", step("a"))]
        await ctx.suspend("pause")
        return results

    assert await deployment.released(before, after) == ["b", "a"]
    assert deployment.called == ["a", "b"]


async def test_a_step_may_be_added_anywhere(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("a", step("a"))
        await ctx.step("b", step("b"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> list[str]:
        results = [await ctx.step(key, step(key)) for key in ("first", "a", "between", "b")]
        await ctx.suspend("pause")
        return [*results, await ctx.step("last", step("last"))]

    assert await deployment.released(before, after) == ["first", "a", "between", "b", "last"]
    assert deployment.called == ["a", "b", "first", "between", "last"]


async def test_a_step_may_be_removed(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("a", step("a"))
        await ctx.step("b", step("b"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> str:
        await ctx.suspend("pause")
        return await ctx.step("b", step("b"))

    assert await deployment.released(before, after) == "b"
    assert deployment.called == ["a", "b"]


async def test_a_step_with_a_new_version_is_called_again(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("price:v1", step("old price"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> str:
        price = await ctx.step("price:v2", step("new price"))
        await ctx.suspend("pause")
        return price

    assert await deployment.released(before, after) == "new price"
    assert deployment.called == ["old price", "new price"]


async def test_steps_may_come_to_run_concurrently(deployment: Deployment) -> None:
    import asyncio

    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("a", step("a"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> list[Any]:
        return await asyncio.gather(*(ctx.step(key, step(key)) for key in "ba"), ctx.suspend("pause"))

    assert await deployment.released(before, after) == ["b", "a", None]
    assert deployment.called == ["a", "b"]


async def test_a_wait_that_the_new_code_does_not_have_is_withdrawn(deployment: Deployment) -> None:
    async def before(ctx: Context) -> None:
        await ctx.suspend("pause")

    async def after(ctx: Context) -> str:
        answer: str = await ctx.suspend("another question")
        return answer

    async with deployment.deploy(before) as engine:
        await (await engine.invoke("order", id="42")).wait()
    async with deployment.deploy(after) as engine:
        instance = engine.get("order", "42")
        await instance.resume()
        assert (await instance.wait()).key == "another question"
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.waiting_on == ["another question"]
        await instance.signal("another question", "answer")
        assert await instance.result() == "answer"


async def test_a_bug_is_fixed_and_the_failed_instance_resumed(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("charge", step("charge"))
        raise ZeroDivisionError("a bug")

    async def after(ctx: Context) -> list[str]:
        return [await ctx.step("charge", step("charge")), await ctx.step("ship", step("ship"))]

    async with deployment.deploy(before) as engine:
        assert (await (await engine.invoke("order", id="42")).wait()).status is Status.FAILED
    async with deployment.deploy(after) as engine:
        instance = engine.get("order", "42")
        await instance.resume()
        assert await instance.result() == ["charge", "ship"]
    assert deployment.called == ["charge", "ship"]


class OldReceipt(BaseModel):
    number: int


class NewReceipt(BaseModel):
    number: int
    currency: str = "EUR"


class OtherReceipt(BaseModel):
    reference: str


async def test_a_result_may_get_a_compatible_type(deployment: Deployment) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("charge", OldReceipt.model_validate, {"number": 7}, returns=OldReceipt)
        await ctx.suspend("pause")

    async def after(ctx: Context) -> NewReceipt:
        receipt = await ctx.step("charge", NewReceipt.model_validate, {"number": 8}, returns=NewReceipt)
        await ctx.suspend("pause")
        return receipt

    assert await deployment.released(before, after) == NewReceipt(number=7, currency="EUR")


async def test_a_result_that_does_not_fit_its_new_type_fails_the_instance_and_says_what_to_do(
    deployment: Deployment,
) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("charge", OldReceipt.model_validate, {"number": 7}, returns=OldReceipt)
        await ctx.suspend("pause")

    async def after(ctx: Context) -> None:
        await ctx.step("charge", OtherReceipt.model_validate, {"reference": "x"}, returns=OtherReceipt)

    with pytest.raises(WorkflowFailed, match="the record of step 'charge' of order/42: type mismatch") as failed:
        await deployment.released(before, after)
    assert "give the key a new version" in failed.value.error_message


async def test_a_worker_takes_only_the_workflows_that_it_has(start: Start) -> None:
    with_it, without_it = App(), App()

    @with_it.workflow("order")
    async def order(ctx: Context) -> str:
        return "done"

    @without_it.workflow("other")
    async def other(ctx: Context) -> str:
        return "other"

    async with start(without_it) as engine:
        instance = await engine.invoke(order, id="42")  # known by its object, run by nobody here
        assert await (await engine.invoke(other)).result() == "other"
        assert str((await engine.list_instances("order")).items[0].state) == "queued"
        async with start(with_it):
            assert await instance.result() == "done"
