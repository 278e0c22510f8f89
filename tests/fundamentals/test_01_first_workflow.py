"""Lesson 1. A workflow, an engine, an instance.

A *workflow* is an ordinary async function, registered with an `App`. `Engine(app)` is all that a test or a script
needs: a private server, a worker, and a client in one object. `engine.invoke(workflow, input)` begins an *instance*,
one life of the workflow, and gives a handle on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

import memable
from memable import (
    App,
    Context,
    Engine,
    InputConflict,
    InputMissing,
    InvalidKey,
    NotStarted,
    Status,
    TypeMismatch,
    WorkflowFailed,
    WorkflowNotFound,
)
from memable.connection import Endpoint
from tests.fundamentals.starting import Start


class Order(BaseModel):
    id: str
    amount: float


class Receipt(BaseModel):
    order: str
    paid: float


@pytest.mark.spec("engine", "invoke")
async def test_a_workflow_completes_and_its_result_comes_back_to_the_caller() -> None:
    app = App()

    @app.workflow("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    async with Engine(app) as engine:
        instance = await engine.invoke(greet, "world")
        assert await instance.result() == "hello world"


@pytest.mark.spec("register", "context")
async def test_a_function_is_registered_by_decorator_or_by_name() -> None:
    app = App()

    async def plain(ctx: Context) -> str:
        return f"{ctx.workflow_name}/{ctx.instance_id}"

    app.register("plain", plain)

    async with Engine(app) as engine:
        instance = await engine.invoke("plain", id="1")
        assert await instance.result() == "plain/1"


@pytest.mark.spec("register", "invoke", "dict-for-model")
async def test_input_and_result_are_of_the_types_that_the_function_declares(start: Start) -> None:
    app = App()

    @app.workflow()
    async def pay(ctx: Context, order: Order) -> Receipt:
        return Receipt(order=order.id, paid=order.amount)

    async with start(app) as engine:
        instance = await engine.invoke(pay, Order(id="42", amount=9.5))
        assert await instance.result() == Receipt(order="42", paid=9.5)
        # by name, and with a dict for the model: as it would come from outside
        instance = await engine.invoke("pay", {"id": "43", "amount": 1.5})
        assert await instance.result() == Receipt(order="43", paid=1.5)


@pytest.mark.spec("invoke-mismatch", "invoke-missing")
async def test_an_input_that_does_not_fit_is_refused_before_anything_begins(start: Start) -> None:
    app = App()

    @app.workflow("pay")
    async def pay(ctx: Context, order: Order) -> None: ...

    @app.workflow("ping")
    async def ping(ctx: Context) -> str:
        return "pong"

    async with start(app) as engine:
        with pytest.raises(TypeMismatch, match="type mismatch"):
            await engine.invoke("pay", "no order")
        with pytest.raises(InputMissing):
            await engine.invoke("pay")
        with pytest.raises(TypeMismatch, match="expected no input"):
            await engine.invoke("ping", 1)
        assert (await engine.list_instances()).items == []


@pytest.mark.spec("invoke-again", "invoke-conflict")
async def test_an_id_names_an_instance_so_that_invoking_twice_begins_it_once(start: Start) -> None:
    app, began = App(), list[str]()

    @app.workflow("pay")
    async def pay(ctx: Context, amount: int) -> int:
        began.append(ctx.instance_id)
        return amount

    async with start(app) as engine:
        first = await engine.invoke(pay, 10, id="order-42")
        again = await engine.invoke(pay, 10, id="order-42")
        assert (first.created, again.created) == (True, False)
        assert await again.result() == await first.result() == 10
        with pytest.raises(InputConflict, match="pay/order-42 exists already, with another input"):
            await engine.invoke(pay, 11, id="order-42")
    assert began == ["order-42"]


@pytest.mark.spec("invoke-many")
async def test_many_instances_are_begun_in_few_round_trips(start: Start) -> None:
    app = App()

    @app.workflow("double")
    async def double(ctx: Context, number: int) -> int:
        return number * 2

    async with start(app) as engine:
        instances = await engine.invoke_many(double, range(20))
        assert [await each.result() for each in instances if not isinstance(each, InputConflict)] == [
            number * 2 for number in range(20)
        ]


@pytest.mark.spec("app")
async def test_an_app_knows_its_own_workflows_and_no_others(start: Start) -> None:
    """There is no global registry: two apps may use the same name, and are two programs."""
    one, two = App(), App()

    @one.workflow("greet")
    async def hello(ctx: Context) -> str:
        return "hello"

    @two.workflow("greet")
    async def goodbye(ctx: Context) -> str:
        return "goodbye"

    assert (list(one), list(two), list(App())) == ([hello], [goodbye], [])
    async with Engine(one) as engine, Engine(two) as another:
        assert await (await engine.invoke("greet")).result() == "hello"
        assert await (await another.invoke("greet")).result() == "goodbye"


async def test_separate_instances_are_separate(start: Start) -> None:
    app = App()

    @app.workflow("count")
    async def count(ctx: Context, step: int) -> list[int]:
        return [await ctx.step(f"number {n}", int, n * step) for n in range(3)]

    async with start(app) as engine:
        twos, threes = await engine.invoke(count, 2, id="twos"), await engine.invoke(count, 3, id="threes")
        assert await twos.result() == [0, 2, 4]
        assert await threes.result() == [0, 3, 6]


async def test_the_same_id_of_another_workflow_is_another_instance(start: Start) -> None:
    app = App()

    @app.workflow("pay")
    async def pay(ctx: Context) -> str:
        return "paid"

    @app.workflow("ship")
    async def ship(ctx: Context) -> str:
        return "shipped"

    async with start(app) as engine:
        assert await (await engine.invoke(pay, id="42")).result() == "paid"
        assert await (await engine.invoke(ship, id="42")).result() == "shipped"


@pytest.mark.spec("invoke-unknown")
async def test_a_workflow_that_nobody_knows_cannot_be_begun(start: Start) -> None:
    async with start(App()) as engine:
        with pytest.raises(WorkflowNotFound, match="'nothing' is not known"):
            await engine.invoke("nothing")


@pytest.mark.spec("connect", "invoke-announced", "engine-url")
async def test_an_application_needs_no_app_only_a_connection(start: Start, redis_url: str, namespace: str) -> None:
    """The usual deployment: workers have the workflows, a web app has a client and their names."""
    app = App()

    @app.workflow("greet")
    async def greet(ctx: Context, name: str) -> str:
        return f"hello {name}"

    async with start(app), memable.connect(redis_url, namespace=namespace) as client:
        instance = await client.invoke("greet", "world")
        assert await instance.result() == "hello world"
        with pytest.raises(TypeMismatch):  # of what the workers announce, the client knows the type of the input
            await client.invoke("greet", 7)


@pytest.mark.spec("invoke-worker-sees")
async def test_an_input_that_only_the_worker_can_refuse_fails_the_instance(
    start: Start, redis_url: str, namespace: str
) -> None:
    """What is announced says that an order is an object, not which fields it must have."""
    app = App()

    @app.workflow("pay")
    async def pay(ctx: Context, order: Order) -> None: ...

    async with start(app), memable.connect(redis_url, namespace=namespace) as client:
        instance = await client.invoke("pay", {"amount": 9.5}, id="1")
        with pytest.raises(WorkflowFailed, match="the input of pay/1: type mismatch: expected Order, found") as failed:
            await instance.result()
        assert failed.value.error_type == TypeMismatch.__name__
        assert "it was sent as another type: send one that fits" in failed.value.error_message


@pytest.mark.spec("engine")
async def test_a_private_engine_keeps_nothing_and_uses_no_other_server(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMABLE_REDIS_URL", redis_url)
    monkeypatch.setenv("MEMABLE_NAMESPACE", namespace := f"test-{uuid4().hex}")
    app = App()

    @app.workflow("greet")
    async def greet(ctx: Context) -> str:
        return "hello"

    for _ in range(2):
        async with Engine(app) as engine:
            instance = await engine.invoke(greet, id="1")
            assert instance.created
            assert await instance.result() == "hello"
    with Endpoint.from_url(redis_url).sync_client() as admin:
        assert not admin.keys(f"{namespace}:*")


@pytest.mark.spec("engine-not-started")
async def test_an_engine_that_is_not_running_says_so() -> None:
    app = App()

    @app.workflow("ping")
    async def ping(ctx: Context) -> str:
        return "pong"

    engine = Engine(app)
    for _ in range(2):  # before it was started, and after it has been stopped
        with pytest.raises(NotStarted, match="the engine is not running"):
            await engine.invoke(ping)
        with pytest.raises(NotStarted):
            await engine.resume(ping, "1")
        with pytest.raises(NotStarted):
            await engine.signal(ping, "1", "go")
        async with engine:
            assert await (await engine.invoke(ping)).result() == "pong"


@pytest.mark.spec("engine-not-started", "wait-all", "wait-all-stays")
async def test_wait_all_returns_when_nothing_is_queued_or_running_and_takes_no_new_work(start: Start) -> None:
    app, done = App(), list[int]()

    @app.workflow("work")
    async def work(ctx: Context, number: int) -> None:
        await ctx.step("work", done.append, number)

    @app.workflow("waits")
    async def waits(ctx: Context) -> None:
        await ctx.suspend("for ever")

    async with start(app) as engine:
        waiting = await engine.invoke(waits, id="1")
        await engine.invoke_many(work, range(30))
        await engine.wait_all()
        assert sorted(done) == list(range(30))
        assert (await waiting.wait()).status is Status.SUSPENDED  # that is left as it is
        for new_work in (engine.invoke(work, 1), engine.resume(waits, "1"), engine.signal(waits, "1", "for ever")):
            with pytest.raises(NotStarted, match="after wait_all"):
                await new_work


@pytest.mark.spec("register-name", "register-function")
async def test_a_name_belongs_to_one_function_of_the_right_form() -> None:
    app = App()

    @app.workflow("taken")
    async def taken(ctx: Context) -> None: ...

    def not_async(ctx: Context) -> None: ...

    async def too_many(ctx: Context, one: int, two: int) -> None: ...

    async def too_few() -> None: ...

    async def by_keyword(ctx: Context, *, input: int) -> None: ...

    async def generates(ctx: Context) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(InvalidKey):  # the name is looked at first, whatever the function
        app.register("a/b", not_async)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ValueError, match="'taken' is registered already"):
        app.register("taken", not_async)  # type: ignore[arg-type]
    wrong: list[tuple[Any, str]] = [
        (not_async, "is not async"),
        (generates, "is an async generator"),
        (too_many, "takes 3 arguments"),
        (too_few, "takes 0 arguments"),
        (by_keyword, "has the parameter 'input: 'int''"),
        ("greet", "not 'greet'"),
    ]
    for fn, why in wrong:
        with pytest.raises(TypeError, match=r"a workflow is 'async def f\(ctx\)' or") as refused:
            app.register("new", fn)
        assert why in str(refused.value)


async def test_what_is_given_instead_of_a_workflow_is_told_what_it_should_be(start: Start) -> None:
    app = App()

    async def bare(ctx: Context) -> None: ...

    with pytest.raises(TypeError, match=r"write @app\.workflow\(\) or .* above <function .*, with parentheses"):
        app.workflow(bare)  # type: ignore[arg-type]  # @app.workflow, without parentheses

    @app.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.fan_out("children", [1], bare)  # type: ignore[call-overload]

    hint = r"invalid workflow <function .*: pass what @app\.workflow\(…\) or app\.register\(…\) has made of it"
    async with start(app) as engine:
        with pytest.raises(InvalidKey, match=hint):
            await engine.invoke(bare)  # type: ignore[call-overload]
        with pytest.raises(WorkflowFailed, match=hint) as failed:
            await (await engine.invoke(parent)).result()
        assert failed.value.error_type == "InvalidKey"


@pytest.mark.spec("register-late")
async def test_nothing_can_be_registered_while_an_engine_runs(start: Start) -> None:
    app = App()

    async def late(ctx: Context) -> None: ...

    async with start(app):
        with pytest.raises(RuntimeError, match="registered too late"):
            app.register("late", late)
    app.register("late", late)
