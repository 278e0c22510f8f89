"""Lesson 26. The first of several.

`name, value = await ctx.first("outcome:v1", {"answer": ctx.suspend(ANSWER), "late": ctx.timer("limit:v1", days(3))})`
waits until one of them is done. Which one that was is recorded, in the same moment in which it was done, and every
replay makes the same choice. The others have lost: nobody is told "accepted" for a signal that will not be read.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

import pytest

from memable import (
    App,
    Context,
    DuplicateStep,
    RetryPolicy,
    SignalSuperseded,
    Status,
    StepConflict,
    StepFailed,
    StepKind,
    StepState,
    SuspendPoint,
    SuspendTimeout,
)
from tests.fundamentals.starting import Start
from tests.resting import replayed

LONG_S = 3600
ANSWER, OBJECTION = SuspendPoint("answer:v1", bool), SuspendPoint("objection:v1", str)


def deciding() -> App:
    """Waits for an answer, an objection, or the end of an hour; then for another signal."""
    app = App()

    @app.workflow("deciding")
    async def deciding(ctx: Context) -> list[object]:
        name, value = await ctx.first(
            "outcome:v1",
            {
                "answer": ctx.suspend(ANSWER, status="waiting for an answer"),
                "objection": ctx.suspend(OBJECTION),
                "late": ctx.timer("limit:v1", LONG_S),
            },
        )
        more: str = await ctx.suspend("more")
        return [name, value, more]

    return app


@pytest.mark.spec("first")
async def test_what_is_done_first_is_chosen(start: Start) -> None:
    async with start(deciding()) as engine:
        instance = await engine.invoke("deciding", id="1")
        assert str(await instance.wait()) == "suspended: waiting for an answer"
        assert (metadata := await instance.metadata()) is not None
        assert metadata.waiting_on == ["answer:v1", "objection:v1", "limit:v1"]
        await instance.signal(OBJECTION, "too expensive")
        await instance.signal("more", "no", buffer=True)
        assert await instance.result() == ["objection", "too expensive", "no"]


@pytest.mark.spec("first-signal", "first-timer", "first-recorded", "step-kinds-and-states")
async def test_who_has_lost_is_not_waited_for_any_more(start: Start) -> None:
    async with start(deciding()) as engine:
        instance = await engine.invoke("deciding", id="1")
        await instance.wait()
        await instance.signal(ANSWER, True)
        for late, payload in ((OBJECTION.key, "too late"), ("limit:v1", None)):
            with pytest.raises(SignalSuperseded):
                await instance.signal(late, payload)
            with pytest.raises(SignalSuperseded):  # nor is it kept for later
                await instance.signal(late, payload, buffer=True)
        async for state in instance.states():
            if state.key == "more":
                break
        assert (metadata := await instance.metadata()) is not None
        assert metadata.waiting_on == ["more"]
        records = {record.key: record for record in await engine.steps("deciding", "1")}
        assert set(records) == {"outcome:v1", "answer:v1", "more"}
        choice = records["outcome:v1"]
        assert (choice.kind, choice.state, choice.result) == (StepKind.CHOICE, StepState.COMPLETED, "answer")


@pytest.mark.spec("first-signal")
async def test_of_two_signals_at_the_same_time_one_is_accepted_and_the_other_superseded(start: Start) -> None:
    async with start(deciding()) as engine:
        for number in range(10):
            instance = await engine.invoke("deciding", id=str(number))
            await instance.wait()
            answers = await asyncio.gather(
                instance.signal(ANSWER, True), instance.signal(OBJECTION, "no"), return_exceptions=True
            )
            assert [type(answer) for answer in answers if answer is not None] == [SignalSuperseded]
            accepted = ["answer", True] if answers[0] is None else ["objection", "no"]
            await instance.signal("more", "", buffer=True)
            assert await instance.result() == [*accepted, ""]


@pytest.mark.spec("first", "first-signal")
async def test_a_timer_is_the_deadline_of_all_others(start: Start) -> None:
    app = App()

    @app.workflow("impatient")
    async def impatient(ctx: Context) -> str:
        name, _ = await ctx.first("outcome", {"answer": ctx.suspend(ANSWER), "late": ctx.timer("limit", 0.01)})
        return name

    async with start(app) as engine:
        instance = await engine.invoke(impatient)
        assert await instance.result() == "late"
        with pytest.raises(SignalSuperseded):
            await instance.signal(ANSWER, True)


async def test_a_signal_that_was_kept_wins_at_once_and_the_others_are_never_waited_for(start: Start) -> None:
    app = App()

    @app.workflow("informed")
    async def informed(ctx: Context) -> str:
        await ctx.suspend("begin")
        name, _ = await ctx.first("outcome", {"answer": ctx.suspend(ANSWER), "objection": ctx.suspend(OBJECTION)})
        return name

    async with start(app) as engine:
        instance = await engine.invoke(informed)
        await instance.wait()
        await instance.signal(OBJECTION, "no", buffer=True)
        await instance.signal("begin")
        assert await instance.result() == "objection"
        with pytest.raises(SignalSuperseded):
            await instance.signal(ANSWER, True)


@pytest.mark.spec("first-buffered")
async def test_a_signal_that_was_kept_for_one_who_loses_is_dropped_with_it(start: Start) -> None:
    """Not even the next life, which would have got what nobody has read, gets it."""
    app = App()

    @app.workflow("lives")
    async def lives(ctx: Context, life: int) -> str:
        if life == 2:
            return await ctx.suspend(OBJECTION)
        await ctx.suspend("begin")
        name, _ = await ctx.first("outcome", {"answer": ctx.suspend(ANSWER), "objection": ctx.suspend(OBJECTION)})
        assert name == "answer"
        return ctx.continue_as(2)

    async with start(app) as engine:
        instance = await engine.invoke(lives, 1)
        await instance.wait()
        await instance.signal(ANSWER, True, buffer=True)
        await instance.signal(OBJECTION, "kept", buffer=True)
        await instance.signal("begin")
        async for state in instance.states():
            if state.key == OBJECTION.key:
                break
        await instance.signal(OBJECTION, "of the second life")
        assert await instance.result() == "of the second life"


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("first", "first-recorded", "first-step", "calls-are-objects")
async def test_steps_may_race_too_and_a_replay_makes_the_same_choice_when_all_of_them_are_done(start: Start) -> None:
    app, slow_may_end = App(), asyncio.Event()
    chosen: list[str] = []

    async def slow() -> str:
        await slow_may_end.wait()
        return "slow"

    async def quick() -> str:
        return "quick"

    @app.workflow("racing")
    async def racing(ctx: Context) -> str:
        name, _ = await ctx.first("winner", {"slow": ctx.step("slow", slow), "quick": ctx.step("quick", quick)})
        chosen.append(name)
        slow_may_end.set()
        await ctx.suspend("go")
        return name

    async with start(app) as engine:
        instance = await engine.invoke(racing, id="1")
        await instance.wait()
        records = {record.key: record.result for record in await engine.steps(racing, "1")}
        assert records == {"winner": "quick", "quick": "quick", "slow": "slow", "go": None}, "what ended is recorded"
        await instance.signal("go")
        assert await instance.result() == "quick"
    assert set(chosen) == {"quick"}
    assert len(chosen) > 1, "it was replayed"


async def test_a_step_that_has_lost_holds_nobody_up_for_long(start: Start) -> None:
    app = App()
    ended: list[str] = []

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @app.workflow("racing")
    async def racing(ctx: Context) -> str:
        name, _ = await ctx.first("winner", {"never": ctx.step("never", never), "soon": ctx.timer("soon", 0.01)})
        return name

    async with start(app, park_grace=0.05) as engine:
        assert await (await engine.invoke(racing, id="1")).result() == "soon"
        assert "never" not in {record.key for record in await engine.steps(racing, "1")}
    assert ended == ["cancelled"]


async def test_a_whole_map_is_one_of_them(start: Start) -> None:
    app = App()

    async def double(number: int) -> int:
        return 2 * number

    @app.workflow("racing")
    async def racing(ctx: Context) -> list[int]:
        _, value = await ctx.first(
            "winner", {"all": ctx.map("double", [1, 2, 3], double), "late": ctx.timer("late", LONG_S)}
        )
        return value or []

    async with start(app) as engine:
        assert await (await engine.invoke(racing)).result() == [2, 4, 6]


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_failure_is_an_end_too_and_is_raised(start: Start) -> None:
    app = App()
    caught: list[str] = []

    async def fail() -> None:
        raise ConnectionError("nobody there")

    @app.workflow("racing")
    async def racing(ctx: Context) -> str:
        try:
            await ctx.first("winner", {"call": ctx.step("call", fail, retry=None), "answer": ctx.suspend(ANSWER)})
        except StepFailed as error:
            caught.append(error.error_message)
        try:
            await ctx.first("again", {"wait": ctx.suspend("wait", timeout=0.01), "other": ctx.suspend("other")})
        except SuspendTimeout as error:
            caught.append(error.key)
        return await ctx.suspend(SuspendPoint("go", str))

    async with start(app) as engine:
        instance = await engine.invoke(racing, id="1")
        async for state in instance.states():
            if state.key == "go":
                break
        await instance.signal("go", "gone")
        assert await instance.result() == "gone"
    assert set(caught) == {"nobody there", "wait"}
    assert caught[-2:] == ["nobody there", "wait"], "the replay raises the same"


async def test_a_resume_tries_the_chosen_one_again_and_only_that(start: Start) -> None:
    app = App()
    attempts: list[str] = []

    def call(name: str) -> str:
        attempts.append(name)
        if len(attempts) == 1:
            raise ConnectionError("nobody there")
        return name

    @app.workflow("racing")
    async def racing(ctx: Context) -> str:
        name, _ = await ctx.first("winner", {"call": ctx.step("call", call, "call"), "answer": ctx.suspend(ANSWER)})
        return name

    async with start(app) as engine:
        instance = await engine.invoke(racing, id="1")
        assert (await instance.wait()).status is Status.FAILED
        await instance.resume()
        assert await instance.result() == "call"
    assert attempts == ["call", "call"]


# ── many ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spec("calls-are-objects")
async def test_several_run_side_by_side(start: Start) -> None:
    app = App()

    @app.workflow("twice")
    async def twice(ctx: Context) -> list[str]:
        outcomes = await asyncio.gather(
            *(ctx.first(each, {side: ctx.suspend(f"{each}-{side}") for side in ("left", "right")}) for each in "ab")
        )
        return [name for name, _ in outcomes]

    async with start(app) as engine:
        instance = await engine.invoke(twice)
        await instance.signal("b-left", buffer=True)
        async for state in instance.states():
            if state.status is Status.SUSPENDED and state.key == "a-left":
                break
        await instance.signal("a-right")
        assert await instance.result() == ["right", "left"]


async def test_in_a_loop_each_turn_has_its_own_keys(start: Start) -> None:
    app = App()

    @app.workflow("auction")
    async def auction(ctx: Context) -> list[int]:
        """Until nobody has bid for a while."""
        bids: list[int] = []
        while True:
            turn = len(bids)
            name, bid = await ctx.first(
                f"turn-{turn}",
                {
                    "bid": ctx.suspend(SuspendPoint(f"bid-{turn}", int)),
                    "over": ctx.timer(f"pause-{turn}", 0.01 if turn == 3 else LONG_S),
                },
            )
            if name == "over" or bid is None:
                return bids
            bids.append(bid)

    async with start(app) as engine:
        instance = await engine.invoke(auction)
        for turn in range(3):
            await instance.signal(f"bid-{turn}", 10 * turn, buffer=True)
        assert await instance.result() == [0, 10, 20]


class Outcome(StrEnum):
    ANSWERED = "answered"
    LATE = "late"


async def test_the_names_may_be_those_of_an_enum(start: Start) -> None:
    app = App()

    @app.workflow("asking")
    async def asking(ctx: Context) -> bool:
        outcome, _ = await ctx.first(
            "outcome", {Outcome.ANSWERED: ctx.suspend(ANSWER), Outcome.LATE: ctx.timer("limit", 0)}
        )
        await ctx.suspend("pause")
        return outcome is Outcome.LATE

    async with start(app) as engine:
        assert await replayed(await engine.invoke(asking), "pause")


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_keys_of_those_that_have_lost_stay_used(start: Start) -> None:
    app = App()
    refused: list[str] = []

    @app.workflow("asking")
    async def asking(ctx: Context) -> None:
        await ctx.first("outcome", {"answer": ctx.suspend(ANSWER), "late": ctx.timer("limit", 0)})
        try:
            await ctx.suspend(ANSWER)
        except DuplicateStep as error:
            refused.append(error.key)
        await ctx.suspend("go")

    async with start(app) as engine:
        instance = await engine.invoke(asking)
        await instance.wait()
        await instance.signal("go")
        await instance.result()
    assert refused == [ANSWER.key] * 2, "live, and in the replay"


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_was_chosen_must_still_be_among_the_calls(start: Start, is_known: bool) -> None:
    is_new = False
    app = App(default_retry=RetryPolicy.fixed(0, 0))

    @app.workflow("asking")
    async def asking(ctx: Context) -> str:
        calls = {"late": ctx.timer("limit", LONG_S), "soon" if is_new and not is_known else "early": ctx.timer("a", 0)}
        name, _ = await ctx.first("outcome", calls)
        await ctx.suspend("go")
        return name

    async with start(app) as engine:
        instance = await engine.invoke(asking)
        await instance.wait()
        is_new = True
        await instance.signal("go")
        if is_known:
            assert await instance.result() == "early"
        else:
            assert StepConflict.__name__ in str(await instance.wait())


async def test_a_map_that_has_lost_holds_nothing_up_and_begins_no_further_item(start: Start) -> None:
    app, called, third, decided = App(), list[int](), asyncio.Event(), asyncio.Event()

    async def reach(item: int) -> None:
        called.append(item)
        if item < 2:  # these wait for an attempt in an hour
            raise ConnectionError("away")
        third.set()
        await decided.wait()

    async def after() -> None:
        decided.set()
        await asyncio.sleep(0.05)  # in which a fourth could begin

    @app.workflow("racing")
    async def racing(ctx: Context) -> str:
        hourly = RetryPolicy.fixed(5, LONG_S)
        calls = {
            "all": ctx.map("all", range(9), reach, concurrency=3, retry=hourly),
            "one": ctx.step("one", third.wait),
        }
        name, _ = await ctx.first("which", calls)
        await ctx.step("after", after)
        return name

    async with start(app) as engine:
        instance = await engine.invoke(racing)
        assert await instance.result(20) == "one"
        assert called == [0, 1, 2]
