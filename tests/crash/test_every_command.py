"""A worker dies before and after every Redis command of a representative run; each time the end is the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from memable import (
    App,
    ChildFailed,
    Context,
    Invocation,
    PermanentError,
    RetryPolicy,
    StepFailed,
    SuspendPoint,
    SuspendTimeout,
)
from tests.crash.mortal import Ledger, Play, die_everywhere

APPROVAL = SuspendPoint("approval", bool)

LONG_S = 0.02
"""A back-off that is long enough to be kept in Redis, here."""


def representative(ledger: Ledger) -> App:
    """Steps, retries at once and after a wait in Redis, a caught failure, a signal, a timer, a gather, a status."""
    app = App()

    async def flaky() -> str:
        ledger.calls["flaky"] += 1
        if ledger.calls["flaky"] % 2:
            raise ConnectionError("try again")
        return "flaky"

    async def later() -> str:
        ledger.calls["later"] += 1
        if ledger.calls["later"] % 2:
            raise ConnectionError("try again later")
        return "later"

    async def hopeless() -> str:
        ledger.calls["hopeless"] += 1
        raise PermanentError("never")

    @app.workflow("order")
    async def order(ctx: Context, amount: int) -> list[Any]:
        first = await ctx.step("first", ledger.effect("first"))
        ctx.set_status("charging")
        retried = await ctx.step("flaky", flaky, retry=RetryPolicy.fixed(3, 0.001))
        waited = await ctx.step("later", later, retry=RetryPolicy.fixed(3, LONG_S))
        try:
            await ctx.step("hopeless", hopeless)
            caught = "nothing"
        except StepFailed as error:
            caught = error.error_message
        approved = await ctx.suspend(APPROVAL, status="waiting")
        await ctx.timer("pause", 0.01)
        both = await asyncio.gather(
            ctx.step("left", ledger.effect("left")),
            ctx.suspend("note"),
            ctx.step("right", ledger.effect("right")),
        )
        last = await ctx.step("last", ledger.effect("last"))
        return [amount, first, retried, waited, caught, approved, *both, last]

    return app


STEPS = {"first", "flaky", "later", "hopeless", "left", "right", "last"}
ORDER = Play(
    make=representative,
    input=7,
    answers={"approval": True, "note": "noted"},
    end=[7, "first", "flaky", "later", "never", True, "left", "noted", "right", "last"],
    records=STEPS | {"approval", "pause", "note"},
    commands={"claim", "record", "settle", "open", "park", "finish", "set_status"},
)


@pytest.mark.spec("recorded-once")
async def test_a_worker_that_dies_at_any_command_changes_nothing_of_the_end(
    redis_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memable.runtime.steps.DURABLE_BACK_OFF_FROM_S", LONG_S)
    # at most the two steps of the gather are in flight
    untroubled, *_ = await die_everywhere(ORDER, redis_url, namespace, most_repeated=2)
    assert untroubled.calls == Counter({**dict.fromkeys(STEPS, 1), "flaky": 2, "later": 2})


def several_lives(ledger: Ledger) -> App:
    """Three lives, each with a step, a status, a signal, a wait that is never answered, and a map in the last."""
    app = App()

    async def effect(item: str) -> str:
        call = ledger.effect(item)
        return str(await call())

    @app.workflow("order")
    async def order(ctx: Context, life: int) -> list[Any]:
        first = await ctx.step("first", ledger.effect(f"first of {life}"))
        ctx.set_status(f"life {life}")
        answer = await ctx.suspend("answer", status=f"life {life}")
        if life == 3:
            return [first, answer, await ctx.map("map", ["one", "two"], effect, concurrency=1)]
        never = asyncio.create_task(ctx.suspend("never"))
        await ctx.step("last", ledger.effect(f"last of {life}"))
        assert not never.done()
        return ctx.continue_as(life + 1)

    return app


LIVES = Play(
    make=several_lives,
    input=1,
    answers={"answer": "go on"},
    end=["first of 3", "go on", ["one", "two"]],
    records={"first", "answer", "map[0]", "map[1]"},
    commands={"claim", "record", "open", "park", "finish", "set_status", "continue_as"},
)


@pytest.mark.spec("continue-as-atomic")
async def test_a_worker_that_dies_at_any_command_takes_no_life_and_adds_none(redis_url: str, namespace: str) -> None:
    untroubled, *troubled = await die_everywhere(LIVES, redis_url, namespace, most_repeated=1)
    assert set(untroubled.calls.values()) == {1}
    for ledger in [untroubled, *troubled]:
        # one for a step in a life, however often it is called
        keys = [key for (key,) in ledger.idempotency_keys.values()]
        assert len(set(keys)) == len(keys) == 7


def conversation(ledger: Ledger) -> App:
    """A signal that is kept, a timeout, messages: one that is kept, one for a receive that is open beside a step."""
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> list[Any]:
        early = await ctx.suspend("early", timeout=3600)
        try:
            late = await ctx.suspend("late", timeout=0.01)
        except SuspendTimeout as error:
            late = error.key
        said = await asyncio.gather(
            ctx.receive("hello", "chat"), ctx.step("think", ledger.effect("think")), ctx.receive("bye", "chat")
        )
        return [early, late, *said, await ctx.step("last", ledger.effect("last"))]

    return app


async def before_it_listens(order: Invocation[Any]) -> None:
    await order.signal("early", "kept", buffer=True)
    await order.send("chat", "hello")


CONVERSATION = Play(
    make=conversation,
    input=None,
    answers={},
    end=["kept", "late", "hello", "think", "bye", "last"],
    records={"early", "late", "hello", "think", "bye", "last"},
    commands={"claim", "record", "open", "park", "finish"},
    said={"bye": "bye"},
    begin=before_it_listens,
)


async def test_a_worker_that_dies_at_any_command_takes_no_message_and_no_kept_signal(
    redis_url: str, namespace: str
) -> None:
    untroubled, *_ = await die_everywhere(CONVERSATION, redis_url, namespace, most_repeated=1)
    assert set(untroubled.calls.values()) == {1}


def family(ledger: Ledger) -> App:
    """A call, a fan_out of which two live at a time, and one in which a failure cancels the other child."""
    app = App()

    @app.workflow("child")
    async def child(ctx: Context, name: str) -> str:
        if name == "waits":
            await ctx.suspend("never")
        if name == "fails":
            raise ValueError(name)
        return str(await ctx.step("work", ledger.effect(name)))

    @app.workflow("order")
    async def order(ctx: Context) -> list[Any]:
        one = await ctx.call("one", child, "one")
        many = await ctx.fan_out("many", ["a", "b", "c"], child, concurrency=2)
        try:
            await ctx.fan_out("hopeless", ["waits", "fails"], child)
            caught = "nothing"
        except ChildFailed as error:
            caught = error.error_message
        return [one, many, caught, await ctx.step("last", ledger.effect("last"))]

    return app


FAMILY = Play(
    make=family,
    input=None,
    answers={},
    end=["one", ["a", "b", "c"], "fails", "last"],
    records={"one", "many", "hopeless", "last"},
    commands={"claim", "spawn", "record", "park", "finish", "cancel"},
)


async def test_a_worker_that_dies_at_any_command_loses_no_child_and_makes_none_twice(
    redis_url: str, namespace: str
) -> None:
    untroubled, *_ = await die_everywhere(FAMILY, redis_url, namespace, most_repeated=2)
    assert untroubled.calls == Counter(dict.fromkeys(["one", "a", "b", "c", "last"], 1))


def races(ledger: Ledger) -> App:
    """Three races: a step comes first, then a signal, then a timer; two more side by side."""
    app = App()

    def never(ctx: Context, number: int) -> dict[str, Any]:
        return {"never": ctx.suspend(f"never-{number}"), "much later": ctx.timer(f"long-{number}", 3600)}

    @app.workflow("order")
    async def order(ctx: Context) -> list[Any]:
        outcomes = [
            await ctx.first("race-1", {**never(ctx, 1), "step": ctx.step("quick", ledger.effect("quick"))}),
            await ctx.first("race-2", {"signal": ctx.suspend("answer"), **never(ctx, 2)}),
            await ctx.first("race-3", {**never(ctx, 3), "timer": ctx.timer("soon", 0.01)}),
            *await asyncio.gather(
                ctx.first("race-4", {"step": ctx.step("left", ledger.effect("left")), **never(ctx, 4)}),
                ctx.first("race-5", {"step": ctx.step("right", ledger.effect("right")), **never(ctx, 5)}),
            ),
        ]
        last = await ctx.step("last", ledger.effect("last"))
        return [*([name, value] for name, value in outcomes), last]

    return app


RACES = Play(
    make=races,
    input=None,
    answers={"answer": True},
    end=[["step", "quick"], ["signal", True], ["timer", None], ["step", "left"], ["step", "right"], "last"],
    records={*(f"race-{number}" for number in range(1, 6)), "quick", "answer", "soon", "left", "right", "last"},
    commands={"claim", "record", "choose", "open", "park", "finish"},
)


async def test_a_worker_that_dies_at_any_command_changes_no_choice(redis_url: str, namespace: str) -> None:
    untroubled, *_ = await die_everywhere(RACES, redis_url, namespace, most_repeated=2)
    assert set(untroubled.calls.values()) == {1}
