"""Lesson 17. New code under running instances.

An instance may live for months, and code changes. A step is found by its key, not by its place: steps may be
reordered, added and removed while instances wait. Whoever changes what a step *means* gives its key a new version. A
result whose type has changed is read in its new form, or made new by `upgrade=`.

`deploy` stands for a new release: the old worker has gone, and one with other code for the same name comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import memable
from memable import App, Client, Context, Engine, Status, WorkflowFailed
from memable.embedded import TemporaryServer
from tests.fundamentals.starting import Start
from tests.resting import replayed
from tests.worker_process import Started, WorkerProcess

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

    async def released(self, before: Body, after: Body, *later: str) -> Any:
        """The result of an instance that came to `pause` in the old code, and went on in the new, by points `later`."""
        async with self.deploy(before) as engine:
            instance = await engine.invoke("order", id="42")
            assert (await instance.wait()).key == "pause"
        async with self.deploy(after) as engine:
            return await replayed(engine.get("order", "42"), "pause", *later)


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


async def test_a_renamed_function_is_the_same_step_and_a_renamed_key_another(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("charge:v1", step("charge"))
        await ctx.step("ship:v1", step("ship"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> list[str]:
        results = [
            await ctx.step("charge:v1", step("charge_card")),
            await ctx.step("send:v1", step("ship")),
        ]
        await ctx.suspend("pause")
        return results

    assert await deployment.released(before, after) == ["charge", "ship"]
    # whoever wants another name for the same effect renames the function, and keeps the key
    assert deployment.called == ["charge", "ship", "ship"]


async def test_a_step_may_move_into_a_function_or_out_of_a_branch(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        if await ctx.step("a", step("a")) == "a":
            await ctx.step("b", step("b"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> list[str]:
        async def both() -> list[str]:
            return [await ctx.step(key, step(key)) for key in "ba"]

        results = await both()
        await ctx.suspend("pause")
        return results

    assert await deployment.released(before, after) == ["b", "a"]
    assert deployment.called == ["a", "b"]


async def test_a_wait_may_be_added_before_what_is_done_already(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("a", step("a"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> str:
        await ctx.timer("first:v1", 0.01)
        await ctx.suspend("pause")
        return await ctx.step("a", step("a"))

    assert await deployment.released(before, after) == "a"
    assert deployment.called == ["a"]


async def test_a_loop_of_steps_may_become_a_map(deployment: Deployment) -> None:
    called = list[int]()

    async def double(number: int) -> int:
        called.append(number)
        return 2 * number

    async def before(ctx: Context) -> None:
        for index, number in enumerate([5, 6]):
            await ctx.step(f"double:v1[{index}]", double, number)
        await ctx.suspend("pause")

    async def after(ctx: Context) -> list[int]:
        results = await ctx.map("double:v1", [5, 6, 7], double)
        await ctx.suspend("pause")
        return results

    assert await deployment.released(before, after) == [10, 12, 14]
    assert called == [5, 6, 7]


async def test_a_key_keeps_its_kind(deployment: Deployment) -> None:
    step = deployment.step

    async def before(ctx: Context) -> None:
        await ctx.step("a", step("a"))
        await ctx.suspend("pause")

    async def after(ctx: Context) -> None:
        await ctx.suspend("a")

    with pytest.raises(WorkflowFailed, match="StepConflict: suspend point 'a' of order/42: this key was recorded as a"):
        await deployment.released(before, after)


async def test_steps_may_come_to_run_concurrently(deployment: Deployment) -> None:
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
    assert "give the key a new version, so that the step is called again, or pass upgrade" in failed.value.error_message


# ── an old value in its new form ─────────────────────────────────────────────────────────────────────────────────────


async def old_code(ctx: Context) -> None:
    await ctx.step("charge", OldReceipt.model_validate, {"number": 7}, returns=OldReceipt)
    await ctx.suspend("pause")


async def never_called() -> OtherReceipt:
    raise AssertionError("there is a record")


async def test_an_old_result_may_be_upgraded(deployment: Deployment) -> None:
    upgraded = list[Any]()

    def upgrade(old: Any) -> OtherReceipt:
        upgraded.append(old)
        return OtherReceipt(reference=f"no. {old['number']}")

    async def after(ctx: Context) -> OtherReceipt:
        receipt = await ctx.step("charge", never_called, upgrade=upgrade)
        await ctx.suspend("pause")
        await ctx.suspend("later")
        return receipt

    assert await deployment.released(old_code, after, "later") == OtherReceipt(reference="no. 7")
    # once in each run: the record stays as it is, so that the old code could go on, too
    assert upgraded == [{"number": 7}] * 2


async def test_an_upgrade_is_not_asked_for_what_fits(deployment: Deployment) -> None:
    def upgrade(old: Any) -> NewReceipt:
        raise AssertionError(old)

    async def after(ctx: Context) -> NewReceipt:
        receipt = await ctx.step("charge", NewReceipt.model_validate, {}, returns=NewReceipt, upgrade=upgrade)
        await ctx.step("new", NewReceipt.model_validate, {"number": 8}, returns=NewReceipt, upgrade=upgrade)
        await ctx.suspend("pause")
        return receipt

    assert await deployment.released(old_code, after) == NewReceipt(number=7)


async def test_what_an_upgrade_gives_passes_through_the_codec(deployment: Deployment) -> None:
    async def after(ctx: Context) -> str:
        receipt = await ctx.step("charge", never_called, upgrade=lambda old: {"reference": str(old["number"])})
        return f"{type(receipt).__name__} {receipt.reference}"

    assert await deployment.released(old_code, after) == "OtherReceipt 7"


async def test_an_upgrade_that_gives_another_type_is_a_type_mismatch(deployment: Deployment) -> None:
    async def after(ctx: Context) -> None:
        await ctx.step("charge", never_called, upgrade=lambda old: old)

    with pytest.raises(
        WorkflowFailed,
        match="TypeMismatch: what upgrade= made of the record of step 'charge' of order/42: type mismatch: expected Ot",
    ):
        await deployment.released(old_code, after)


async def test_what_an_upgrade_raises_is_an_error_of_the_workflow_that_a_fix_and_a_resume_mend(
    deployment: Deployment,
) -> None:
    async def broken(ctx: Context) -> None:
        await ctx.step("charge", never_called, upgrade=lambda old: old["no such field"])

    async def fixed(ctx: Context) -> str:
        receipt = await ctx.step("charge", never_called, upgrade=lambda old: OtherReceipt(reference="fixed"))
        return receipt.reference

    with pytest.raises(WorkflowFailed, match="KeyError: 'no such field'"):
        await deployment.released(old_code, broken)
    async with deployment.deploy(fixed) as engine:
        instance = engine.get("order", "42")
        await instance.resume()
        assert await instance.result() == "fixed"


async def test_an_upgrade_is_a_plain_function(deployment: Deployment) -> None:
    async def upgrade(old: Any) -> OtherReceipt:
        return OtherReceipt(reference="")

    async def after(ctx: Context) -> None:
        wrong: Any = upgrade
        await ctx.step("charge", never_called, upgrade=wrong)

    with pytest.raises(WorkflowFailed, match=r"TypeError: step 'charge': upgrade=.* must be a plain function"):
        await deployment.released(old_code, after)


# ── two releases at once ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("invoke-unannounced")
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


@pytest.fixture
def release(worker: Started) -> Started:
    """Makes worker processes of an old or a new release of `tests.apps.release`."""

    def make(*names: str, **environment: str) -> WorkerProcess:
        (name,) = names
        # a lease that a busy machine does not lose: nothing is to be called twice
        settings = {"RELEASE": name, "MEMABLE_LEASE": "30", **environment}
        return worker("-m", "arq", "tests.apps.release.WorkerSettings", **settings)

    return make


async def came_to_the_pause(client: Client, ids: range) -> None:
    states = await asyncio.gather(*(client.get("order", str(each)).wait() for each in ids))
    assert {state.key for state in states} == {"go:v1"}


async def went_on(client: Client, ids: range) -> list[Any]:
    instances = [await client.signal("order", str(each), "go:v1") for each in ids]
    return list(await asyncio.gather(*(instance.result() for instance in instances)))


async def test_instances_go_on_in_a_new_release_and_back_in_the_old_one(
    server: TemporaryServer, release: Started, tmp_path: Path
) -> None:
    first, second = range(5), range(5, 10)
    async with memable.connect(server.url) as client:
        async with release("old") as old:
            await client.invoke_many("order", [None] * 5, ids=[str(each) for each in first])
            await came_to_the_pause(client, first)
            assert await old.terminate() == 0
        async with release("new") as new:
            assert await went_on(client, first) == [["charge by old", "reserve by new", "ship by new"]] * 5
            await client.invoke_many("order", [None] * 5, ids=[str(each) for each in second])
            await came_to_the_pause(client, second)
            assert await new.terminate() == 0
        async with release("old"):
            assert await went_on(client, second) == [["charge by new", "ship by old"]] * 5
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    assert effects == Counter(f"{what} of {each}" for each in range(10) for what in ("charge", "reserve", "ship"))


async def test_old_and_new_code_may_run_at_once_and_a_worker_only_takes_the_workflows_that_it_has(
    server: TemporaryServer, release: Started, tmp_path: Path
) -> None:
    ids = range(30)
    async with release("old"), release("new") as new, memable.connect(server.url) as client:
        await client.invoke_many("order", [None] * 30, ids=[str(each) for each in ids])
        invoices = [await client.invoke("invoice") for _ in range(10)]
        assert [await each.result() for each in invoices] == ["invoice by new"] * 10
        await came_to_the_pause(client, ids)
        for charged, *reserved, shipped in await went_on(client, ids):
            assert charged.startswith("charge by ")
            assert reserved in ([], ["reserve by new"])
            assert shipped.startswith("ship by ")
        assert await new.terminate() == 0
        waits = await client.invoke("invoice", id="waits")
        another = await client.invoke("order", id="another")
        assert (await another.wait()).key == "go:v1"  # the old release takes what it has
        metadata = await waits.metadata()
        assert metadata is not None
        assert str(metadata.state) == "queued"
        async with release("new"):
            assert await waits.result() == "invoice by new"
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    # whichever release did it, a step was called once
    assert set(effects.values()) == {1}
    assert {f"{what} of {each}" for each in ids for what in ("charge", "ship")} <= effects.keys()
