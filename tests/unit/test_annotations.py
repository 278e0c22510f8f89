# mypy: disable-error-code="empty-body, no-untyped-def"
"""Which codec belongs to a type, and to what a function returns; tags and JSON types."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import typing
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NoReturn, TypeVar

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic wants it before Python 3.12

from memable.codec import UNTYPED, Codec
from memable.errors import SerializationError

if TYPE_CHECKING:
    from memable.codec import TypeCodec as NotImportable

SUBJECT = "the result of step 'charge:v1' of order/42"
T = TypeVar("T")


class Order(BaseModel):
    id: str


class Node(BaseModel):
    children: list[Node] = []


class Box(BaseModel, Generic[T]):
    content: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@dataclasses.dataclass
class Point:
    x: int


class Movie(TypedDict):
    title: str


class Pair(NamedTuple):
    a: int


class Colour(enum.Enum):
    RED = "red"


class Unknown:
    """Pydantic has no schema for it."""


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec()


def test_codecs_are_built_once(codec: Codec) -> None:
    assert codec.of(Order) is codec.of(Order)
    assert codec.of(list[Order]) is codec.of(list[Order])
    unhashable = [Annotated[int, {"a": 1}], Annotated[int, {"a": 1}]]
    assert codec.of(unhashable[0]) is codec.of(unhashable[1])
    assert codec.of(None) is codec.of(type(None))
    assert codec.of(int | str) is not codec.of(str | int)


@pytest.mark.parametrize("tp", [UNTYPED, Any, object, T, NoReturn, typing.Never], ids=repr)
def test_what_says_nothing_is_untyped(codec: Codec, tp: object) -> None:
    typed = codec.of(tp)
    assert (typed.tag, typed.schema, len(typed.json_types)) == ("", None, 6)
    with pytest.raises(SerializationError):
        typed.encode((1,), SUBJECT)


@pytest.mark.parametrize("tp", [Unknown, list[Unknown], range, "Order", 3, typing.Self], ids=repr)
def test_a_type_without_schema_is_a_type_error(codec: Codec, tp: object) -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        codec.of(tp)


@pytest.mark.parametrize(
    ("tp", "tag", "json_types"),
    [
        (int, "int", "number"), (float, "float", "number"), (None, "None", "null"), (bool, "bool", "boolean"),
        (str, "str", "string"),
        (Order, "Order", "object"), (list[Order], "list[Order]", "array"),
        (Order | None, "Order | None", "object null"),
        (typing.Optional[int], "int | None", "number null"),  # noqa: UP045
        (typing.List[int], "list[int]", "array"),  # noqa: UP006
        (dict[int, tuple[str, ...]], "dict[int, tuple[str, ...]]", "object"),
        (Literal["a", 1], "Literal['a', 1]", "string number"),
        (datetime, "datetime", "string"), (bytes, "bytes", "string"), (Decimal, "Decimal", "number string"),
        (Colour, "Colour", "string"),
        (Pet, "Cat | Dog", "object"), (Box[int], "Box[int]", "object"), (Node, "Node", "object"),
        (Pair, "Pair", "array"),
        (Annotated[int, Field(gt=0)], "int", "number"), (Movie, "Movie", "object"), (Point, "Point", "object"),
        (list[Any], "list[Any]", "array"),
    ],
)  # fmt: skip
def test_tags_are_readable_and_json_types_known(codec: Codec, tp: object, tag: str, json_types: str) -> None:
    typed = codec.of(tp)
    assert typed.tag == tag
    assert typed.json_types == frozenset(json_types.split())
    assert isinstance(typed.schema, dict)


async def an_order() -> Order: ...
def typed_int(_missing: NotImportable) -> int: ...
def untyped(): ...
def unresolvable() -> NotImportable: ...
def to_await() -> Awaitable[Order]: ...
def coroutine() -> Coroutine[Any, Any, list[int]]: ...
def explicit_any() -> Any: ...
def nothing() -> None: ...
def never() -> NoReturn: ...
def bare() -> Awaitable: ...  # type: ignore[type-arg]
def generic(x: T) -> T: ...
def of_unknown() -> Unknown: ...


@functools.wraps(typed_int)
def wrapped(*args: Any) -> Any: ...


class Service:
    def method(self) -> Order: ...
    async def amethod(self) -> int: ...
    def __call__(self) -> str: ...

    @staticmethod
    def static() -> bool: ...

    @classmethod
    def make(cls) -> float: ...


@dataclasses.dataclass
class CallableData:
    value: int

    def __call__(self) -> str: ...


@pytest.mark.parametrize(
    ("fn", "tag"),
    [
        (an_order, "Order"), (typed_int, "int"), (untyped, ""), (unresolvable, ""), (to_await, "Order"),
        (coroutine, "list[int]"),
        (explicit_any, ""), (nothing, "None"), (never, ""), (bare, ""), (generic, ""), (wrapped, "int"),
        (Service().method, "Order"), (Service().amethod, "int"), (Service(), "str"), (Service.static, "bool"),
        (Service.make, "float"), (CallableData(1), "str"), (functools.partial(an_order), "Order"),
        (functools.partial(functools.partial(Service().method)), "Order"), (Order, "Order"), (int, "int"), (len, ""),
        ([].append, ""), ("".join, ""), (functools.lru_cache(typed_int), "int"), (lambda: 1, ""),
    ],
    ids=lambda each: repr(each).split(" at 0x")[0],  # an address is another in each process of pytest-xdist
)  # fmt: skip
def test_the_codec_of_a_functions_result(codec: Codec, fn: Callable[..., object], tag: str) -> None:
    assert codec.returned_by(fn).tag == tag
    assert codec.returned_by(fn).tag == tag


def test_a_class_local_to_a_function_is_found_where_the_function_uses_it(codec: Codec) -> None:
    class Local(BaseModel):
        a: int

    def make() -> Local:
        return Local(a=1)

    assert codec.returned_by(make).tag == "Local"


def test_an_unresolvable_annotation_is_named_when_it_matters(codec: Codec) -> None:
    with pytest.raises(
        SerializationError, match=r"return annotation of unresolvable cannot be resolved .*NotImportable"
    ):
        codec.returned_by(unresolvable).encode((1,), SUBJECT)


def test_a_return_type_without_schema_is_a_type_error_that_names_the_function(codec: Codec) -> None:
    with pytest.raises(TypeError, match="the result of of_unknown: values of type Unknown cannot be stored"):
        codec.returned_by(of_unknown)


def test_functions_are_forgotten_when_they_die() -> None:
    codec = Codec()
    for _ in range(100):

        def one() -> int: ...

        assert codec.returned_by(one).tag == "int"

        def other() -> str: ...

        assert codec.returned_by(other).tag == "str"
        del one, other
    gc.collect()
    assert (codec._by_function, codec._alive) == ({}, {})
