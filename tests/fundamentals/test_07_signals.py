"""Lesson 7. Waiting for the outside.

`await ctx.suspend(point)` waits until somebody sends a signal: a person who approves, a webhook that arrives. A
`SuspendPoint` is the key and the type of the payload, shared by both sides. While an instance waits, no task of it
is in memory; it may wait for months, and any worker goes on with it. A signal is never lost and never doubled. One
that comes before the instance waits for it is rejected, or with `buffer=True` kept until it does.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from pydantic import BaseModel

from memable import (
    App,
    Context,
    Engine,
    InputConflict,
    Invocation,
    SignalRejected,
    SignalSuperseded,
    Status,
    StepConflict,
    StepFailed,
    StepKind,
    StepState,
    SuspendPoint,
    TypeMismatch,
    Workflow,
    WorkflowFailed,
)
from tests.fundamentals.starting import Start
from tests.worker_process import until


class Decision(BaseModel):
    by: str
    approved: bool


class Large:
    """Something that a workflow holds."""


APPROVAL = SuspendPoint("approval:v1", bool)
DECISION = SuspendPoint("decision:v1", Decision)


def approving() -> tuple[App, Workflow[None, bool]]:
    """The smallest workflow that waits."""
    app = App()

    @app.workflow("approving")
    async def approving(ctx: Context) -> bool:
        return await ctx.suspend(APPROVAL)

    return app, approving


async def suspended(engine: Engine, workflow: Workflow[None, bool]) -> Invocation[bool]:
    """An instance that waits."""
    instance = await engine.invoke(workflow, id="42")
    assert (await instance.wait()).status is Status.SUSPENDED
    return instance


@pytest.mark.spec("suspend", "signal", "state-suspended")
async def test_an_instance_waits_for_a_signal_and_gets_its_payload(start: Start) -> None:
    app, workflow = approving()
    async with start(app) as engine:
        instance = await engine.invoke(workflow)
        assert str(await instance.wait()) == "suspended: approval:v1"
        await instance.signal(APPROVAL, True)
        assert await instance.result() is True


@pytest.mark.spec("suspend")
async def test_the_payload_is_of_the_type_that_the_point_declares(start: Start) -> None:
    app = App()

    @app.workflow("deciding")
    async def deciding(ctx: Context) -> str:
        decision = await ctx.suspend(DECISION)
        return f"{type(decision).__name__} by {decision.by}"

    async with start(app) as engine:
        instance = await engine.invoke(deciding, id="1")
        await instance.wait()
        await instance.signal(DECISION, Decision(by="Ada", approved=True))
        assert await instance.result() == "Decision by Ada"
        # with a bare key, plain JSON that fits will do: what a webhook brings
        instance = await engine.invoke(deciding, id="2")
        await instance.wait()
        await instance.signal("decision:v1", {"by": "Bob", "approved": False})
        assert await instance.result() == "Decision by Bob"


@pytest.mark.spec("state", "state-suspended", "get-metadata")
async def test_it_shows_what_it_waits_for(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.suspend(APPROVAL, status="Waiting for manager approval")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        state = await instance.wait()
        assert str(state) == "suspended: Waiting for manager approval"
        assert (state.key, state.is_at_rest, state.is_terminal) == ("approval:v1", True, False)
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.waiting_on == ["approval:v1"]
        await instance.signal(APPROVAL, True)
        await instance.result()


async def test_records_are_kept_across_a_wait(start: Start) -> None:
    app, called = App(), list[str]()

    async def charge() -> str:
        called.append("charge")
        return "paid"

    @app.workflow("order")
    async def order(ctx: Context) -> list[object]:
        return [await ctx.step("charge:v1", charge), await ctx.suspend(APPROVAL), await ctx.step("again", charge)]

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        assert called == ["charge"]
        await instance.signal(APPROVAL, False)
        assert await instance.result() == ["paid", False, "paid"]
    assert called == ["charge", "charge"]


@pytest.mark.spec("suspend")
async def test_an_instance_may_wait_at_several_points_one_after_the_other(start: Start) -> None:
    app = App()

    @app.workflow("stages")
    async def stages(ctx: Context) -> list[str]:
        return [await ctx.suspend(f"stage {number}") for number in range(3)]

    async with start(app) as engine:
        instance = await engine.invoke(stages)
        for number in range(3):
            assert (await instance.wait()).key == f"stage {number}"
            await instance.signal(f"stage {number}", f"passed {number}")
        assert await instance.result() == ["passed 0", "passed 1", "passed 2"]


async def test_an_instance_may_wait_after_a_failed_step(start: Start) -> None:
    app = App()

    async def charge() -> None:
        raise ValueError("card expired")

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("charge:v1", charge)
        except StepFailed as failure:
            other_card = await ctx.suspend("other card", status=failure.error_message)
            return f"paid with {other_card}"
        return "paid"

    async with start(app) as engine:
        instance = await engine.invoke(order)
        assert str(await instance.wait()) == "suspended: card expired"
        await instance.signal("other card", "debit")
        assert await instance.result() == "paid with debit"


@pytest.mark.spec("resume-suspended")
async def test_resuming_without_a_signal_comes_back_to_the_same_wait(start: Start) -> None:
    app, workflow = approving()
    async with start(app) as engine:
        instance = await suspended(engine, workflow)
        await instance.resume()
        assert str(await instance.wait()) == "suspended: approval:v1"
        await instance.signal(APPROVAL, True)
        assert await instance.result() is True


@pytest.mark.spec("suspend-memory")
async def test_while_an_instance_waits_nothing_of_it_is_in_memory(start: Start) -> None:
    app, seen = App(), list[weakref.ref[Large]]()

    @app.workflow("waits")
    async def waits(ctx: Context) -> bool:
        large = Large()
        seen.append(weakref.ref(large))
        return await ctx.suspend(APPROVAL)

    async with start(app) as engine:
        instances = [await engine.invoke(waits) for _ in range(5)]
        for instance in instances:
            await instance.wait()
        await until(lambda: gc.collect() >= 0 and not any(each() for each in seen), "the frames are gone")
        await asyncio.gather(*(instance.signal(APPROVAL, True) for instance in instances))
        assert [await instance.result() for instance in instances] == [True] * 5


@pytest.mark.spec("live-equals-replay")
async def test_a_payload_is_the_same_when_it_is_delivered_and_in_every_replay(start: Start) -> None:
    app, seen, begun, delivered = App(), list[Decision](), asyncio.Event(), asyncio.Event()

    async def until_delivered() -> None:
        begun.set()
        await delivered.wait()

    @app.workflow("deciding")
    async def deciding(ctx: Context) -> None:
        async def decide() -> None:
            seen.append(await ctx.suspend(DECISION))
            delivered.set()

        # the step keeps the run from parking: the payload comes to the run that waits for it
        await asyncio.gather(decide(), ctx.step("long", until_delivered))
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(deciding)
        await begun.wait()
        await instance.signal(DECISION, sent := Decision(by="Ada", approved=True), buffer=True)
        for _ in range(2):
            await instance.wait()
            await instance.resume()
        await instance.signal("pause", buffer=True)
        await instance.result()
    assert len(seen) >= 3
    assert all(each == sent and type(each) is Decision for each in seen)
    assert len({id(each) for each in (*seen, sent)}) == len(seen) + 1


async def test_a_wait_is_recorded_with_its_payload(start: Start) -> None:
    app, workflow = approving()
    async with start(app) as engine:
        instance = await suspended(engine, workflow)
        [step] = await engine.steps(workflow, "42")
        assert (step.key, step.kind, step.state.value, step.result) == (
            "approval:v1",
            StepKind.SIGNAL,
            "suspended",
            None,
        )
        await instance.signal(APPROVAL, True)
        await instance.result()
        [step] = await engine.steps(workflow, "42")
        assert (step.state.value, step.result) == ("completed", True)


# ── signals that are refused ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("signal-rejected")
async def test_a_signal_to_a_wrong_key_is_rejected(start: Start) -> None:
    app, workflow = approving()
    async with start(app) as engine:
        instance = await suspended(engine, workflow)
        with pytest.raises(SignalRejected, match="'aproval' to approving/42 rejected: the instance does not wait"):
            await instance.signal("aproval", True)
        await instance.signal(APPROVAL, True)
        assert await instance.result() is True


@pytest.mark.spec("signal-rejected")
async def test_a_signal_to_a_point_of_the_future_is_rejected(start: Start) -> None:
    app = App()

    @app.workflow("stages")
    async def stages(ctx: Context) -> list[str]:
        return [await ctx.suspend("now"), await ctx.suspend("later")]

    async with start(app) as engine:
        instance = await engine.invoke(stages)
        await instance.wait()
        with pytest.raises(SignalRejected, match="does not wait at this point"):
            await instance.signal("later", "too early")
        await instance.signal("now", "1")
        await instance.wait()
        await instance.signal("later", "2")
        assert await instance.result() == ["1", "2"]


@pytest.mark.spec("signal-superseded")
async def test_a_signal_to_a_completed_point_is_superseded_even_when_the_instance_is_over(start: Start) -> None:
    app = App()

    @app.workflow("stages")
    async def stages(ctx: Context) -> list[str]:
        return [await ctx.suspend("first"), await ctx.suspend("second")]

    async with start(app) as engine:
        instance = await engine.invoke(stages, id="42")
        await instance.wait()
        await instance.signal("first", "1")
        await instance.wait()
        with pytest.raises(SignalSuperseded, match="'first' to stages/42 superseded"):
            await instance.signal("first", "again")
        await instance.signal("second", "2")
        assert await instance.result() == ["1", "2"]
        with pytest.raises(SignalSuperseded):
            await instance.signal("second", "again")


async def test_a_signal_to_a_step_is_rejected(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", str)
        await ctx.suspend("pause")

    async with start(app) as engine:
        instance = await engine.invoke(order)
        await instance.wait()
        with pytest.raises(SignalRejected, match="this key is a step, not a point to wait at"):
            await instance.signal("charge", "paid")


@pytest.mark.spec("signal-terminal")
async def test_a_signal_to_an_instance_that_is_over_or_never_was_is_rejected_with_the_reason(start: Start) -> None:
    app = App()

    @app.workflow("quick")
    async def quick(ctx: Context) -> None: ...

    @app.workflow("broken")
    async def broken(ctx: Context) -> None:
        raise ValueError

    async with start(app) as engine:
        await (await engine.invoke(quick, id="1")).wait()
        await (await engine.invoke(broken, id="1")).wait()
        for workflow, id, reason in (
            (quick, "1", "the instance is completed"),
            (broken, "1", "the instance is failed"),
            (quick, "2", "there is no such instance"),
        ):
            with pytest.raises(SignalRejected, match=reason):
                await engine.signal(workflow, id, APPROVAL, True)


@pytest.mark.spec("signal-mismatch", "errors-words")
async def test_a_payload_of_another_type_is_refused_and_the_point_stays_open(start: Start) -> None:
    app, workflow = approving()
    async with start(app) as engine:
        instance = await suspended(engine, workflow)
        with pytest.raises(TypeMismatch, match="type mismatch: expected bool, found string"):
            await instance.signal("approval:v1", "yes")  # the sender does not know the point, only its key
        with pytest.raises(TypeMismatch, match="type mismatch: expected bool, found str"):
            await instance.signal(APPROVAL, "yes")  # type: ignore[misc]  # or does not care
        with pytest.raises(TypeMismatch, match="expected bool, found int"):
            await instance.signal(SuspendPoint("approval:v1", int), 1)  # or has another idea of it
        assert str(await instance.wait()) == "suspended: approval:v1"
        await instance.signal(APPROVAL, True)
        assert await instance.result() is True


# ── signals that come twice ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("signal-once")
async def test_of_many_concurrent_signals_exactly_one_wins(start: Start) -> None:
    app = App()

    @app.workflow("race")
    async def race(ctx: Context) -> int:
        return await ctx.suspend(SuspendPoint("who:v1", int))

    async with start(app) as engine:
        instance = await engine.invoke(race)
        await instance.wait()
        answers = await asyncio.gather(*(instance.signal("who:v1", n) for n in range(20)), return_exceptions=True)
        [winner] = [number for number, answer in enumerate(answers) if answer is None]
        assert {type(answer) for answer in answers if answer is not None} == {SignalSuperseded}
        assert await instance.result() == winner


@pytest.mark.spec("signal-id")
async def test_a_signal_with_an_id_may_be_sent_again(start: Start) -> None:
    """For a sender who does not know whether the first one arrived: success, and no second effect."""
    app, workflow = approving()
    async with start(app) as engine:
        instance = await suspended(engine, workflow)
        await instance.signal(APPROVAL, True, signal_id="click 1")
        await instance.signal(APPROVAL, True, signal_id="click 1")
        assert await instance.result() is True
        await instance.signal(APPROVAL, True, signal_id="click 1")
        with pytest.raises(SignalSuperseded):
            await instance.signal(APPROVAL, True, signal_id="click 2")


# ── signals that come too early ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("signal-buffer")
async def test_a_signal_can_be_kept_until_its_point_is_reached(start: Start) -> None:
    app = App()

    @app.workflow("stages")
    async def stages(ctx: Context) -> list[str]:
        return [await ctx.suspend("now"), await ctx.suspend("later")]

    async with start(app) as engine:
        instance = await engine.invoke(stages, id="1")
        await instance.wait()
        await instance.signal("later", "early", buffer=True)
        assert str(await instance.wait()) == "suspended: now"
        await instance.signal("now", "in time", buffer=True)  # it is waited for: nothing is kept
        assert await instance.result() == ["in time", "early"]
        _, later = await engine.steps(stages, "1")
        assert (later.kind, later.state, later.result) == (StepKind.SIGNAL, StepState.COMPLETED, "early")


@pytest.mark.spec("signal-buffer")
async def test_of_two_signals_that_come_too_early_the_first_is_kept(start: Start) -> None:
    app, workflow = approving()
    async with start(App()) as engine:  # nobody runs it yet
        instance = await engine.invoke(workflow, id="42")
        await instance.signal(APPROVAL, True, buffer=True, signal_id="click 1")
        for buffer in (True, False):
            with pytest.raises(SignalSuperseded, match="another signal is kept until the point is reached"):
                await instance.signal(APPROVAL, False, buffer=buffer, signal_id="click 2")
            await instance.signal(APPROVAL, False, buffer=buffer, signal_id="click 1")  # sent again: no second effect
    async with start(app) as engine:
        assert await engine.get(workflow, "42").result() is True
        with pytest.raises(SignalSuperseded, match="the point is completed already"):
            await engine.signal(workflow, "42", APPROVAL, False, buffer=True)


async def test_a_kept_signal_is_in_time_for_any_timeout(start: Start) -> None:
    app = App()

    @app.workflow("impatient")
    async def impatient(ctx: Context) -> bool:
        return await ctx.suspend(APPROVAL, timeout=0)

    async with start(App()) as engine:
        await (await engine.invoke(impatient, id="1")).signal(APPROVAL, True, buffer=True)
    async with start(app) as engine:
        assert await engine.get(impatient, "1").result() is True


@pytest.mark.spec("signal-once")
async def test_a_signal_that_comes_while_its_point_is_opened_is_not_lost(start: Start) -> None:
    app, workflow = approving()

    async with start(app) as engine:

        async def at_some_time(number: int) -> bool:
            instance = await engine.invoke(workflow, id=str(number))
            await asyncio.sleep(number / 4000)
            await instance.signal(APPROVAL, number % 2 == 0, buffer=True)
            return await instance.result()

        assert await asyncio.gather(*map(at_some_time, range(40))) == [True, False] * 20


async def test_a_payload_that_was_kept_and_does_not_fit_fails_the_wait_and_a_resume_waits_anew(start: Start) -> None:
    """What type the point will declare is not known before; the sender was told that the signal is accepted."""
    app, workflow = approving()
    async with start(App()) as engine:
        await (await engine.invoke(workflow, id="42")).signal("approval:v1", "yes", buffer=True)
    async with start(app) as engine:
        instance = engine.get(workflow, "42")
        with pytest.raises(WorkflowFailed, match=r"TypeMismatch: .*suspend point 'approval:v1' .*: type mismatch"):
            await instance.result()
        await instance.resume()
        assert str(await instance.wait()) == "suspended: approval:v1"
        await instance.signal(APPROVAL, True)
        assert await instance.result() is True


async def test_a_payload_that_fitted_when_it_came_is_never_dropped(start: Start) -> None:
    """A resume with code that reads it gets it, though a deploy in between could not."""

    def asking(type: Any) -> App:
        app = App()

        @app.workflow("asking")
        async def asking(ctx: Context) -> str:
            answer = await ctx.suspend(SuspendPoint("answer:v1", type))
            await ctx.suspend("go on")
            return repr(answer)

        return app

    async with start(asking(str)) as engine:
        instance = await engine.invoke("asking", id="1")
        await instance.wait()
        await instance.signal("answer:v1", "yes")
        assert str(await instance.wait()) == "suspended: go on"
    async with start(asking(int)) as engine:
        await engine.resume("asking", "1")
        with pytest.raises(WorkflowFailed, match="TypeMismatch"):
            await engine.get("asking", "1").result()
    async with start(asking(str)) as engine:
        await engine.resume("asking", "1")
        instance = engine.get("asking", "1")
        assert str(await instance.wait()) == "suspended: go on"
        await instance.signal("go on")
        assert await instance.result() == "'yes'"


async def test_what_can_never_be_read_is_rejected_also_when_it_may_be_kept(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", str)

    async with start(app) as engine:
        instance = await engine.invoke(order, id="1")
        await instance.result()
        for id, reason in (("1", "the instance is completed"), ("2", "there is no such instance")):
            with pytest.raises(SignalRejected, match=reason):
                await engine.signal(order, id, "approval", buffer=True)


# ── a key keeps its kind ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["suspend point", "timer"])
@pytest.mark.spec("step-conflict")
async def test_a_key_that_was_a_suspend_point_or_a_timer_cannot_become_a_step(start: Start, kind: str) -> None:
    app, runs = App(), list[str]()

    @app.workflow("changed")
    async def changed(ctx: Context) -> object:
        runs.append("run")
        if len(runs) == 1:
            return await (ctx.suspend("key:v1") if kind == "suspend point" else ctx.timer("key:v1", 3600))
        return await ctx.step("key:v1", str)

    async with start(app) as engine:
        instance = await engine.invoke(changed, id="1")
        await instance.wait()
        await instance.resume()
        with pytest.raises(WorkflowFailed, match=r"step 'key:v1' of changed/1: .*suspended entry") as failed:
            await instance.result()
        assert failed.value.error_type == StepConflict.__name__


@pytest.mark.spec("step-conflict")
async def test_a_key_that_was_a_step_cannot_become_a_suspend_point_or_a_timer(start: Start) -> None:
    app, runs = App(), list[str]()

    @app.workflow("changed")
    async def changed(ctx: Context, kind: str) -> None:
        runs.append("run")
        if ctx.instance_id not in seen:
            seen.add(ctx.instance_id)
            await ctx.step("key:v1", str)
            await ctx.suspend("pause")
        elif kind == "timer":
            await ctx.timer("key:v1", 0)
        else:
            await ctx.suspend("key:v1")

    seen = set[str]()
    async with start(app) as engine:
        for kind in ("timer", "suspend point"):
            instance = await engine.invoke(changed, kind, id=kind)
            await instance.wait()
            await instance.signal("pause")
            with pytest.raises(WorkflowFailed, match="recorded as a step, not a suspended entry") as failed:
                await instance.result()
            assert failed.value.error_type == StepConflict.__name__


async def test_many_instances_wait_at_the_same_point_and_each_gets_its_own_signal(start: Start) -> None:
    app = App()

    @app.workflow("waits")
    async def waits(ctx: Context, name: str) -> str:
        return f"{name}: {await ctx.suspend('answer')}"

    async with start(app) as engine:
        instances = await engine.invoke_many(waits, [str(number) for number in range(20)])
        handles = [each for each in instances if not isinstance(each, InputConflict)]
        await asyncio.gather(*(each.wait() for each in handles))
        await asyncio.gather(*(each.signal("answer", number**2) for number, each in enumerate(handles)))
        assert [await each.result() for each in handles] == [f"{number}: {number**2}" for number in range(20)]
