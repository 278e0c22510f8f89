"""Lesson 3. Live equals replay.

What a step hands back, and what it raises, is the same value of the same type the first time and in every replay:
each result passes through JSON once before it is handed back. With a return annotation (or `returns=`) that is
anything which pydantic can write and read; without one it is plain JSON. What cannot be stored is refused, never
changed.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from memable import (
    App,
    Context,
    MemableError,
    PayloadTooLarge,
    PermanentError,
    RetryPolicy,
    SerializationError,
    StepFailed,
    TypeMismatch,
)
from tests.fundamentals.starting import Start


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(BaseModel):
    lines: list[Line]
    placed: datetime


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Size(NamedTuple):
    width: int
    height: int


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


async def live_and_replayed(start: Start, fn: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    """What one step hands back or raises, when it is called and when its record is read."""
    app, seen = App(), list[Any]()
    settings = {"max_payload": options.pop("max_payload")} if "max_payload" in options else {}

    @app.workflow("twice")
    async def twice(ctx: Context) -> None:
        try:
            seen.append(await ctx.step("make:v1", fn, retry=RetryPolicy.fixed(3, delay=0), **options))
        except MemableError as error:
            seen.append(error)
        await ctx.suspend("pause")

    async with start(app, **settings) as engine:
        instance = await engine.invoke(twice, id="1")
        await instance.wait()
        await instance.signal("pause")
        await instance.result()
    live, replayed = seen
    return live, replayed


TYPED = [
    (int, 2**80),
    (int, -(2**63) - 1),
    (float, 0.1 + 0.2),
    (str, 'nul \x00, quote ", snowman \u2603, emoji \U0001f600'),
    (bytes, b"\x00\xff"),
    (bool, True),
    (type(None), None),
    (datetime, datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)),
    (datetime, datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (date, date(1, 1, 1)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (Decimal, Decimal("0.10")),
    (uuid.UUID, uuid.UUID(int=7)),
    (PurePosixPath, PurePosixPath("a/b")),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Order, Order(lines=[Line(sku="a", count=2)], placed=datetime(2024, 1, 1, tzinfo=UTC))),
    (Point, Point(1.0, 2.5)),
    (Size, Size(3, 4)),
    (tuple[int, str], (1, "one")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {1: "one"}),
    (dict[date, list[Line]], {date(2024, 1, 1): [Line(sku="a")]}),
    (list[Point | Line], [Point(0.0, 0.0), Line(sku="b")]),
    (int | None, None),
]


@pytest.mark.parametrize(("type_", "value"), TYPED, ids=lambda each: repr(each)[:40])
@pytest.mark.spec("live-equals-replay", "typed-values", "integers", "step-returns")
async def test_a_typed_value_comes_back_equal_and_of_the_same_type(start: Start, type_: Any, value: Any) -> None:
    def make() -> Any:
        return value

    live, replayed = await live_and_replayed(start, make, returns=type_)
    assert live == replayed == value
    assert type(live) is type(replayed) is type(value)


PLAIN: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    -0.0,
    "",
    "text",
    [],
    {},
    [[1, [None]], {"a": {"b": [True, 1, 1.0]}}],
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
@pytest.mark.spec("live-equals-replay", "untyped-values", "integers")
async def test_without_a_type_plain_json_comes_back_as_it_was(start: Start, value: Any) -> None:
    def make():  # type: ignore[no-untyped-def]  # an author without annotations
        return value

    live, replayed = await live_and_replayed(start, make)
    assert repr(live) == repr(replayed) == repr(value)


@pytest.mark.spec("through-the-codec")
async def test_what_comes_back_is_a_copy_from_the_first_time_on(start: Start) -> None:
    """Else the live run would see changes to an object that no replay can see."""
    mine = {"count": 1}

    def make() -> dict[str, int]:
        return mine

    live, _ = await live_and_replayed(start, make)
    mine["count"] = 2
    assert live == {"count": 1}


@pytest.mark.spec("step-returns", "dict-for-model")
async def test_the_type_is_taken_from_the_annotation_and_a_dict_is_accepted_for_a_model(start: Start) -> None:
    async def from_an_api() -> Line:
        return {"sku": "a"}  # type: ignore[return-value]  # as authors do

    live, replayed = await live_and_replayed(start, from_an_api)
    assert live == replayed == Line(sku="a", count=1)


UNTYPED_REFUSALS = [(1, 2), {1}, {1: "one"}, datetime(2024, 1, 1, tzinfo=UTC), b"bytes", Line(sku="a"), Colour.RED]


@pytest.mark.parametrize("value", UNTYPED_REFUSALS, ids=repr)
@pytest.mark.spec("untyped-values", "untyped-refused")
async def test_without_a_type_anything_else_is_refused_and_the_text_says_how_to_type_it(
    start: Start, value: Any
) -> None:
    live, replayed = await live_and_replayed(start, lambda: value)
    for error in (live, replayed):
        assert type(error) is SerializationError
        assert "step 'make:v1' of twice/1" in str(error)
        assert "annotate the function's return type, or pass returns=" in str(error)
    assert str(live) == str(replayed)


@pytest.mark.parametrize("returns", [None, list[float]], ids=["untyped", "typed"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.spec("nan")
async def test_nan_and_infinities_are_always_refused(start: Start, value: float, returns: Any) -> None:
    live, replayed = await live_and_replayed(start, lambda: [value], returns=returns)
    assert type(live) is type(replayed) is SerializationError
    assert "neither NaN nor infinities" in str(live)
    assert str(live) == str(replayed)


@pytest.mark.parametrize(("type_", "value"), [(int, "7"), (int, True), (str, 7), (Line, 7)], ids=repr)
@pytest.mark.spec("strict-scalars")
async def test_a_value_of_another_type_is_refused(start: Start, type_: Any, value: Any) -> None:
    live, replayed = await live_and_replayed(start, lambda: value, returns=type_)
    assert type(live) is type(replayed) is TypeMismatch
    assert f"type mismatch: expected {type_.__name__}, found {type(value).__name__}" in str(live)
    assert vars(live) == vars(replayed)


async def test_a_value_over_the_limit_is_refused(start: Start) -> None:
    live, replayed = await live_and_replayed(start, lambda: "x" * 200, max_payload=100)
    assert type(live) is type(replayed) is PayloadTooLarge
    assert "step 'make:v1' of twice/1 is 202 bytes as JSON, over the limit of 100" in str(live)
    assert vars(live) == vars(replayed)


@pytest.mark.parametrize("what", ["no JSON", "another type", "too large"])
@pytest.mark.spec("unstorable-result", "caught-failure")
async def test_what_cannot_be_stored_is_never_retried_since_its_effect_has_happened(start: Start, what: str) -> None:
    called = list[str]()

    def make() -> Any:
        called.append(what)
        return {"no JSON": object(), "another type": "text", "too large": 10**300}[what]

    returns = None if what == "no JSON" else int
    live, replayed = await live_and_replayed(start, make, returns=returns, max_payload=150)
    assert type(live) is type(replayed)
    assert issubclass(type(live), SerializationError | TypeMismatch | PayloadTooLarge)
    assert called == [what]


class OutOfStock(Exception):
    def __init__(self, sku: str) -> None:
        super().__init__(f"no {sku} left")


@pytest.mark.parametrize(
    "error", [OutOfStock("hats"), PermanentError("never"), KeyError("k"), TimeoutError(), OSError(5, "io")]
)
@pytest.mark.spec("live-equals-replay", "fails-the-same")
async def test_a_failure_comes_back_as_the_same_failure(start: Start, error: Exception) -> None:
    def fail() -> None:
        raise error

    live, replayed = await live_and_replayed(start, fail)
    assert isinstance(live, StepFailed)
    assert type(live) is type(replayed)
    assert vars(live) == vars(replayed)
    assert str(live) == str(replayed)
    assert (live.error_type, live.error_message) == (type(error).__name__, str(error))


async def test_the_text_of_an_exception_may_be_anything(start: Start) -> None:
    def fail() -> None:
        raise ValueError('"\n\x00 \u2603 ,"result":')

    live, replayed = await live_and_replayed(start, fail)
    assert live.error_message == replayed.error_message == '"\n\x00 \u2603 ,"result":'
    assert str(live) == str(replayed)


async def test_the_result_of_a_workflow_is_checked_in_the_same_way(start: Start) -> None:
    app = App()

    @app.workflow("bad result")
    async def bad_result(ctx: Context) -> int:
        return "seven"  # type: ignore[return-value]  # that is the point

    async with start(app) as engine:
        state = await (await engine.invoke(bad_result, id="1")).wait()
        assert str(state) == (
            "failed: TypeMismatch: the result of bad result/1: type mismatch: expected int, found str "
            "(Input should be a valid integer, got str)"
        )
