"""A call of a run that goes on is carried out again, at once or after later ones: that takes nothing back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from memable import App, Context, Engine, Settings, StepFailed
from memable.errors import SignalRejected
from memable.holding import Held
from memable.lua import Answer
from memable.store import new_token
from tests.faults.losing import EachCall
from tests.lua.stage import BROKEN, LONG_MS, YES, Stage, answer_of, approval, timer
from tests.proxy import Cut, Proxy


@pytest.fixture
def stage(own_stage: Stage) -> Stage:
    return own_stage


async def next_ms(stage: Stage) -> None:
    """A deadline that is set from now on is another."""

    async def now_ms() -> int:
        seconds, microseconds = await stage.command("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    begun_ms = await now_ms()
    while await now_ms() <= begun_ms + 1:
        pass


# ── points ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("parks", [False, True])
async def test_what_withdraws_and_opens_again_keeps_the_deadline_that_it_set_first(stage: Stage, parks: bool) -> None:
    """An author gave up on a timer, and waits for it again."""
    held = await stage.run()
    await stage.store.open(held, [timer(after_ms=60_000)], [])
    if parks:
        past = timer("past", at_ms=0)
        assert await stage.store.park(held, [timer(after_ms=60_000), past], ["cooling-off"], "")
    else:
        await stage.store.open(held, [timer(after_ms=60_000)], ["cooling-off"])
    before = await stage.check()
    await next_ms(stage)
    await stage.again()
    assert await stage.check() == before


Withdraw = Callable[[Stage, Held], Awaitable[None]]


async def withdraw_by_open(stage: Stage, held: Held) -> None:
    await stage.store.open(held, [], ["approval"])


async def withdraw_by_park(stage: Stage, held: Held) -> None:
    assert await stage.store.park(held, [timer("past", at_ms=0)], ["approval"], "")


by_open_or_park = pytest.mark.parametrize("withdraw", [withdraw_by_open, withdraw_by_park])


@by_open_or_park
@pytest.mark.parametrize("was_open", [True, False])
async def test_a_late_withdrawal_does_not_close_what_was_opened_again(
    stage: Stage, withdraw: Withdraw, was_open: bool
) -> None:
    held = await stage.run()
    if was_open:
        await stage.store.open(held, [approval()], [])
    await withdraw(stage, held)
    withdrawal = stage.last_call
    await stage.store.open(held, [approval()], [])
    await stage.again(withdrawal)
    await stage.store.signal(held.keys, "approval", "s1", YES)


@by_open_or_park
@pytest.mark.parametrize("was_open", [True, False])
async def test_a_late_open_does_not_open_what_was_withdrawn(stage: Stage, withdraw: Withdraw, was_open: bool) -> None:
    held = await stage.run()
    if was_open:
        await stage.store.open(held, [approval()], [])
    await stage.store.open(held, [approval()], [])
    opened = stage.last_call
    await withdraw(stage, held)
    await stage.again(opened)
    with pytest.raises(SignalRejected):  # else it is accepted, and nobody ever reads it
        await stage.store.signal(held.keys, "approval", "s1", YES)


async def test_a_late_open_is_told_of_a_signal_that_came_since(stage: Stage) -> None:
    """Its reply, or that of the try before, is what the run learns of it from."""
    held = await stage.run()
    await stage.store.open(held, [approval(), timer(after_ms=60_000)], ["nothing"])
    await stage.store.signal(held.keys, "approval", "s1", YES)
    answer, key, _ = await stage.again(stage.wiretap.calls[-2])
    assert (answer, key) == (Answer.DONE, b"approval")


async def test_the_next_run_counts_its_calls_anew(stage: Stage) -> None:
    first = await stage.run()
    for _ in range(3):
        await stage.store.open(first, [approval()], ["approval"])
        await stage.store.set_status(first, "charging")
    second = await stage.claimed_by_another(first.keys)
    await stage.store.open(second, [], ["approval"])
    await stage.store.set_status(second, "shipping")
    fields = await stage.fields(first.keys)
    assert "waiting" not in fields
    assert fields["message"] == "shipping"


# ── set_status ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_status_said_again_is_no_new_state(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.set_status(held, "charging")
    before = await stage.check()
    async with stage.listening(held.keys.events) as heard:
        await stage.again()
        assert await heard.so_far() == []
    assert await stage.check() == before


async def test_a_late_status_does_not_take_back_a_later_one(stage: Stage) -> None:
    held = await stage.run()
    await stage.store.set_status(held, "charging")
    first = stage.last_call
    await stage.store.set_status(held, "shipping")
    await stage.again(first)
    assert (await stage.fields(held.keys))["message"] == "shipping"


# ── resume ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_resume_is_known_also_after_15_others(stage: Stage) -> None:
    held = await stage.ended(BROKEN)
    resumes = []
    for _ in range(17):
        await stage.store.resume(held.keys, new_token())
        resumes.append(stage.last_call)
        await stage.store.finish(await stage.take(held.keys), BROKEN, LONG_MS)
    before = await stage.check()
    for resume in resumes[1:]:
        assert answer_of(await stage.again(resume)) is Answer.DONE
    assert await stage.check() == before
    # no more: a long life must not make the hash grow
    assert before.hashes[held.keys.instance]["resumed_by"].count("\n") == 15


# ── a step that fails ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_failure_keeps_its_cause_when_the_reply_to_its_record_is_lost(
    redis_url: str, namespace: str, proxy: Proxy
) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        async def charge() -> None:
            raise ValueError("no money")

        try:
            await ctx.step("charge", charge)
        except StepFailed as error:
            return type(error.__cause__).__name__
        return "nothing"

    async with Engine(app, url=proxy.url, settings=Settings(namespace=namespace)) as engine:
        proxy.cut_each(Cut.REPLY, EachCall("record"))
        assert await (await engine.invoke(order, id="1")).result() == "ValueError"
