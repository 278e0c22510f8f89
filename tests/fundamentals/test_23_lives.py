"""Lesson 23. Workflows without an end.

An instance that goes on for ever would have ever more records, and each run reads them all. `ctx.continue_as(input)`
ends its life and begins the next: the same workflow and id, another input, and no records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from memable import (
    App,
    Context,
    Engine,
    InputConflict,
    InputMissing,
    SignalRejected,
    SignalSuperseded,
    Status,
    StepConflict,
    SuspendPoint,
    TypeMismatch,
    WorkflowFailed,
    WorkflowState,
    current_step,
)
from tests.fundamentals.starting import Start

MORE = SuspendPoint("more:v1", bool)


async def double(number: int) -> int:
    return 2 * number


@pytest.mark.spec("continue-as")
async def test_a_life_goes_on_in_the_next_without_its_records(start: Start) -> None:
    app = App()

    @app.workflow("powers")
    async def powers(ctx: Context, number: int) -> int:
        number = await ctx.step("double:v1", double, number)
        if number < 100:
            ctx.continue_as(number)
        return number

    async with start(app) as engine:
        instance = await engine.invoke(powers, 1, id="1")
        assert await instance.result() == 128
        (record,) = await engine.steps(powers, "1")
        assert record.result == 128


async def test_a_workflow_that_takes_no_input_continues_without_one(start: Start) -> None:
    app, lives = App(), list[bool]()

    @app.workflow("twice")
    async def twice(ctx: Context) -> str:
        lives.append(ctx.is_replaying)
        if len(lives) < 2:
            ctx.continue_as()
        return "done"

    async with start(app) as engine:
        assert await (await engine.invoke(twice)).result() == "done"
    assert lives == [False, False]


@pytest.mark.spec("idempotency-key-lives")
async def test_each_life_has_idempotency_keys_of_its_own(start: Start) -> None:
    app, keys = App(), list[str]()

    async def charge() -> None:
        keys.append(current_step().idempotency_key)

    @app.workflow("monthly")
    async def monthly(ctx: Context, month: int) -> None:
        await ctx.step("charge:v1", charge)
        if month < 3:
            ctx.continue_as(month + 1)

    async with start(app) as engine:
        await (await engine.invoke(monthly, 1)).result()
    assert len(set(keys)) == 3


async def test_what_is_shown_of_an_instance_is_that_of_its_life(start: Start) -> None:
    app, started = App(), list[Any]()

    @app.workflow("chatty")
    async def chatty(ctx: Context, number: int) -> None:
        started.append(ctx.started_at)
        if number == 1:
            ctx.set_status("the first life")
            await ctx.timer("pause:v1", 0.01)
            ctx.continue_as(2)
        await ctx.suspend(MORE)

    async with start(app) as engine:
        instance = await engine.invoke(chatty, 1, id="1")
        states = [state async for state in _until(instance, MORE.key)]
        assert str(states[-1]) == "suspended: more:v1"
        metadata = await instance.metadata()
        assert metadata is not None
        assert metadata.attempt == 1
        assert metadata.started_at == started[-1] > started[0] >= metadata.created_at
        await instance.signal(MORE, True)
        assert str(await instance.wait()) == "completed"


async def _until(instance: Any, key: str) -> AsyncIterator[WorkflowState]:
    async for state in instance.states():
        yield state
        if state.key == key:
            return


@pytest.mark.spec("continue-as-conflict")
async def test_an_invoke_of_the_same_id_is_compared_with_the_first_input(start: Start) -> None:
    app = App()

    @app.workflow("waits")
    async def waits(ctx: Context, number: int) -> int:
        if number < 3:
            ctx.continue_as(number + 1)
        await ctx.suspend(MORE)
        return number

    async with start(app) as engine:
        instance = await engine.invoke(waits, 1, id="1")
        assert instance.created
        await instance.wait()
        again = await engine.invoke(waits, 1, id="1")
        assert not again.created
        with pytest.raises(InputConflict):
            await engine.invoke(waits, 3, id="1")
        await instance.signal(MORE, True)
        assert await again.result() == 3


async def test_steps_in_flight_are_finished_first(start: Start) -> None:
    app, done = App(), list[int]()
    running, go = asyncio.Event(), asyncio.Event()

    async def slow(number: int) -> None:
        running.set()
        await go.wait()
        done.append(number)

    @app.workflow("hasty")
    async def hasty(ctx: Context, number: int) -> list[int]:
        if number == 2:
            return list(done)
        task = asyncio.create_task(ctx.step("slow:v1", slow, number))
        await running.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
        assert not task.done()
        return ctx.continue_as(2)

    async with start(app) as engine:
        assert await (await engine.invoke(hasty, 1)).result() == [1]


async def test_finally_blocks_may_clean_up(start: Start) -> None:
    app, cleaned = App(), list[int]()

    @app.workflow("tidy")
    async def tidy(ctx: Context, number: int) -> None:
        if number == 2:
            return
        try:
            ctx.continue_as(2)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(number)

    async with start(app) as engine:
        await (await engine.invoke(tidy, 1)).result()
    assert cleaned == [1]


async def test_what_the_next_life_cannot_take_is_refused_and_this_life_goes_on(start: Start) -> None:
    app = App()

    @app.workflow("careful")
    async def careful(ctx: Context, number: int) -> str:
        with pytest.raises(TypeMismatch, match="the next input of careful/1: type mismatch: expected int, found str"):
            ctx.continue_as("two")
        with pytest.raises(InputMissing):
            ctx.continue_as()
        await ctx.step("go on", str)
        return "went on"

    async with start(app) as engine:
        assert await (await engine.invoke(careful, 1, id="1")).result() == "went on"


async def test_it_belongs_into_the_workflow_not_into_a_step(start: Start) -> None:
    app = App()

    @app.workflow("wrong")
    async def wrong(ctx: Context) -> None:
        async def step() -> None:
            with pytest.raises(StepConflict, match="continue_as of wrong/1 was called inside step 'step'"):
                ctx.continue_as()

        await ctx.step("step", step)

    async with start(app) as engine:
        await (await engine.invoke(wrong, id="1")).result()


# ── an author cannot get in its way ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("continue-as")
async def test_an_author_who_catches_everything_cannot_keep_the_life_going(start: Start) -> None:
    app, refused = App(), list[str]()

    @app.workflow("stubborn")
    async def stubborn(ctx: Context, number: int) -> str:
        if number == 2:
            return "the second life"
        try:
            ctx.continue_as(2)
        except BaseException:
            try:
                await ctx.step("more", str)
            except BaseException as error:
                refused.append(str(error))
        return "the first life"

    async with start(app) as engine:
        assert await (await engine.invoke(stubborn, 1, id="1")).result() == "the second life"
    assert refused == ["step 'more' of stubborn/1: the run is over: it goes on in its next life"]


async def test_an_author_who_catches_everything_in_a_loop_cannot_either(start: Start) -> None:
    app, lives = App(), list[int]()

    @app.workflow("stubborn")
    async def stubborn(ctx: Context, number: int) -> str:
        lives.append(number)
        while len(lives) < 2:
            try:
                await ctx.step("step", str)
                ctx.continue_as(2)
            except BaseException:
                continue
        return "the second life"

    async with start(app) as engine:
        assert await (await engine.invoke(stubborn, 1)).result() == "the second life"


async def test_a_task_may_end_the_life_in_which_others_wait(start: Start) -> None:
    app = App()

    @app.workflow("both")
    async def both(ctx: Context, number: int) -> str:
        if number == 2:
            return "the second life"

        async def ends() -> None:
            await ctx.step("step", str)
            ctx.continue_as(2)

        task = asyncio.create_task(ends())
        await ctx.suspend(MORE)
        return f"{task}"

    async with start(app) as engine:
        assert await (await engine.invoke(both, 1)).result() == "the second life"


async def test_the_first_of_several_calls_counts(start: Start) -> None:
    app = App()

    @app.workflow("several")
    async def several(ctx: Context, number: int) -> int:
        if number:
            return number

        async def ends(number: int) -> None:
            ctx.continue_as(number)

        await asyncio.gather(*map(ends, (1, 2, 3)))
        return 0

    async with start(app) as engine:
        assert await (await engine.invoke(several, 0)).result() == 1


# ── waits, signals and resumes ───────────────────────────────────────────────────────────────────────────────────────


async def test_points_of_a_life_are_withdrawn_with_it(start: Start) -> None:
    app, go = App(), asyncio.Event()

    async def wait_for_go() -> None:
        await go.wait()

    @app.workflow("restless")
    async def restless(ctx: Context, number: int) -> str:
        if number == 2:
            await ctx.timer("later:v1", 0.01)
            return "the second life"
        waits = [asyncio.create_task(each) for each in (ctx.suspend(MORE), ctx.timer("later:v1", 3600))]
        await ctx.step("go", wait_for_go)
        assert not any(each.done() for each in waits)
        return ctx.continue_as(2)

    async with start(app) as engine:
        instance = await engine.invoke(restless, 1, id="1")
        while set((await _metadata(engine, "restless")).waiting_on) != {MORE.key, "later:v1"}:
            await asyncio.sleep(0.01)
        go.set()
        assert await instance.result() == "the second life"
        with pytest.raises(SignalRejected):
            await instance.signal(MORE, True)


async def _metadata(engine: Engine, workflow: str) -> Any:
    return await engine.get_metadata(workflow, "1")


async def test_a_failed_life_is_resumed_not_the_one_before(start: Start) -> None:
    app, called, broken = App(), list[int](), [True]

    async def work(number: int) -> int:
        called.append(number)
        return number

    @app.workflow("fails")
    async def fails(ctx: Context, number: int) -> int:
        result = await ctx.step("work", work, number)
        if number == 1:
            ctx.continue_as(2)
        if broken:
            raise RuntimeError("a bug")
        return result

    async with start(app) as engine:
        instance = await engine.invoke(fails, 1, id="1")
        with pytest.raises(WorkflowFailed, match="a bug"):
            await instance.result()
        broken.clear()
        await instance.resume()
        assert (await instance.wait()).status is Status.COMPLETED
        assert await instance.result() == 2
    assert called == [1, 2]


async def test_an_input_that_a_later_life_gave_is_read_by_its_type(start: Start) -> None:
    app = App()

    @app.workflow("typed")
    async def typed(ctx: Context, days: dict[int, set[str]]) -> str:
        if len(days) < 2:
            ctx.continue_as({**days, 2: {"b"}})
        return f"{sorted(days)} {days[2]}"

    async with start(app) as engine:
        assert await (await engine.invoke(typed, {1: {"a"}})).result() == "[1, 2] {'b'}"


@pytest.mark.spec("continue-as-signals", "continue-as-ids")
async def test_a_kept_signal_waits_for_the_next_life_and_one_that_was_taken_is_not_taken_again(start: Start) -> None:
    app = App()

    @app.workflow("asks")
    async def asks(ctx: Context, answers: list[bool]) -> list[bool]:
        answers = [*answers, await ctx.suspend(MORE, status=f"question {len(answers)}")]
        return answers if len(answers) == 3 else ctx.continue_as(answers)

    async with start(app) as engine:
        instance = await engine.invoke(asks, [], id="1")
        await instance.wait()
        await instance.signal(MORE, True, signal_id="first")
        await _asked(instance, 1)
        await instance.signal(MORE, True, signal_id="first")  # whoever sent it had no reply
        await instance.signal(MORE, False, signal_id="second")
        # at once: perhaps the point of the next life is not open yet, or the life has not even begun
        await _sent(instance, "third")
        assert await instance.result() == [True, False, True]


async def _asked(instance: Any, number: int) -> None:
    async for state in instance.states():
        if state.message == f"question {number}":
            return


async def _sent(instance: Any, signal_id: str) -> None:
    while True:
        try:
            await instance.signal(MORE, True, buffer=True, signal_id=signal_id)
            return
        except SignalSuperseded:  # by the second, while its life goes on
            await asyncio.sleep(0.01)


@pytest.mark.spec("continue-as-mailboxes", "continue-as-ids")
async def test_messages_that_nobody_has_read_are_there_in_the_next_life_and_those_seen_are_known(start: Start) -> None:
    app = App()

    @app.workflow("chat")
    async def chat(ctx: Context, heard: list[str]) -> list[str]:
        heard = [*heard, await ctx.receive("next", "chat")]
        return heard if len(heard) == 3 else ctx.continue_as(heard)

    async with start(App()) as sender:  # nobody runs it yet
        instance = await sender.invoke(chat, [], id="1")
        for text in ("one", "two"):
            await instance.send("chat", text, message_id=text)
    async with start(app) as engine:
        instance = engine.get(chat, "1")
        assert str(await instance.wait()) == "suspended: next"  # in its third life
        for text in ("one", "two", "three"):  # whoever sent the first had no reply
            await instance.send("chat", text, message_id=text)
        assert await instance.result() == ["one", "two", "three"]


async def test_what_comes_when_a_life_is_about_to_end_is_read_by_the_next(start: Start) -> None:
    """Nobody in the old one can act on it any more, and its sender is told that it is accepted."""
    app, opened, continued, go = App(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.workflow("chat")
    async def chat(ctx: Context, number: int) -> Any:
        waits = [asyncio.create_task(each) for each in (ctx.receive("message", "chat"), ctx.suspend(MORE))]
        if number == 1:
            asyncio.create_task(ctx.step("slow", go.wait))  # noqa: RUF006  (in flight when the life ends)
            await ctx.step("until both are open", opened.wait)
            continued.set()
            ctx.continue_as(2)
        return await asyncio.gather(*waits)

    async with start(app) as engine:
        instance = await engine.invoke(chat, 1, id="1")
        while set((await _metadata(engine, "chat")).waiting_on) != {"message", MORE.key}:
            await asyncio.sleep(0.01)
        opened.set()
        await continued.wait()
        await engine.send("chat", "1", "chat", "hello", message_id="m")
        await instance.signal(MORE, True, signal_id="s")
        go.set()
        assert await instance.result() == ["hello", True]
