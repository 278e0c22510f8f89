"""What goes in comes back equal, or is refused with a text that helps: never silently something else."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import itertools
import json
import math
import os
import subprocess
import sys
import typing
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    SerializeAsAny,
    computed_field,
    field_serializer,
    field_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict  # pydantic wants it before Python 3.12

from memable.codec import (
    UNTYPED,
    Codec,
    TypeCodec,
    digest,
    from_json,
    json_type,
    plain,
    same_plain,
    to_json,
)
from memable.errors import PayloadTooLarge, SerializationError, TypeMismatch

SUBJECT = "the result of step 'charge:v1' of order/42"
T = TypeVar("T")


class Order(BaseModel):
    id: str
    amount: float
    note: str | None = None


class VipOrder(Order):
    level: int = 1


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Box(BaseModel, Generic[T]):
    content: T


class Basket(BaseModel):
    orders: list[Order]
    by_id: dict[int, Order] = {}
    when: datetime | None = None
    size: timedelta = timedelta()
    data: bytes = b""


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int = Field(default=0, validation_alias="in", serialization_alias="out")
    y: int = Field(alias="why")

    @computed_field
    def z(self) -> int:
        return self.x + self.y


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 0


class WithPrivate(BaseModel):
    a: int
    _seen: int = PrivateAttr(default=0)


class WithExcluded(BaseModel):
    a: int
    hidden: int = Field(default=0, exclude=True)


class RequiredExcluded(BaseModel):
    hidden: int = Field(exclude=True)


class WithSecret(BaseModel):
    password: SecretStr


class OpenSecret(BaseModel):
    password: SecretStr

    @field_serializer("password")
    def _reveal(self, value: SecretStr) -> str:
        return value.get_secret_value()


class Doubling(BaseModel):
    """Not idempotent: each validation changes the value."""

    a: int

    @field_validator("a")
    @classmethod
    def _double(cls, value: int) -> int:
        return value * 2


class Shouting(BaseModel):
    a: str

    @field_validator("a")
    @classmethod
    def _upper(cls, value: str) -> str:
        return value.upper()


class Raising(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def _raise(cls, value: int) -> int:
        if value == 13:
            raise RuntimeError("unlucky")
        return value


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Infinite(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    a: float


class Deferred(BaseModel):
    model_config = ConfigDict(defer_build=True)
    a: int


class Holder(BaseModel):
    anything: Any = None
    maybe: float | None = None
    polymorphic: SerializeAsAny[Order] | None = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    lives: int = 1


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class TwinA(BaseModel):
    a: int


class TwinB(BaseModel):
    a: int


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass(eq=False)
class NoEquality:
    orders: list[Order]
    x: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    when: datetime
    raw: bytes = b""


@dataclasses.dataclass
class Counted:
    a: int
    total: int = dataclasses.field(init=False, default=3)


@pydantic_dataclass
class Checked:
    a: int


class Movie(TypedDict):
    title: str
    year: typing.NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: datetime


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


class Level(enum.IntEnum):
    LOW = 1


class Unknown:
    """Pydantic has no schema for it."""


MOMENT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NAIVE = datetime(2025, 1, 2, 3, 4, 5)  # noqa: DTZ001 - that is the case
NESTED_ORDER = {"id": "1", "amount": 1.5, "note": None}


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec()


def check_exact(typed: TypeCodec, value: object) -> Any:
    raw, live = typed.roundtrip(value, SUBJECT)
    replayed = typed.decode(raw, SUBJECT)
    assert live == replayed
    assert type(live) is type(replayed)
    assert typed.encode(value, SUBJECT) == raw
    assert json_type(raw) in typed.json_types
    return live


# --- typed: exact


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (int, 0), (int, -(2**63)), (int, 2**63), (int, 2**64), (int, 10**30), (int, -(10**300)),
        (bool, True), (bool, False), (None, None), (type(None), None),
        (str, ""), (str, 'ä\u2028\x00"\\🙂'), (float, 1.5), (float, 5e-324), (float, 1.7976931348623157e308),
        (float, 1e22),
        (bytes, b""), (bytes, b"\xff\x00abc"), (list[bytes], [b"\xff"]), (dict[bytes, int], {b"\xfe\xff": 1}),
        (list[int], [1, 10**40]), (tuple[int, str], (1, "a")), (tuple[int, ...], (1, 2)), (set[int], {3, 1}),
        (frozenset[str], frozenset({"a"})), (set[date], {date(2025, 1, 1)}), (dict[int, str], {1: "a", -2: "b"}),
        (dict[str, Any], {"a": [1, {"b": None}]}), (dict[date, int], {date(1, 1, 1): 1}),
        (dict[bool, int], {True: 1}),
        (dict[uuid.UUID, int], {uuid.UUID(int=5): 1}), (collections.deque[int], collections.deque([1])),
        (collections.Counter[str], collections.Counter("aab")),
        (datetime, MOMENT), (datetime, NAIVE), (date, date(9999, 12, 31)), (time, time(1, 2, 3, 4)),
        (datetime, datetime(2025, 7, 1, 12, tzinfo=ZoneInfo("Asia/Kathmandu"))),
        (datetime, datetime(2025, 10, 26, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin"))),
        (timedelta, timedelta(days=-3, microseconds=1)), (timedelta, timedelta.max), (timedelta, timedelta.min),
        (Decimal, Decimal("1.10")), (Decimal, Decimal("1E+30")), (Decimal, Decimal("-0")),
        (Decimal, Decimal("0.1234567890123456789012345678901234567890")), (complex, 1 + 2j),
        (uuid.UUID, uuid.UUID(int=2**100)), (Path, Path("/a/b")), (ZoneInfo, ZoneInfo("Europe/Berlin")),
        (Colour, Colour.RED), (Word, Word.YES), (Level, Level.LOW), (dict[Colour, int], {Colour.RED: 1}),
        (Literal["a", 1], 1),
        (int | None, None), (int | str, "7"), (int | str, 7), (int | float, 1.0), (int | float, 1),
        (bool | int, True),
        (Annotated[int, Field(gt=0)], 3), (Annotated[list[int], {"unhashable": 1}], [1]),
        (Order, Order(id="1", amount=1.5)), (Order | None, None), (list[Order], [Order(id="1", amount=2)]),
        (dict[str, tuple[Order, ...]], {"a": (Order(id="1", amount=2),)}),
        (VipOrder, VipOrder(id="1", amount=1, level=3)),
        (Order | VipOrder, VipOrder(id="1", amount=1)), (Node, Node(name="a", children=[Node(name="b")])),
        (Box[int], Box[int](content=3)), (Box[Order], Box[Order](content=Order(id="1", amount=1))),
        (Box[datetime], Box[datetime](content=MOMENT)),
        (Basket, Basket(orders=[], by_id={7: Order(id="7", amount=7)}, when=MOMENT, size=timedelta(microseconds=1))),
        (Aliased, Aliased.model_validate({"in": 3, "why": 4})), (list[Aliased], [Aliased.model_validate({"why": 4})]),
        (Loose, Loose.model_validate({"a": 1, "b": [1, None]})), (WithPrivate, WithPrivate(a=1)),
        (WithExcluded, WithExcluded(a=1)), (OpenSecret, OpenSecret(password=SecretStr("inf"))),
        (Shouting, Shouting(a="abc")), (Base64, Base64(data=b"\xff")), (Deferred, Deferred(a=1)),
        (Holder, Holder(anything={"a": [1.5]}, polymorphic=Order(id="1", amount=1))),
        (Pet, Dog()), (list[Pet], [Cat(), Dog()]), (Point, Point(1, 2.5)), (list[Point], [Point(1)]),
        (Frozen, Frozen(MOMENT, b"abc")), (Counted, Counted(1)), (Checked, Checked(1)),
        (Movie, {"title": "M", "year": 1931}), (Movie, {"title": "M"}), (Pair, Pair(1, MOMENT)),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.spec("typed-values")
def test_a_typed_value_comes_back_equal_and_of_its_type(codec: Codec, tp: object, value: Any) -> None:
    live = check_exact(codec.of(tp), value)
    assert live == value or isinstance(value, datetime)
    assert type(live) is type(value)
    if isinstance(value, datetime):
        assert live.utcoffset() == value.utcoffset()
        assert live.replace(tzinfo=None, fold=0) == value.replace(tzinfo=None, fold=0)


def test_minus_zero_keeps_its_sign(codec: Codec) -> None:
    for tp in (float, UNTYPED, float | None):
        assert math.copysign(1, check_exact(codec.of(tp), -0.0)) == -1


def test_a_dataclass_without_equality_is_compared_by_its_fields(codec: Codec) -> None:
    live = check_exact_fields(codec.of(NoEquality), NoEquality([Order(id="1", amount=1)], 5))
    assert live == {"orders": [Order(id="1", amount=1)], "x": 5}


def check_exact_fields(typed: TypeCodec, value: object) -> dict[str, Any]:
    raw, live = typed.roundtrip(value, SUBJECT)
    assert vars(live) == vars(typed.decode(raw, SUBJECT))
    fields: dict[str, Any] = vars(live)
    return fields


@pytest.mark.parametrize(
    ("tp", "value", "expected"),
    [
        (float, 1, 1.0), (list[float], [1], [1.0]), (float | None, 2, 2.0),
        (str, Word.YES, "yes"), (int, Level.LOW, 1), (Word, "yes", Word.YES),
        (Order, NESTED_ORDER, Order(id="1", amount=1.5)), (Order, {"id": "1", "amount": 2}, Order(id="1", amount=2)),
        (Order | None, NESTED_ORDER, Order(id="1", amount=1.5)),
        (list[Order], [NESTED_ORDER, Order(id="2", amount=1)], [Order(id="1", amount=1.5), Order(id="2", amount=1)]),
        (dict[int, Order], {1: NESTED_ORDER}, {1: Order(id="1", amount=1.5)}), (Point, {"x": 1}, Point(1)),
        (Basket, {"orders": [NESTED_ORDER], "when": MOMENT}, Basket(orders=[Order(id="1", amount=1.5)], when=MOMENT)),
        (Basket, {"orders": (), "when": MOMENT.isoformat()}, Basket(orders=[], when=MOMENT)),
        (Aliased, {"in": 1, "why": 2}, Aliased.model_validate({"in": 1, "why": 2})),
        (Aliased, {"x": 1, "y": 2}, Aliased.model_validate({"in": 1, "why": 2})),
        (Pet, {"kind": "dog", "lives": 2}, Dog(lives=2)), (Shouting, {"a": "abc"}, Shouting(a="ABC")),
        (Base64, {"data": "_w=="}, Base64(data=b"\xff")), (Base64, {"data": b"abcd"}, Base64(data=b"abcd")),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_accepted_for_a_type_is_handed_back_as_that_type_live_too(
    codec: Codec, tp: object, value: object, expected: object
) -> None:
    live = check_exact(codec.of(tp), value)
    assert live == expected
    assert type(live) is type(expected)


# --- typed: refused


@pytest.mark.parametrize(
    ("tp", "value", "expected", "found"),
    [
        (int, "7", "int", "str"), (int, True, "int", "bool"), (int, 1.0, "int", "float"), (int, None, "int", "None"),
        (bool, 1, "bool", "int"), (bool, "true", "bool", "str"), (float, True, "float", "bool"),
        (float, "1", "float", "str"),
        (str, 1, "str", "int"), (str, b"a", "str", "bytes"), (None, 1, "None", "int"),
        (int | None, True, "int | None", "bool"),
        (int, Unknown(), "int", "Unknown"), (bytes, "abcd", "bytes", "str"),
        (datetime, "2025-01-01", "datetime", "str"),
        (datetime, 5, "datetime", "int"), (Decimal, 0.5, "Decimal", "float"), (uuid.UUID, "x", "UUID", "str"),
        (list[int], ["7"], "list[int]", "list"), (list[bool], [1], "list[bool]", "list"),
        (list[int], (1,), "list[int]", "tuple"),
        (list[int], {1}, "list[int]", "set"), (tuple[int, ...], [1], "tuple[int, ...]", "list"),
        (dict[str, int], [], "dict[str, int]", "list"), (dict[str, int], {1: 1}, "dict[str, int]", "dict"),
        (list[bytes], ["abcd"], "list[bytes]", "list"), (Literal["a"], "b", "Literal['a']", "str"),
        (Colour, "red", "Colour", "str"),
        (Annotated[int, Field(gt=0)], -1, "int", "int"), (Order, "x", "Order", "str"), (Order, None, "Order", "None"),
        (Order, {"id": 1, "amount": 1.5}, "Order", "dict"), (Order, {"id": "1"}, "Order", "dict"),
        (Order, Point(1), "Order", "Point"), (Point, Order(id="1", amount=1), "Point", "Order"),
        (Movie, {"year": 1}, "Movie", "dict"), (Aliased, {"why": 1, "more": 2}, "Aliased", "dict"),
        (list[Order], [{"id": "1", "amount": "2"}], "list[Order]", "list"),
    ],
    ids=lambda each: repr(each).split(" at 0x")[0],  # an address is another in each process of pytest-xdist
)  # fmt: skip
@pytest.mark.spec("strict-scalars")
def test_a_value_of_another_type_is_a_type_mismatch(
    codec: Codec, tp: object, value: object, expected: str, found: str
) -> None:
    typed = codec.of(tp)
    for call in (typed.encode, typed.roundtrip):
        with pytest.raises(TypeMismatch) as caught:
            call(value, SUBJECT)
        assert str(caught.value).startswith(f"{SUBJECT}: type mismatch: expected {expected}, found {found}")
        assert (caught.value.subject, caught.value.expected, caught.value.found) == (SUBJECT, expected, found)


def test_a_type_mismatch_says_where_and_why(codec: Codec) -> None:
    with pytest.raises(TypeMismatch, match=r"Input should be a valid string, got int at \.orders\[0\]\.id"):
        codec.of(Basket).encode({"orders": [{"id": 1, "amount": 1.5}]}, SUBJECT)
    with pytest.raises(TypeMismatch, match="Field required: 'amount'"):
        codec.of(Order).encode({"id": "1"}, SUBJECT)


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (Order, VipOrder(id="1", amount=1)), (list[Order], [VipOrder(id="1", amount=1)]),
        (Holder, Holder(polymorphic=VipOrder(id="1", amount=1))), (WithExcluded, WithExcluded(a=1, hidden=2)),
        (RequiredExcluded, RequiredExcluded(hidden=1)), (Doubling, Doubling(a=1)), (Doubling, {"a": 1}),
        (TwinA | TwinB, TwinB(a=1)), (Literal[Colour.RED], Colour.RED), (str | datetime, MOMENT),
        (Holder, Holder(anything=MOMENT)),
        (Holder, Holder(anything=(1, 2))), (dict[str, Any], {"a": {1: 2}}),
        (dict[str, Any], {"a": Order(id="1", amount=1)}),
        (dict[tuple[int, int], int], {(1, 2): 3}), (list[float], [2**60 + 1]),
        (Basket, Basket(orders=[], data=b"\xff")), (WithSecret, {"password": "x"}), (typing.Iterable[int], [1, 2]),
        (Raising, Raising.model_construct(a=13)), (Order, Order.model_construct(id="1", amount=Unknown())),
    ],
)  # fmt: skip
def test_what_does_not_come_back_equal_is_refused(codec: Codec, tp: object, value: object) -> None:
    with pytest.raises((SerializationError, TypeMismatch)) as caught:
        codec.of(tp).roundtrip(value, SUBJECT)
    assert str(caught.value).startswith(SUBJECT)


def test_a_changed_private_attribute_is_refused(codec: Codec) -> None:
    model = WithPrivate(a=1)
    model._seen = 5
    with pytest.raises(SerializationError, match="does not round-trip as WithPrivate"):
        codec.of(WithPrivate).encode(model, SUBJECT)


def test_the_refusal_names_the_place_and_both_classes(codec: Codec) -> None:
    with pytest.raises(SerializationError, match=r"at \[0\] a VipOrder comes back as a Order"):
        codec.of(list[Order]).encode([VipOrder(id="1", amount=1)], SUBJECT)


@pytest.mark.parametrize("tp", [SecretStr, list[SecretStr], WithSecret])
def test_a_secret_is_refused_and_not_shown(codec: Codec, tp: Any) -> None:
    secret = SecretStr("hunter2")
    value = {SecretStr: secret, WithSecret: WithSecret(password=secret)}.get(tp, [secret])
    with pytest.raises(SerializationError, match="SecretStr, which is masked") as caught:
        codec.of(tp).encode(value, SUBJECT)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize(
    ("tp", "wrap"),
    [
        (UNTYPED, lambda x: x), (UNTYPED, lambda x: {"a": [1, x]}), (float, lambda x: x), (float | None, lambda x: x),
        (list[float], lambda x: [x]), (dict[str, Any], lambda x: {"a": x}), (Holder, lambda x: Holder(maybe=x)),
        (Holder, lambda x: Holder(anything=[x])), (Holder, lambda x: {"maybe": x}),
        (Infinite, lambda x: Infinite(a=x)),
        (dict[float, int], lambda x: {x: 1}), (Point, lambda x: Point(1, x)), (list[Point], lambda x: [Point(1, x)]),
        (Decimal, Decimal), (list[Infinite], lambda x: [Infinite(a=x)]), (tuple[float, ...], lambda x: (x,)),
        (Annotated[Decimal, Field(allow_inf_nan=True)], Decimal),
    ],
)  # fmt: skip
def test_nan_and_infinities_are_always_refused(
    codec: Codec, tp: object, wrap: Callable[[float], Any], number: float
) -> None:
    with pytest.raises(SerializationError, match="NaN nor infinities") as caught:
        codec.of(tp).encode(wrap(number), SUBJECT)
    assert str(caught.value).startswith(SUBJECT)


@pytest.mark.parametrize("tp", [UNTYPED, int, list[int], Order])
def test_a_forgotten_await_is_told(codec: Codec, tp: object) -> None:
    async def forgotten() -> int:
        return 1

    value = forgotten()
    with pytest.raises(SerializationError, match=r"a coroutine \(is an 'await' missing\?\)"):
        codec.of(tp).encode([value] if tp == list[int] else value, SUBJECT)
    value.close()


def test_words_that_look_like_an_infinity_are_no_harm(codec: Codec) -> None:
    for word in ("Infinity", "inf", "-inf", "info"):
        check_exact(codec.of(list[str]), [word])
        check_exact(codec.of(Order), Order(id=word, amount=1))


# --- untyped


PLAIN: list[Any] = [
    None, True, False, 0, -1, 2**63, 2**64, 10**30, -(10**40), 1.5, "", "ä🙂", [], {}, [[], {}],
    {"": {"a": [None, 1.5]}},
    {"big": [10**50], "text": "\u2028"}, deep(190),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:40])
def test_plain_json_comes_back_exactly(codec: Codec, value: object) -> None:
    live = check_exact(codec.of(UNTYPED), value)
    assert live == value
    assert type(live) is type(value)


class SubDict(dict[str, int]):
    pass


class SubStr(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1,), "a tuple"), ({1}, "a set"), (frozenset(), "a frozenset"), (MOMENT, "a datetime"),
        (date(1, 1, 1), "a date"),
        (b"", "a bytes"), (Decimal(1), "a Decimal"), (uuid.UUID(int=1), "a UUID"),
        (Order(id="1", amount=1), "a Order"),
        (Point(1), "a Point"), (Colour.RED, "a Colour"), (Word.YES, "a Word (a subclass of str)"),
        (Level.LOW, "a Level (a subclass of int)"), (Pair(1, MOMENT), "a Pair (a subclass of tuple)"),
        (collections.OrderedDict(a=1), "a OrderedDict (a subclass of dict)"),
        (SubDict(), "a SubDict (a subclass of dict)"),
        (SubStr("a"), "a SubStr (a subclass of str)"), ({1: 2}, "the key 1 (int, not str)"),
        ({None: 2}, "the key None (None, not str)"), ({SubStr("a"): 2}, "the key 'a' (SubStr, not str)"),
        ({Word.YES: 1}, "(Word, not str)"), (Unknown(), "a Unknown"), (len, "a builtin_function_or_method"),
        (SecretStr("x"), "a SecretStr"), (int, "a type"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
def test_anything_else_untyped_is_refused_with_place_type_and_advice(
    codec: Codec, value: object, text: str, nested: bool
) -> None:
    with pytest.raises(SerializationError) as caught:
        codec.of(UNTYPED).encode({"items": [0, {"when": value}]} if nested else value, SUBJECT)
    message = str(caught.value)
    assert message.startswith(f"{SUBJECT} has ")
    assert text in message
    assert (" at .items[1].when" in message) is nested
    assert "annotate the function's return type, or pass returns=" in message


def test_a_key_that_is_no_name_is_quoted_in_the_path(codec: Codec) -> None:
    with pytest.raises(SerializationError, match=r"a tuple at \['a b'\]\.c"):
        codec.of(UNTYPED).encode({"a b": {"c": ()}}, SUBJECT)


@pytest.mark.parametrize("tp", [UNTYPED, list[Any], Any])
@pytest.mark.parametrize("value", [circular(), deep(210), deep(100_000)], ids=["circular", "deep", "very deep"])
def test_circles_and_depth_are_refused_cleanly(codec: Codec, tp: object, value: object) -> None:
    with pytest.raises(SerializationError, match="contains itself, or is nested more than 190 levels"):
        codec.of(tp).roundtrip(value, SUBJECT)


def test_untyped_values_may_be_nested_190_levels(codec: Codec) -> None:
    check_exact(codec.of(UNTYPED), deep(190))
    with pytest.raises(SerializationError, match="more than 190 levels"):
        codec.of(UNTYPED).encode(deep(191), SUBJECT)


@pytest.mark.parametrize("tp", [UNTYPED, str, list[str], dict[str, Any]])
def test_lone_surrogates_are_refused_cleanly(codec: Codec, tp: object) -> None:
    for value in {
        UNTYPED: ["\ud800", {"\udfff": 1}, [10**30, "\ud800"]],
        str: ["a\ud800"],
        list[str]: [["\ud800"]],
    }.get(tp, [{"\ud800": 1}, {"a": ["\ud800"]}]):  # type: ignore[call-overload]
        with pytest.raises(SerializationError, match="lone surrogate"):
            codec.of(tp).encode(value, SUBJECT)


@pytest.mark.spec("integers")
def test_an_integer_too_long_for_python_to_print_is_refused(codec: Codec) -> None:
    for tp in (UNTYPED, int, list[int]):
        with pytest.raises(SerializationError) as caught:
            codec.of(tp).encode([10**5000] if tp == list[int] else 10**5000, SUBJECT)
        assert str(caught.value).startswith(SUBJECT)


# --- limits, freshness, corruption


@pytest.mark.parametrize("tp", [str, UNTYPED, str | None])
def test_a_value_over_the_limit_is_too_large(tp: object) -> None:
    typed = Codec(max_payload_bytes=10).of(tp)
    assert typed.encode("x" * 8, SUBJECT) == b'"xxxxxxxx"'
    with pytest.raises(PayloadTooLarge) as caught:
        typed.encode("x" * 9, SUBJECT)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (11, 10)
    assert str(caught.value).startswith(SUBJECT)


@pytest.mark.parametrize("tp", [UNTYPED, list[list[int]]])
def test_what_is_handed_back_is_never_the_value_given_nor_shared(codec: Codec, tp: object) -> None:
    given_value = [[1]]
    raw, live = codec.of(tp).roundtrip(given_value, SUBJECT)
    live[0].append(2)
    assert given_value == [[1]]
    assert codec.of(tp).decode(raw, SUBJECT) == [[1]]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'"\xff"', b"[1,]", b"NaN", b"nul", b'"\\ud800"'])
@pytest.mark.parametrize("tp", [UNTYPED, int, Order, list[str], str])
def test_damaged_bytes_are_a_serialization_error(codec: Codec, tp: object, raw: bytes) -> None:
    with pytest.raises(SerializationError) as caught:
        codec.of(tp).decode(raw, SUBJECT)
    assert str(caught.value).startswith(SUBJECT)


@pytest.mark.parametrize(
    ("tp", "raw", "expected", "found"),
    [(int, b'"7"', "int", "string"), (bool, b"1", "bool", "number"), (Order, b"[]", "Order", "array"),
     (str, b"null", "str", "null")],
)  # fmt: skip
def test_a_record_that_no_longer_fits_is_a_type_mismatch_that_suggests_a_new_version(
    codec: Codec, tp: object, raw: bytes, expected: str, found: str
) -> None:
    with pytest.raises(TypeMismatch, match="give the key a new version") as caught:
        codec.of(tp).decode(raw, SUBJECT)
    assert str(caught.value).startswith(f"{SUBJECT}: type mismatch: expected {expected}, found {found}")


def test_an_exception_of_an_authors_validator_is_a_serialization_error(codec: Codec) -> None:
    with pytest.raises(SerializationError, match="cannot be read back as Raising: RuntimeError: unlucky"):
        codec.of(Raising).decode(b'{"a":13}', SUBJECT)


def test_an_alias_may_change_under_recorded_values(codec: Codec) -> None:
    raw = codec.of(Aliased).encode(Aliased.model_validate({"in": 1, "why": 2}), SUBJECT)
    assert json.loads(raw) == {"x": 1, "y": 2}


# --- plain bytes


@pytest.mark.parametrize(
    ("raw", "name"),
    [(b"null", "null"), (b"true", "boolean"), (b"false", "boolean"), (b"-1", "number"), (b"0", "number"),
     (b'"a"', "string"),
     (b"[]", "array"), (b" \n{}", "object")],
)  # fmt: skip
def test_the_json_type_is_in_the_first_byte(raw: bytes, name: str) -> None:
    assert json_type(raw) == name


def test_bytes_that_are_no_json_have_no_type_and_no_value() -> None:
    for raw in (b"", b"x"):
        with pytest.raises(SerializationError):
            json_type(raw)
        with pytest.raises(SerializationError):
            plain(raw)


def test_order_spacing_and_the_point_of_whole_numbers_make_no_other_value() -> None:
    same = [b'{"a":1,"b":[2.5,null]}', b'{ "b" : [2.50, null], "a": 1.0 }', b'{"a":1e0,"b":[25e-1,null]}']
    assert all(same_plain(one, other) for one in same for other in same)
    texts = ["1", "true", '"1"', "null", "[1]", "{}", "[]", "1.5", "-1", "10000000000000000000000000001", "1e28"]
    assert not any(same_plain(a.encode(), b.encode()) for a, b in itertools.combinations(texts, 2))
    assert same_plain(b"0", b"-0.0")


def test_records_take_integers_of_any_size_and_never_fail_for_a_surrogate() -> None:
    assert from_json(to_json({"a": [10**30, 1]})) == {"a": [10**30, 1]}
    assert from_json(to_json({"error": "bad \ud800"})) == {"error": "bad ?"}
    assert from_json(b'{"record":' + to_json(deep(199)) + b"}") == {"record": deep(199)}


def test_from_json_refuses_what_is_no_json() -> None:
    for raw in (b"NaN", b"[Infinity]", b"", b"{", b"[" * 300 + b"NaN" + b"]" * 300):
        with pytest.raises(ValueError):  # noqa: PT011 - a dozen texts
            from_json(raw)


# --- by chance


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.integers(-(10**40), 10**40)
texts = st.text(st.characters(exclude_categories=["Cs"]))
plain_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


@given(plain_values)
def test_any_plain_json_round_trips_exactly(value: object) -> None:
    codec = Codec()
    raw, live = codec.of(UNTYPED).roundtrip(value, SUBJECT)
    assert repr(live) == repr(value)  # tells 1 from 1.0 from True, and -0.0 from 0.0
    assert repr(codec.of(dict[str, Any]).roundtrip({"a": value}, SUBJECT)[1]) == repr({"a": value})
    assert repr(plain(raw)) == repr(value)
    assert repr(json.loads(raw)) == repr(value)
    shuffled = json.dumps(value, indent=1, sort_keys=True).encode()
    assert same_plain(raw, shuffled)


@given(plain_values, plain_values)
def test_texts_are_the_same_exactly_for_equal_values(one: object, other: object) -> None:
    def tell(value: Any) -> Any:  # Python's True equals 1; JSON's does not
        if isinstance(value, list):
            return [tell(each) for each in value]
        if isinstance(value, dict):
            return {key: tell(each) for key, each in value.items()}
        if isinstance(value, float) and abs(value) < 2**53 and value.is_integer():
            value = int(value)
        return (type(value).__name__, value)

    assert same_plain(to_json(one), to_json(other)) == (tell(one) == tell(other))


TYPED: dict[Any, st.SearchStrategy[Any]] = {
    list[int]: st.lists(st.integers()),
    dict[int, float]: st.dictionaries(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    set[str]: st.sets(texts),
    tuple[bytes, ...]: st.lists(st.binary()).map(tuple),
    list[datetime]: st.lists(st.datetimes(timezones=st.none() | st.just(UTC))),
    dict[date, timedelta]: st.dictionaries(st.dates(), st.timedeltas()),
    list[Decimal]: st.lists(st.decimals(allow_nan=False, allow_infinity=False)),
    list[uuid.UUID | None]: st.lists(st.none() | st.uuids()),
    list[Order]: st.lists(
        st.builds(Order, id=texts, amount=st.floats(allow_nan=False, allow_infinity=False), note=st.none() | texts)
    ),
    Point: st.builds(Point, x=st.integers(), y=st.floats(allow_nan=False, allow_infinity=False)),
    list[time]: st.lists(st.times()),
}


@pytest.mark.parametrize("tp", TYPED, ids=repr)
@given(data=st.data())
def test_any_typed_container_round_trips_exactly(tp: Any, data: st.DataObject) -> None:
    value = data.draw(TYPED[tp])
    raw, live = CODEC.of(tp).roundtrip(value, SUBJECT)
    assert live == value
    assert type(live) is type(value)
    assert CODEC.of(tp).decode(raw, SUBJECT) == live


CODEC = Codec()


def test_the_decimal_context_does_not_matter(codec: Codec) -> None:
    with decimal.localcontext() as context:
        context.prec = 3
        check_exact(codec.of(Decimal), Decimal("1.23456789"))


# ── digests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_digest_tells_values_apart() -> None:
    values = [1, 2, "1", True, None, [1], [], {}, {"a": 1}, {"a": 2}, [1, 2], [2, 1], "x" * 1000, 2**70, 0.5]
    values += [Order(id="1", amount=1), Order(id="1", amount=2), date(2026, 1, 1), b"bytes", {4, 5}, {4, 6}]
    digests = {digest(value, SUBJECT) for value in values}
    assert len(digests) == len(values)
    assert {len(each) for each in digests} == {16}


def test_equal_values_have_one_digest() -> None:
    assert digest({"a": 1, "b": [1.0]}, SUBJECT) == digest({"b": [1], "a": 1}, SUBJECT)
    assert digest((1, 2), SUBJECT) == digest([1, 2], SUBJECT)


def test_a_digest_is_the_same_in_every_process_also_that_of_a_set() -> None:
    code = "from memable.codec import digest; print(digest({'tags': set(map(str, range(20))), 'at': [1, 2]}, ''))"
    told = {
        subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


@pytest.mark.parametrize("value", [object(), iter([1]), [object()], "\ud800", {"a": lambda: 1}])
def test_what_has_no_digest_is_refused(value: object) -> None:
    with pytest.raises(SerializationError, match=f"^{SUBJECT} has no JSON form that would tell it from others: "):
        digest(value, SUBJECT)
