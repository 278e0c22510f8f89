"""Lesson 24. Children.

A workflow can run others as instances of their own, on any worker, and is not held in memory while it waits for them.
`call` runs one, `fan_out` one for each item. A child is an instance like any other, with a journal, retries and waits
of its own, and an id that memable makes: `PARENT~LIFE~KEY~NUMBER`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from memable import (
    App,
    ChildFailed,
    Context,
    Engine,
    InputMissing,
    InstanceNotFound,
    SignalSuperseded,
    Status,
    StepConflict,
    StepKind,
    StepState,
    TypeMismatch,
    WorkflowFailed,
    WorkflowNotFound,
)
from tests.fundamentals.starting import Start
from tests.worker_process import until


class Parcel(BaseModel):
    """What is to be packed."""

    number: int
    weight: float = 1.0


class Label(BaseModel):
    """What is on a parcel."""

    text: str


def warehouse(packed: list[int] | None = None, broken: Sequence[int] = ()) -> App:
    """`pack` does a parcel; `ship` calls it for one, `ship_all` for many."""
    app, done = App(), [] if packed is None else packed

    def do_pack(number: int) -> str:
        if number in broken:
            raise ValueError(f"{number} is too heavy")
        done.append(number)
        return f"parcel {number}"

    @app.workflow("pack")
    async def pack(ctx: Context, parcel: Parcel) -> Label:
        return Label(text=await ctx.step("do", do_pack, parcel.number))

    @app.workflow("ship")
    async def ship(ctx: Context, number: int) -> str:
        label = await ctx.call("pack:v1", pack, Parcel(number=number))
        return f"shipped {label.text}"

    @app.workflow("ship_all")
    async def ship_all(ctx: Context, count: int) -> list[Label]:
        return await ctx.fan_out("pack:v1", [Parcel(number=each) for each in range(count)], pack)

    @app.workflow("try_all")
    async def try_all(ctx: Context, count: int) -> list[str]:
        parcels = [Parcel(number=each) for each in range(count)]
        labels = await ctx.fan_out("pack:v1", parcels, pack, fail_fast=False)
        return [each.error_message if isinstance(each, ChildFailed) else each.text for each in labels]

    return app


# ── one child ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("call")
async def test_a_call_hands_back_what_the_child_returned_with_its_type(start: Start) -> None:
    async with start(warehouse()) as engine:
        assert await (await engine.invoke("ship", 7)).result() == "shipped parcel 7"


@pytest.mark.spec("child-ids")
async def test_a_child_is_an_instance_that_names_its_parent(start: Start) -> None:
    async with start(warehouse()) as engine:
        parent = await engine.invoke("ship", 7, id="order-7")
        await parent.result()
        (child,) = (await engine.list_instances("pack")).items
        assert child.instance_id.startswith("order-7~")
        assert child.instance_id.endswith("~pack:v1~0")
        assert child.parent == "ship/order-7"
        assert await engine.get("pack", child.instance_id).result() == Label(text="parcel 7")


async def test_children_can_be_left_out_of_a_listing(start: Start) -> None:
    async with start(warehouse()) as engine:
        await (await engine.invoke("ship_all", 3, id="all")).result()
        everything, invoked = await engine.list_instances(), await engine.list_instances(children=False)
        assert len(everything.items) == 4
        assert [each.instance_id for each in invoked.items] == ["all"]
        assert (await engine.list_instances("pack", children=False)).items == []


@pytest.mark.spec("call")
async def test_a_parent_is_suspended_while_its_child_is_at_work(start: Start) -> None:
    app = App()

    @app.workflow("child")
    async def child(ctx: Context) -> str:
        answer: str = await ctx.suspend("answer")
        return answer

    @app.workflow("parent")
    async def parent(ctx: Context) -> str:
        return await ctx.call("ask:v1", child)

    async with start(app) as engine:
        instance = await engine.invoke(parent)
        assert str(await instance.wait()) == "suspended: ask:v1"
        (listed,) = (await engine.list_instances(child)).items
        await engine.get(child, listed.instance_id).wait()
        await engine.signal(child, listed.instance_id, "answer", "yes")
        assert await instance.result() == "yes"


@pytest.mark.spec("step-kinds-and-states", "steps")
async def test_the_journal_has_one_record_of_a_call(start: Start) -> None:
    async with start(warehouse()) as engine:
        one, many = await engine.invoke("ship", 7, id="1"), await engine.invoke("ship_all", 2, id="2")
        await asyncio.gather(one.result(), many.result())
        (record,) = await engine.steps("ship", "1")
        assert (record.kind, record.state, record.result) == (StepKind.CHILD, StepState.COMPLETED, {"text": "parcel 7"})
        (record,) = await engine.steps("ship_all", "2")
        assert record.result == {"children": 2}


async def test_a_child_fails_the_call_and_the_parent_may_catch_that(start: Start) -> None:
    app = warehouse(broken=[7])

    @app.workflow("careful")
    async def careful(ctx: Context) -> list[Any]:
        try:
            await ctx.call("pack:v1", "pack", {"number": 7})
        except ChildFailed as error:
            return [error.key, error.index, error.workflow, error.error_type, error.error_message]
        return []

    async with start(app) as engine:
        assert await (await engine.invoke(careful)).result() == [
            "pack:v1",
            0,
            "pack",
            "StepFailed",
            "step 'do' of pack/{} failed on call 1: ValueError: 7 is too heavy".format(
                (await engine.list_instances("pack")).items[0].instance_id
            ),
        ]


async def test_a_failure_that_is_not_caught_fails_the_parent(start: Start) -> None:
    async with start(warehouse(broken=[7])) as engine:
        instance = await engine.invoke("ship", 7, id="7")
        with pytest.raises(
            WorkflowFailed, match=r"call 'pack:v1' of ship/7 failed: StepFailed: .* too heavy"
        ) as caught:
            await instance.result()
        assert (caught.value.error_type, caught.value.failed_step) == ("ChildFailed", "pack:v1")


async def test_an_input_is_checked_as_by_invoke(start: Start) -> None:
    app = warehouse()

    @app.workflow("wrong")
    async def wrong(ctx: Context) -> list[str]:
        found: list[str] = []
        calls: dict[str, Any] = {
            "text": lambda: ctx.call("text", "pack", "text"),
            "nothing": lambda: ctx.call("nothing", "pack"),
            "unknown": lambda: ctx.call("unknown", "unpack", 1),
            "one of many": lambda: ctx.fan_out("one of many", [{"number": 1}, "text"], "pack"),
        }
        for call in calls.values():
            try:
                await call()
            except (TypeMismatch, InputMissing, WorkflowNotFound) as error:
                found.append(type(error).__name__)
        return found

    async with start(app) as engine:
        assert await (await engine.invoke(wrong)).result() == [
            "TypeMismatch",
            "InputMissing",
            "WorkflowNotFound",
            "TypeMismatch",
        ]
        assert (await engine.list_instances("pack")).items == []


async def test_a_parent_and_its_children_may_live_on_different_workers(start: Start) -> None:
    """A parent names a workflow that only others have, as a client does: its types are known by what they announced."""
    away = App()

    @away.workflow("order")
    async def order(ctx: Context) -> str:
        label = await ctx.call("pack:v1", "pack", {"number": 3})
        return str(label["text"])

    async with start(warehouse()), start(away) as engine:
        assert await (await engine.invoke(order)).result() == "parcel 3"


async def test_children_have_children(start: Start) -> None:
    app = App()

    @app.workflow("factorial")
    async def factorial(ctx: Context, n: int) -> int:
        below: int = await ctx.call("below", "factorial", n - 1) if n > 1 else 1
        return n * below

    async with start(app) as engine:
        instance = await engine.invoke(factorial, 6, id="root")
        assert await instance.result() == 720
        deepest = max((each.instance_id for each in (await engine.list_instances()).items), key=len)
        assert deepest.count("~") == 5 * 3


async def test_a_call_waits_beside_others(start: Start) -> None:
    app = warehouse()

    @app.workflow("both")
    async def both(ctx: Context) -> list[Any]:
        one, other, _ = await asyncio.gather(
            ctx.call("one", "pack", {"number": 1}), ctx.call("other", "pack", {"number": 2}), ctx.timer("soon", 0.01)
        )
        return [one.text, other.text]

    async with start(app) as engine:
        assert await (await engine.invoke(both)).result() == ["parcel 1", "parcel 2"]


async def test_a_replay_starts_no_child_again(start: Start) -> None:
    packed: list[int] = []
    app = warehouse(packed)

    @app.workflow("twice")
    async def twice(ctx: Context) -> list[Any]:
        one = await ctx.call("one", "pack", {"number": 1})
        many = await ctx.fan_out("many", [{"number": 2}, {"number": 3}], "pack")
        return [*(each.text for each in (one, *many)), await ctx.suspend("go on")]

    async with start(app) as engine:
        instance = await engine.invoke(twice)
        async for state in instance.states():
            if state.key == "go on":
                break
        await instance.signal("go on", "went on")
        assert await instance.result() == ["parcel 1", "parcel 2", "parcel 3", "went on"]
    assert sorted(packed) == [1, 2, 3]


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("fan-out")
async def test_a_fan_out_hands_back_the_results_in_the_order_of_its_items(start: Start) -> None:
    async with start(warehouse()) as engine:
        labels = await (await engine.invoke("ship_all", 12)).result()
        assert labels == [Label(text=f"parcel {number}") for number in range(12)]


@pytest.mark.spec("fan-out", "fan-out-workers")
async def test_children_are_spread_over_all_workers_and_their_parent_takes_no_slot_meanwhile(start: Start) -> None:
    app, all_here = App(), asyncio.Barrier(4)

    @app.workflow("meets")
    async def meets(ctx: Context, number: int) -> int:
        await ctx.step("meet", all_here.wait)  # nobody passes until four have reached it
        return number

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[int]:
        return await ctx.fan_out("meet:v1", range(4), meets)

    async with start(app, concurrency=2) as engine, start(app, concurrency=2):
        assert await (await engine.invoke(parent)).result() == [0, 1, 2, 3]


async def test_a_fan_out_over_nothing_is_an_empty_list(start: Start) -> None:
    async with start(warehouse()) as engine:
        assert await (await engine.invoke("ship_all", 0)).result() == []


@pytest.mark.spec("fan-out-failures")
async def test_failures_can_stand_in_the_list_instead(start: Start) -> None:
    async with start(warehouse(broken=[1, 3])) as engine:
        found = await (await engine.invoke("try_all", 4)).result()
        assert [each.rpartition(": ")[2] for each in found] == [
            "parcel 0",
            "1 is too heavy",
            "parcel 2",
            "3 is too heavy",
        ]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
@pytest.mark.spec("fan-out-concurrency")
async def test_no_more_live_at_a_time_than_concurrency_says(start: Start, concurrency: int) -> None:
    app, alive, most = App(), 0, list[int]()

    async def work() -> None:
        nonlocal alive
        alive += 1
        most.append(alive)
        await asyncio.sleep(0.005)
        alive -= 1

    @app.workflow("child")
    async def child(ctx: Context, number: int) -> int:
        await ctx.step("work", work)
        return number

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[int]:
        return await ctx.fan_out("all", range(11), child, concurrency=concurrency)

    async with start(app) as engine:
        assert await (await engine.invoke(parent)).result() == list(range(11))
    assert max(most) <= concurrency


async def test_a_key_keeps_its_number_of_children(start: Start) -> None:
    app, counts = warehouse(), [2, 3, 2]

    @app.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.fan_out("all:v1", [Parcel(number=number) for number in range(counts[0])], "pack")
        await ctx.suspend("again")

    async with start(app) as engine:
        instance = await engine.invoke(parent)
        async for state in instance.states():
            if state.key == "again":
                break
        del counts[0]
        await instance.resume()
        with pytest.raises(WorkflowFailed, match="choose a new key") as caught:
            await instance.result()
        assert caught.value.error_type == StepConflict.__name__
        del counts[0]
        await instance.resume()
        assert (await instance.wait()).key == "again"


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def patients(failing: list[int]) -> App:
    """Children that wait for a signal, unless they are among the `failing`; each parent waits for three of them."""
    app = App()

    @app.workflow("patient")
    async def patient(ctx: Context, number: int) -> str:
        if number in failing:
            raise ValueError(f"{number} fails")
        answer: str = await ctx.suspend("answer")
        return answer

    @app.workflow("all_of_three")
    async def all_of_three(ctx: Context) -> list[str]:
        return await ctx.fan_out("three", range(3), patient)

    @app.workflow("gives_up")
    async def gives_up(ctx: Context) -> str:
        waiting = asyncio.ensure_future(ctx.fan_out("three", range(3), patient))
        await ctx.suspend("give up")
        waiting.cancel()
        raise ValueError("gave up")

    return app


async def states_of(engine: Engine, workflow: str = "patient") -> dict[str, str]:
    """The state of each child, by its number."""
    found = (await engine.list_instances(workflow)).items
    return {each.instance_id.rpartition("~")[2]: str(each.state) for each in found}


@pytest.mark.spec("fan-out-fail-fast")
async def test_the_first_failure_cancels_the_others(start: Start) -> None:
    async with start(patients(failing=[1])) as engine:
        instance = await engine.invoke("all_of_three", id="1")
        with pytest.raises(WorkflowFailed, match=r"fan_out 'three'\[1\] of all_of_three/1 failed: ValueError: 1 fails"):
            await instance.result()
        reason = "cancelled: another child of fan_out 'three' of all_of_three/1 has failed"
        assert await states_of(engine) == {"0": reason, "1": "failed: ValueError: 1 fails", "2": reason}


async def test_a_resume_of_the_parent_resumes_the_children_that_failed_or_were_cancelled(start: Start) -> None:
    failing = [1]
    async with start(patients(failing)) as engine:
        instance = await engine.invoke("all_of_three")
        with pytest.raises(WorkflowFailed):
            await instance.result()
        failing.clear()
        await instance.resume()
        suspended = dict.fromkeys("012", "suspended: answer")

        async def are_waiting() -> bool:
            return await states_of(engine) == suspended

        await until(are_waiting, "all three wait again")
        for child in (await engine.list_instances("patient")).items:
            await engine.signal("patient", child.instance_id, "answer", child.instance_id[-1])
        assert await instance.result() == ["0", "1", "2"]


async def test_a_resume_of_the_parent_does_not_run_completed_children_again(start: Start) -> None:
    packed, broken = list[int](), [2]
    async with start(warehouse(packed, broken)) as engine:
        instance = await engine.invoke("ship_all", 3)
        with pytest.raises(WorkflowFailed):
            await instance.result()
        done = sorted(packed)
        broken.clear()
        await instance.resume()
        assert [each.text for each in await instance.result()] == ["parcel 0", "parcel 1", "parcel 2"]
    assert done in ([0, 1], [0], [1], [])
    assert sorted(packed) == [0, 1, 2]


async def test_a_child_that_fails_after_a_resume_of_its_parent_has_no_further_attempt(start: Start) -> None:
    app, called, broken = App(), list[str](), [True]

    @app.workflow("payment")
    async def payment(ctx: Context, who: str) -> str:
        return await ctx.step("pay:v1", pay, who)

    def pay(who: str) -> str:
        called.append(who)
        if who == "Bob":
            raise ValueError("no account")
        return who

    def check() -> None:
        if broken:
            raise ConnectionError("away")

    @app.workflow("payments")
    async def payments(ctx: Context) -> None:
        await ctx.call("ann", payment, "Ann")
        await ctx.step("check:v1", check)
        await ctx.call("bob", payment, "Bob")

    async with start(app) as engine:
        instance = await engine.invoke(payments)
        with pytest.raises(WorkflowFailed, match="ConnectionError"):
            await instance.result()
        broken.clear()
        await instance.resume()
        with pytest.raises(WorkflowFailed, match="no account"):
            await instance.result()
    assert called == ["Ann", "Bob"]


async def test_rerunning_a_call_resumes_its_child_too(start: Start) -> None:
    app, answers = App(), ["old", "new"]

    @app.workflow("child")
    async def child(ctx: Context) -> str:
        return answers[0]

    @app.workflow("parent")
    async def parent(ctx: Context) -> str:
        return await ctx.call("ask", child)

    async with start(app) as engine:
        instance = await engine.invoke(parent)
        assert await instance.result() == "old"
        del answers[0]
        await engine.resume(parent, instance.instance_id, rerun=["ask"])
        assert await instance.result() == "new"


@pytest.mark.parametrize("end", ["cancel", "fail"])
async def test_a_parent_that_ends_takes_its_living_children_along(start: Start, end: str) -> None:
    async with start(patients(failing=[])) as engine:
        instance = await engine.invoke("gives_up", id="1")
        await until(lambda: has_started(engine, "patient", 3), "three children")
        if end == "cancel":
            await instance.cancel()
        else:
            async for state in instance.states():
                if state.status is Status.SUSPENDED:
                    break
            await instance.signal("give up", None)
        await instance.wait()
        reason = "cancelled: its parent gives_up/1 is over"

        async def are_cancelled() -> bool:
            return await states_of(engine) == dict.fromkeys("012", reason)

        await until(are_cancelled, "the end of all children")


@pytest.mark.spec("continue-as-children")
async def test_a_life_that_ends_takes_its_living_children_along_and_not_those_of_the_next(
    start: Start,
) -> None:
    app = patients(failing=[])

    @app.workflow("lives")
    async def lives(ctx: Context, life: int) -> list[str]:
        children = asyncio.ensure_future(ctx.fan_out("three", range(3), "patient"))
        if life == 1:
            await ctx.suspend("next life")
            assert not children.done()
            ctx.continue_as(2)
        return await children

    async with start(app) as engine:
        instance = await engine.invoke(lives, 1, id="1")
        await until(lambda: has_started(engine, "patient", 3), "three children")
        first = {each.instance_id for each in (await engine.list_instances("patient")).items}
        await instance.signal("next life", buffer=True)
        await until(lambda: has_started(engine, "patient", 6), "those of the second life")

        async def state_of_the_first() -> set[str]:
            found = (await engine.list_instances("patient")).items
            return {str(each.state) for each in found if each.instance_id in first}

        async def are_cancelled() -> bool:
            return await state_of_the_first() == {"cancelled: its parent lives/1 is over"}

        await until(are_cancelled, "the end of the children of the first life")
        for child in (await engine.list_instances("patient")).items:
            if child.instance_id not in first:
                await engine.signal("patient", child.instance_id, "answer", "yes", buffer=True)
        assert await instance.result() == ["yes"] * 3


async def has_started(engine: Engine, workflow: str, count: int) -> bool:
    return len((await engine.list_instances(workflow)).items) == count


async def test_a_cancelled_child_is_a_failure_that_says_so(start: Start) -> None:
    app = patients(failing=[])

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[str]:
        try:
            await ctx.call("one", "patient", 1)
        except ChildFailed as error:
            return [error.error_type, error.error_message]
        return []

    async with start(app) as engine:
        instance = await engine.invoke(parent, id="1")
        await until(lambda: has_started(engine, "patient", 1), "a child")
        (child,) = (await engine.list_instances("patient")).items
        await engine.cancel("patient", child.instance_id, reason="no longer needed")
        assert await instance.result() == [
            "WorkflowCancelled",
            f"instance patient/{child.instance_id} was cancelled: no longer needed",
        ]


async def test_a_parent_of_children_that_are_kept_for_a_moment_only_loses_no_result(start: Start) -> None:
    app, called = App(), list[str]()

    @app.workflow("child", retention=timedelta(milliseconds=1))
    async def child(ctx: Context, name: str) -> str:
        called.append(name)
        return name

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[str]:
        one = await ctx.call("one", child, "one")
        many = await ctx.fan_out("many", ["a", "b"], child)
        await ctx.timer("later", 0.05)
        return [one, *many]

    async with start(app) as engine:
        assert await (await engine.invoke(parent)).result() == ["one", "a", "b"]
    assert sorted(called) == ["a", "b", "one"]


async def test_durable_compensation_is_the_parents_business(start: Start) -> None:
    """A saga: what was done is undone by steps of the parent, whatever ended the child that was to come next."""
    app, ledger = App(), list[str]()

    async def note(line: str) -> None:
        ledger.append(line)

    @app.workflow("book")
    async def book(ctx: Context, what: str) -> str:
        if what == "car":
            await ctx.suspend("never")
        await ctx.step("book", note, f"book {what}")
        return what

    @app.workflow("trip")
    async def trip(ctx: Context) -> str:
        booked: list[str] = []
        try:
            for what in ("flight", "hotel", "car"):
                await ctx.call(f"book-{what}", book, what)
                booked.append(what)
        except ChildFailed as error:
            for what in reversed(booked):
                await ctx.step(f"cancel-{what}", note, f"cancel {what}")
            return f"cancelled: {error.error_type}"
        return "booked"

    async with start(app) as engine:
        instance = await engine.invoke(trip)
        await until(lambda: has_started(engine, "book", 3), "the last booking")
        newest = (await engine.list_instances("book")).items[0]
        await engine.cancel(book, newest.instance_id)
        assert await instance.result() == "cancelled: WorkflowCancelled"
    assert ledger == ["book flight", "book hotel", "cancel hotel", "cancel flight"]


@pytest.mark.spec("first", "first-child")
async def test_a_child_may_win_a_race_or_lose_it_and_is_cancelled_then(start: Start) -> None:
    app = patients(failing=[])

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[Any]:
        return list(
            await ctx.first("race", {"child": ctx.call("one", "patient", 1), "signal": ctx.suspend("never mind")})
        )

    async with start(app) as engine:
        winning, losing = await engine.invoke(parent, id="winning"), await engine.invoke(parent, id="losing")
        suspended = {"winning": "suspended: answer", "losing": "suspended: answer"}

        async def race() -> dict[str, str]:
            found = (await engine.list_instances("patient")).items
            return {each.instance_id.partition("~")[0]: str(each.state) for each in found}

        async def are_waiting() -> bool:
            return await race() == suspended

        await until(are_waiting, "both children wait")
        for child in (await engine.list_instances("patient")).items:
            if child.instance_id.startswith("winning~"):
                await engine.signal("patient", child.instance_id, "answer", "yes")
        await losing.wait()
        await losing.signal("never mind", "no")
        assert await winning.result() == ["child", "yes"]
        with pytest.raises(SignalSuperseded):
            await winning.signal("never mind", "too late")
        assert await losing.result() == ["signal", "no"]
        lost = "cancelled: parent/losing has chosen another than call 'one'"
        assert await race() == {"winning": "completed", "losing": lost}


async def test_large_inputs_are_made_a_few_at_a_time(start: Start) -> None:
    """A script that carried all of them would keep Redis from everybody else."""
    app = App()

    @app.workflow("child")
    async def child(ctx: Context, text: str) -> int:
        return len(text)

    @app.workflow("parent")
    async def parent(ctx: Context) -> list[int]:
        return await ctx.fan_out("large", ["x" * (400_000 + number) for number in range(7)], child)

    async with start(app) as engine:
        assert await (await engine.invoke(parent)).result() == [400_000 + number for number in range(7)]


async def test_a_child_that_is_not_there_cannot_be_resumed(start: Start) -> None:
    async with start(warehouse()) as engine:
        with pytest.raises(InstanceNotFound):
            await engine.resume("pack", "order~life~pack:v1~0")
