"""`memable.testing`, as authors use it."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from unittest.mock import AsyncMock, Mock

import pytest

from memable import App, Context, RetryPolicy, StepFailed, SuspendPoint, WorkflowFailed
from memable.testing import TestEngine, check_replays, run
from memable.testing.fixtures import StartEngine, memable_engine
from tests.worker_process import until

app = App()
APPROVAL = SuspendPoint("approval:v1", bool)

__all__ = ["memable_engine"]  # a fixture, as a conftest.py would import it


async def charge(amount: int) -> str:
    raise ConnectionError("no payments from tests")


def ship(receipt: str) -> str:
    raise ConnectionError("no parcels from tests")


@app.workflow("order")
async def order(ctx: Context, amount: int) -> str:
    receipt = await ctx.step("charge:v1", charge, amount)
    if not await ctx.suspend(APPROVAL):
        return "refused"
    await ctx.timer("cooling-off:v1", timedelta(days=2))
    await ctx.timer("packing:v1", timedelta(hours=1))
    return await ctx.step("ship:v1", ship, receipt)


async def fake_charge(amount: int) -> str:
    return f"paid {amount}"


FAKES = {"charge:v1": fake_charge, "ship:v1": lambda receipt: f"shipped, {receipt}"}


async def test_time_passes_at_once_and_one_timer_leads_to_the_next(memable_engine: StartEngine) -> None:
    async with memable_engine(app, overrides=FAKES) as engine:
        invocation = await engine.invoke(order, 5)
        await invocation.wait()
        await invocation.signal(APPROVAL, True)
        await engine.advance(timedelta(days=1))
        assert str(await invocation.wait()) == "suspended: cooling-off:v1"
        await engine.advance(timedelta(days=1, minutes=59))
        assert str(await invocation.wait()) == "suspended: packing:v1"
        engine.assert_not_called("ship:v1")
        await engine.advance(timedelta(minutes=1))
        assert await invocation.result() == "shipped, paid 5"
        engine.assert_called("ship:v1", times=1)
        assert [(call.key, call.attempt, call.args) for call in engine.calls] == [
            ("charge:v1", 1, (5,)),
            ("ship:v1", 1, ("paid 5",)),
        ]


async def test_what_is_not_due_yet_does_not_happen() -> None:
    async with TestEngine(app, overrides=FAKES) as engine:
        invocation = await engine.invoke(order, 5)
        await invocation.wait()
        await invocation.signal(APPROVAL, True)
        await engine.advance(2 * 24 * 3600 - 60)
        assert str(await invocation.wait()) == "suspended: cooling-off:v1"
        assert await engine.advance_to_next()
        assert str(await invocation.wait()) == "suspended: packing:v1"


async def test_all_is_settled_when_the_children_of_what_was_cancelled_are_cancelled_too() -> None:
    families = App()

    @families.workflow("child")
    async def child(ctx: Context, number: int) -> None:
        await ctx.suspend("go")

    @families.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.fan_out("children", range(5), child)

    async with TestEngine(families) as engine:
        instance = await engine.invoke(parent)
        await engine.settle()
        await instance.cancel()
        await engine.settle()
        children = (await engine.list_instances(child)).items
        assert [each.status for each in children] == ["cancelled"] * 5


async def test_time_goes_forward_only() -> None:
    async with TestEngine(app) as engine:
        with pytest.raises(ValueError, match="time only goes forward"):
            await engine.advance(-1)
        assert not await engine.advance_to_next()


async def test_assertions_name_what_was_called() -> None:
    async with TestEngine(app, overrides=FAKES) as engine:
        await (await engine.invoke(order, 5)).wait()
        engine.assert_called("charge:v1")
        with pytest.raises(AssertionError, match="'ship:v1' was not called at all; called were: 'charge:v1'"):
            engine.assert_called("ship:v1")
        with pytest.raises(AssertionError, match="'charge:v1' was not called 2 times, but 1"):
            engine.assert_called("charge:v1", times=2)
        with pytest.raises(AssertionError, match="'charge:v1' was called"):
            engine.assert_not_called("ship:v1", "charge:v1")


async def test_mocks_stand_in_for_steps_of_either_kind() -> None:
    fakes = {"charge:v1": AsyncMock(return_value="paid"), "ship:v1": Mock(return_value="shipped")}
    assert await run(order, 5, overrides=fakes, signals={APPROVAL: True}) == "shipped"
    fakes["charge:v1"].assert_awaited_once_with(5)
    fakes["ship:v1"].assert_called_once_with("paid")


async def test_a_fake_of_another_type_than_the_step_fails_as_the_step_would() -> None:
    with pytest.raises(WorkflowFailed, match=r"charge:v1.*type mismatch"):
        await run(order, 5, overrides={"charge:v1": lambda amount: amount})


async def test_a_failing_fake_is_retried_by_the_policy_of_its_step() -> None:
    other = App(default_retry=RetryPolicy.fixed(2, 0.001))

    @other.workflow("pay")
    async def pay(ctx: Context) -> str:
        try:
            return await ctx.step("charge:v1", charge, 1)
        except StepFailed as error:
            return error.error_message

    async with TestEngine(other, overrides={"charge:v1": Mock(side_effect=TimeoutError("busy"))}) as engine:
        assert await (await engine.invoke(pay)).result() == "busy"
        engine.assert_called("charge:v1", times=3)


async def test_what_stands_in_for_a_step_must_be_something_to_call() -> None:
    with pytest.raises(TypeError, match=r"overrides\['charge:v1'\] is called in place of the step, and cannot be"):
        TestEngine(app, overrides={"charge:v1": "paid"})  # type: ignore[dict-item]  # that is the point


async def test_run_says_what_it_waits_for() -> None:
    with pytest.raises(AssertionError, match=r"order/\S+ waits at 'approval:v1' for ever: give its payload"):
        await run(order, 5, overrides=FAKES)
    assert await run(order, 5, overrides=FAKES, signals={"approval:v1": False}) == "refused"


async def test_a_workflow_that_replays_cleanly_survives_every_death() -> None:
    # two steps, and of each the moment before its call and the one after it
    assert await check_replays(order, 5, overrides=FAKES, signals={APPROVAL: True}) == 4


async def test_a_failure_is_a_result_that_must_be_the_same_too() -> None:
    assert await check_replays(order, 5, overrides={"charge:v1": fake_charge}, signals={APPROVAL: True}) == 4


async def test_chance_between_steps_is_found() -> None:
    other = App()
    dice = random.Random(1)

    @other.workflow("gamble")
    async def gamble(ctx: Context) -> int:
        number = dice.randrange(1_000_000)
        await ctx.step(f"bet on {number}", lambda: None, returns=None)
        await ctx.step("pay", lambda: None, returns=None)
        return number

    with pytest.raises(AssertionError, match="gamble does not survive every death") as caught:
        await check_replays(gamble)
    assert "killed at step 'pay', before it was called: the result is" in str(caught.value)
    assert "the record of 'bet on" in str(caught.value)


async def test_an_instance_that_never_rests_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    other = App()

    @other.workflow("busy")
    async def busy(ctx: Context) -> None:
        await ctx.step("wait", asyncio.Event().wait, returns=bool)

    monkeypatch.setattr("memable.testing.engine._SETTLES_WITHIN_S", 0.1)
    async with TestEngine(other) as engine:
        await engine.invoke(busy, id="1")
        await until(lambda: engine._runtime.running == 1, "it runs")
        with pytest.raises(TimeoutError, match="busy/1 still runs"):
            await engine.settle()


async def test_of_points_that_race_one_is_answered_and_messages_are_sent() -> None:
    app = App()

    @app.workflow("chat")
    async def chat(ctx: Context) -> list[object]:
        name, said = await ctx.first("which", {"yes": ctx.suspend("yes"), "no": ctx.suspend("no")})
        return [name, said, await ctx.receive("1", "lines"), await ctx.receive("2", "lines")]

    answers = {"yes": 1, "no": 2}
    assert await run(chat, signals=answers, messages={"lines": ["a", "b"]}) == ["yes", 1, "a", "b"]
    with pytest.raises(AssertionError, match=r"waits at '2' for ever: give its payload in `signals`, or in `messages`"):
        await run(chat, signals=answers, messages={"lines": ["a"]})


async def test_messages_to_what_is_over_already_are_sent_to_nobody() -> None:
    app = App()

    @app.workflow("deaf")
    async def deaf(ctx: Context) -> str:
        return "over"

    assert await run(deaf, messages={"lines": list(range(100))}) == "over"
