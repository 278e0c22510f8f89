"""Lesson 29. Forking.

`fork` starts a new instance with the input of another and what that has recorded, up to a step: to go on differently
from there, with fixed code say, and to leave the first one as it is.
"""

from __future__ import annotations

import contextlib

import pytest

from memable import (
    App,
    Context,
    InputConflict,
    InstanceNotFound,
    RecordNotFound,
    SignalSuperseded,
    Status,
    StepFailed,
    current_step,
)
from tests.fundamentals.starting import Start


async def test_a_fork_goes_on_from_what_the_other_has_recorded(start: Start) -> None:
    app, called = App(), list[str]()

    async def do(name: str) -> int:
        called.append(name)
        return len(called)

    @app.workflow("report")
    async def report(ctx: Context, day: str) -> list[int]:
        return [await ctx.step(name, do, f"{name} {day}") for name in ("fetch", "render", "send")]

    async with start(app) as engine:
        first = await engine.invoke(report, "monday", id="first")
        assert await first.result() == [1, 2, 3]
        fork = await engine.fork(report, "first", before="send")
        assert fork.created
        assert await fork.result() == [1, 2, 4]
        assert await first.result() == [1, 2, 3]
    assert called == ["fetch monday", "render monday", "send monday", "send monday"]


async def test_without_a_key_it_takes_all_that_is_finished(start: Start) -> None:
    """A failure that the workflow has recorded, too: it is raised again. Name its key in `before` to try anew."""
    app, called = App(), list[str]()

    async def ship() -> str:
        called.append("ship")
        if len(called) == 1:
            raise ConnectionError("no van")
        return "shipped"

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        return await ctx.step("ship", ship)

    async with start(app) as engine:
        await (await engine.invoke(order, id="42")).wait()
        fork = await engine.fork(order, "42")
        assert (await fork.wait()).status is Status.FAILED
        assert called == ["ship"]
        anew = await engine.fork(order, "42", before="ship")
        assert await anew.result() == "shipped"
        assert (await engine.get(order, "42").wait()).status is Status.FAILED


async def test_one_that_waits_can_be_forked_and_both_wait_on(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        price = await ctx.step("price", str, "7 €")
        approved = await ctx.suspend("approval")
        return f"{price}, {approved}"

    async with start(app) as engine:
        one = await engine.invoke(order, id="one")
        await one.wait()
        other = await engine.fork(order, "one", new_id="other")
        assert (await other.wait()).status is Status.SUSPENDED
        await one.signal("approval", "yes")
        await other.signal("approval", "no")
        assert (await one.result(), await other.result()) == ("7 €, yes", "7 €, no")


async def test_what_a_fork_calls_has_an_idempotency_key_of_its_own(start: Start) -> None:
    app, used = App(), list[str]()

    def charge() -> None:
        used.append(current_step().idempotency_key)

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", charge)

    async with start(app) as engine:
        await (await engine.invoke(order, id="42")).result()
        await (await engine.fork(order, "42", before="charge")).result()
    assert len(set(used)) == 2


async def test_the_same_fork_is_started_once(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("charge", str)

    async with start(app) as engine:
        await (await engine.invoke(order, id="42")).result()
        assert (await engine.fork(order, "42", before="charge", new_id="43")).created
        assert not (await engine.fork(order, "42", before="charge", new_id="43")).created
        for taken in ("42", "43"):
            with pytest.raises(InputConflict, match=f"order/{taken} exists already, and is not this fork"):
                await engine.fork(order, "42", new_id=taken)


async def test_a_fork_has_the_labels_of_the_other(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None: ...

    async with start(app) as engine:
        await engine.invoke(order, id="42", labels={"tenant": "acme"})
        await engine.fork(order, "42", new_id="43")
        found = await engine.list_instances(labels={"tenant": "acme"})
        assert [each.instance_id for each in found.items] == ["43", "42"]


async def test_a_fork_is_cut_where_a_record_is(start: Start) -> None:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> None:
        with contextlib.suppress(StepFailed):
            await ctx.step("charge", int, "odd")

    async with start(app) as engine:
        await (await engine.invoke(order, id="42")).result()
        with pytest.raises(RecordNotFound, match="order/42 has no record under 'ship'"):
            await engine.fork(order, "42", before="ship")
        with pytest.raises(InstanceNotFound, match="no instance order/43"):
            await engine.fork(order, "43")
        assert [each.instance_id for each in (await engine.list_instances()).items] == ["42"]


async def test_children_that_have_ended_are_not_run_again(start: Start) -> None:
    """Unless their call is named in `rerun`: then it has children of its own."""
    app, called = App(), list[int]()

    @app.workflow("page")
    async def page(ctx: Context, number: int) -> int:
        called.append(number)
        return number * 10

    @app.workflow("book")
    async def book(ctx: Context) -> int:
        first = await ctx.call("cover", page, 7)
        pages = await ctx.fan_out("pages", [1, 2], page)
        return await ctx.step("bind", sum, [first, *pages], returns=int)

    async with start(app) as engine:
        assert await (await engine.invoke(book, id="one")).result() == 100
        fork = await engine.fork(book, "one", before="bind")
        assert await fork.result() == 100
        assert sorted(called) == [1, 2, 7]
        await fork.resume(rerun=["pages", "bind"])
        assert await fork.result() == 100
        assert sorted(called) == [1, 1, 2, 2, 7]


def race() -> App:
    app = App()

    @app.workflow("order")
    async def order(ctx: Context) -> str:
        name, value = await ctx.first("race", {"yes": ctx.suspend("approve"), "no": ctx.suspend("refuse")})
        return await ctx.step("say", f"{name}: {value}".format)

    return app


async def test_a_choice_is_taken_with_those_that_lost(start: Start) -> None:
    async with start(race()) as engine:
        one = await engine.invoke("order", id="one")
        await one.wait()
        await one.signal("approve", 1)
        assert await one.result() == "yes: 1"
        fork = await engine.fork("order", "one", before="say")
        assert await fork.result() == "yes: 1"
        for late in ("approve", "refuse"):
            with pytest.raises(SignalSuperseded):
                await fork.signal(late, 2)


async def test_a_choice_can_be_made_anew(start: Start) -> None:
    """Those that lost are waited for again, and take a signal."""
    async with start(race()) as engine:
        one = await engine.invoke("order", id="one")
        await one.wait()
        await one.signal("approve", 1)
        assert await one.result() == "yes: 1"
        await one.resume(rerun=["race", "approve", "say"])
        assert (await one.wait()).status is Status.SUSPENDED
        await one.signal("refuse", 2)
        assert await one.result() == "no: 2"
