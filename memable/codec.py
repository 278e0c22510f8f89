"""Values to JSON bytes and back, so that what a step hands back live is what every replay hands back.

Two kinds of codec. *Untyped*: plain JSON of exactly the built-in types, anything else is refused. *Typed*: whatever
pydantic can restore to an equal value, by a `TypeAdapter` built once per type; a value that does not come back equal
is refused, never silently changed. Fields are written by name and read by name or alias, so that an alias may change
under running instances. This is the only importer of orjson.

Deliberately lenient: an int is accepted for a float (the float is handed back, live too), an enum member that is a str
or int for a str or int, a `dict` for a model, whose contents may be in JSON form. Inside typed containers a bool passes
for an int and comes back as that int; at the top it is a `TypeMismatch`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Never, NoReturn, TypeVar, cast

import orjson
import pydantic_core
from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from memable.annotations import (
    ALL_JSON_TYPES,
    UNTYPED,
    plain_type,
    return_annotation,
    schema_types,
    type_tag,
    underlying,
)
from memable.errors import PayloadTooLarge, SerializationError, TypeMismatch
from memable.exactness import (
    MAX_DEPTH,
    PLAIN_SCALARS,
    at,
    complaint,
    difference,
    masked,
    never_json,
    nodes,
    not_plain,
    same_model,
    type_name,
)

__all__ = [
    "DEFAULT_MAX_PAYLOAD_BYTES",
    "UNTYPED",
    "Codec",
    "TypeCodec",
    "digest",
    "from_json",
    "json_type",
    "plain",
    "same_plain",
    "to_json",
]

DEFAULT_MAX_PAYLOAD_BYTES: Final = 1024 * 1024

_CONFIG: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="null")
_INFINITE: Final = re.compile(rb'Infinity|inf["+j-]')
_HOW_TO_TYPE: Final = (
    "annotate the function's return type, or pass returns=… (for a signal: give the SuspendPoint a type), "
    "or turn it into plain JSON first"
)


RENEW_KEY: Final = "it was sent as another type, or the type was changed since, and then: give the key a new version"
SEND_ANEW: Final = "it was sent as another type: send one that fits; or the type was changed since: let it read the old"
UPGRADE: Final = (
    "the type was changed since it was recorded: give the key a new version, so that the step is called again, or pass "
    "upgrade=…, which makes a new value of the old one"
)


class TypeCodec:
    """Encodes and decodes values of one type. Every error's text begins with `subject`."""

    tag: str = ""
    """A short readable name of the type, without its module: models move. Empty for the untyped one."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_bytes = max_payload_bytes

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of what is accepted, `None` if there is none."""
        return None

    @property
    def json_types(self) -> frozenset[str]:
        """The JSON types that a value may have; an integer is a `number`."""
        return ALL_JSON_TYPES

    def encode(self, value: object, subject: str) -> bytes:
        """JSON that decodes to an equal value; else `SerializationError`, `TypeMismatch` or `PayloadTooLarge`."""
        return self.roundtrip(value, subject)[0]

    def decode(self, raw: bytes, subject: str, remedy: str = RENEW_KEY) -> Any:
        """A fresh value from what `encode` gave; `TypeMismatch` if it does not fit the type that is declared now.

        `remedy`: why that may be, and what to do.
        """
        raise NotImplementedError

    def roundtrip(self, value: object, subject: str) -> tuple[bytes, Any]:
        """The JSON of `value`, and what decoding exactly these bytes gives: live equals replay by construction."""
        raise NotImplementedError

    def _fitting(self, raw: bytes, subject: str) -> bytes:
        if len(raw) > self._max_bytes:
            raise PayloadTooLarge(subject, size_bytes=len(raw), limit_bytes=self._max_bytes)
        return raw


class _Untyped(TypeCodec):
    """Plain JSON of exact types; `note` says why there is no type, where an author would expect one."""

    def __init__(self, max_payload_bytes: int, note: str = "") -> None:
        super().__init__(max_payload_bytes)
        self._note = note

    def roundtrip(self, value: object, subject: str) -> tuple[bytes, Any]:
        if type(value) not in PLAIN_SCALARS and not _is_plain((value,), MAX_DEPTH):
            raise self._refusal(value, subject)
        try:
            raw = orjson.dumps(value)
        except TypeError as error:  # an integer of more than 64 bits; or a key that is no str, a lone surrogate
            raw = self._written_slowly(value, subject, error)
        back = from_json(raw)
        if raw.find(b"null") >= 0 and back != value:  # what orjson makes of NaN and the infinities
            raise self._refusal(value, subject)
        return self._fitting(raw, subject), back

    def decode(self, raw: bytes, subject: str, remedy: str = RENEW_KEY) -> Any:  # noqa: ARG002  (anything fits)
        return _parsed(raw, subject)

    def _written_slowly(self, value: object, subject: str, error: Exception) -> bytes:
        if refusal := self._flaw(value, subject):
            raise refusal from error
        try:
            return _stdlib_dumps(value).encode()
        except ValueError as failure:  # an integer of more digits than Python prints
            raise SerializationError(f"{subject} has no exact JSON form: {failure}") from failure

    def _refusal(self, value: object, subject: str) -> SerializationError:
        return self._flaw(value, subject) or SerializationError(f"{subject} changed while it was written")

    def _flaw(self, value: object, subject: str) -> SerializationError | None:
        for path, node in nodes(value):
            if flaw := never_json(node):
                return _flawed(subject, path, flaw)
            if flaw := not_plain(node):
                return SerializationError(
                    f"{subject} has {flaw}{at(path)}, which is not plain JSON: {self._note}{_HOW_TO_TYPE}"
                )
        return None


class _Typed(TypeCodec):
    """Whatever pydantic restores to an equal value."""

    def __init__(self, tp: object, adapter: TypeAdapter[Any], max_payload_bytes: int) -> None:
        super().__init__(max_payload_bytes)
        self.tag = type_tag(tp)
        self._adapter = adapter
        self._is_model = isinstance(tp, type) and issubclass(tp, BaseModel)
        to_json, validate_json = adapter.serializer.to_json, adapter.validator.validate_json
        # no methods, which would have to look these up, nor partial, which takes its options apart in each call;
        # round_trip leaves out computed fields, which a model that forbids extra fields would not take back
        self._dump: Callable[[object], bytes] = lambda value: to_json(
            value, by_alias=False, round_trip=True, warnings=False
        )
        self._load: Callable[[bytes], Any] = lambda raw: validate_json(raw, strict=True, by_alias=True, by_name=True)
        self._schema: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        if self._schema is None:
            try:
                self._schema = self._adapter.json_schema(mode="validation")
            except Exception:
                return None
        return self._schema

    @property
    def json_types(self) -> frozenset[str]:
        schema = self.schema
        return ALL_JSON_TYPES if schema is None else schema_types(schema, schema.get("$defs", {}))

    def roundtrip(self, value: object, subject: str) -> tuple[bytes, Any]:
        try:
            raw = self._dump(value)
            back = self._load(raw)
            if not (same_model(value, back) if self._is_model else type(value) is type(back) and value == back):
                raw, back = self._settle(value, back, subject)
        except (SerializationError, TypeMismatch):
            raise
        except Exception as error:  # validators, serialisers and __eq__ are authors' code: anything may come
            raise self._refusal(value, subject, error) from error
        # a model's own config, a float as a key, a Decimal that allows it: an infinity can come back equal
        if raw.find(b"nf") >= 0 and _INFINITE.search(raw):
            _refuse(never_json, value, subject)
        return self._fitting(raw, subject), back

    def decode(self, raw: bytes, subject: str, remedy: str = RENEW_KEY) -> Any:
        try:
            return self._load(raw)
        except ValidationError as error:
            found = _parsed(raw, subject)
            if error.errors()[0]["type"] == "json_invalid":  # nested more deeply than pydantic reads
                raise SerializationError(f"{subject} cannot be read back as {self.tag}: {error}") from error
            detail = f"{complaint(error, found)}; what is stored does not fit the type that is declared here: {remedy}"
            raise TypeMismatch(subject, expected=self.tag, found=plain_type(found), detail=detail) from error
        except Exception as error:
            raise SerializationError(
                f"{subject} cannot be read back as {self.tag}: {type(error).__name__}: {error}"
            ) from error

    def _settle(self, value: object, back: Any, subject: str) -> tuple[bytes, Any]:
        """What to store for a value that came back as `back`, not equal at first sight; or the refusal."""
        _refuse(never_json, value, subject)
        changed = difference(value, back)
        if changed is None:
            # a dict became a model, an int a float: the record is of what is handed back, and that must be exact
            raw = self._dump(back)
            again = self._load(raw)
            changed = difference(back, again, exact=True)
            if changed is None:
                return raw, again
        elif mismatch := self._mismatch(value, subject):
            raise mismatch
        _refuse(masked, value, subject)
        raise SerializationError(
            f"{subject} does not round-trip as {self.tag}: {changed}. Declare the exact type: subclasses and "
            f"look-alikes in a union come back as another class; excluded, private and secret fields are lost"
        )

    def _mismatch(self, value: object, subject: str) -> TypeMismatch | None:
        """The error if `value` is no instance of the type at all."""
        try:
            self._adapter.validator.validate_python(value, strict=True)
        except ValidationError as error:
            detail = complaint(error, value)
            return TypeMismatch(subject, expected=self.tag, found=type_name(value), detail=detail)
        except Exception:
            return None
        return None

    def _refusal(self, value: object, subject: str, error: Exception) -> SerializationError | TypeMismatch:
        """The error for a value that could not even be written and read."""
        _refuse(never_json, value, subject)
        reason = complaint(error, value) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        if mismatch := self._mismatch(value, subject):
            if isinstance(error, ValidationError) and isinstance(value, dict):
                # a dict for a model: what is wrong inside says more than "not an instance of the model"
                return TypeMismatch(subject, expected=self.tag, found="dict", detail=reason)
            return mismatch
        return SerializationError(
            f"{subject} does not round-trip as {self.tag}: {reason}. Declare a type that pydantic can write as JSON "
            f"and read back (bytes in a model need ser_json_bytes and val_json_bytes 'base64' in its config)"
        )


class _Scalar(_Typed):
    """A type whose exact instances are immutable and known to be exact: no need to decode what was encoded."""

    def __init__(
        self, tp: type, adapter: TypeAdapter[Any], max_payload_bytes: int, write: Callable[[Any], bytes | None]
    ) -> None:
        super().__init__(tp, adapter, max_payload_bytes)
        self._type, self._write = tp, write

    def roundtrip(self, value: object, subject: str) -> tuple[bytes, Any]:
        if type(value) is self._type and (raw := self._write(value)) is not None:
            return self._fitting(raw, subject), value
        return super().roundtrip(value, subject)


def _write_str(value: str) -> bytes | None:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate: the slow way words the refusal
        return None


_SCALARS: Final[dict[object, Callable[[Any], bytes | None]]] = {
    str: _write_str,
    int: lambda value: orjson.dumps(value) if -(2**63) <= value < 2**63 else None,
    bool: orjson.dumps,
    float: lambda value: orjson.dumps(value) if math.isfinite(value) else None,
    type(None): orjson.dumps,
}


class Codec:
    """Gives the `TypeCodec` of a type or of a function's result; each is built once."""

    def __init__(self, *, max_payload_bytes: int = DEFAULT_MAX_PAYLOAD_BYTES) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._untyped = _Untyped(max_payload_bytes)
        self._by_type: dict[object, TypeCodec] = {}
        self._unhashable: list[tuple[object, TypeCodec]] = []
        self._by_function: dict[int, TypeCodec] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}

    def of(self, tp: object) -> TypeCodec:
        """The codec of `tp`; untyped for `Any`, `object`, a bare type variable and `UNTYPED`.

        `TypeError` for what is no type, or one that pydantic has no schema for.
        """
        # unions compare equal in any order, but the order decides which member an ambiguous value becomes
        key = tp if isinstance(tp, type) else (tp, getattr(tp, "__args__", None))
        try:
            codec = self._by_type.get(key)
        except TypeError:  # Annotated with unhashable metadata, for one
            codec = next((codec for known, codec in self._unhashable if known == tp), None)
            if codec is None:
                codec = self._built(tp)
                self._unhashable.append((tp, codec))
        if codec is None:
            codec = self._by_type[key] = self._built(tp)
        return codec

    def returned_by(self, fn: Callable[..., object]) -> TypeCodec:
        """The codec of what `fn` returns by its annotation; untyped when that is missing or cannot be resolved.

        Looks through `functools.partial`, bound methods and callable objects; a class returns itself; of a plain
        function that returns an awaitable it is the type awaited. Errors as for `of`.
        """
        # by id, which a weak reference guards against reuse: a WeakKeyDictionary costs five times as much per step
        codec = self._by_function.get(id(fn))
        if codec is not None:
            return codec
        function = underlying(fn)
        codec = self._by_function.get(id(function))
        if codec is None:
            codec = self._of_result(function)
            self._remember(function, codec)
        return codec

    def _remember(self, function: object, codec: TypeCodec) -> None:
        number, by_function, alive = id(function), self._by_function, self._alive

        def forget(_: weakref.ref[Any]) -> None:
            by_function.pop(number, None)
            alive.pop(number, None)

        try:
            alive[number] = weakref.ref(function, forget)
        except TypeError:  # some built-ins allow no weak references; asking them again is cheap
            return
        by_function[number] = codec

    def _of_result(self, function: Any) -> TypeCodec:
        name = getattr(function, "__qualname__", repr(function))
        try:
            tp = function if isinstance(function, type) else return_annotation(function)
        except Exception as error:
            reason = f"the return annotation of {name} cannot be resolved ({error}); "
            return _Untyped(self.max_payload_bytes, reason)
        try:
            return self.of(tp)
        except TypeError as error:
            raise TypeError(f"the result of {name}: {error}") from error

    def _built(self, tp: Any) -> TypeCodec:
        if tp in (UNTYPED, Any, object, NoReturn, Never) or isinstance(tp, TypeVar):
            return self._untyped
        if tp is None:
            return self.of(type(None))
        try:
            if isinstance(tp, str):
                raise TypeError("it is a string; pass the type itself")
            adapter = _adapter(tp)
        except Exception as error:  # a dozen classes, and whatever a type's own schema hook raises
            reason = str(error).partition("\n")[0]
            raise TypeError(
                f"values of type {type_tag(tp)} cannot be stored, since pydantic cannot handle it: {reason} "
                f"(use a type made of models, dataclasses and built-in types)"
            ) from error
        write = _SCALARS.get(tp) if isinstance(tp, type) else None
        if write is not None:
            return _Scalar(tp, adapter, self.max_payload_bytes, write)
        return _Typed(tp, adapter, self.max_payload_bytes)


def json_type(raw: bytes) -> str:
    """The JSON type of encoded `raw`, from its first byte."""
    first = raw.lstrip()[:1]
    name = _FIRST_BYTES.get(first)
    if name is None:
        raise SerializationError(f"not JSON: it begins with {first!r}")
    return name


_FIRST_BYTES: Final = {
    b"n": "null",
    b"t": "boolean",
    b"f": "boolean",
    b'"': "string",
    b"[": "array",
    b"{": "object",
} | {b"%d" % digit: "number" for digit in range(10)}
_FIRST_BYTES[b"-"] = "number"

_CANONICAL: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def digest(value: object, subject: str) -> str:
    """A short text that is the same for equal values in every process; `SerializationError` if there is none.

    It takes what pydantic can write as JSON: plain values, models, dataclasses, datetimes and the like.
    """
    try:
        if isinstance(value, Iterator):
            raise TypeError("an iterator can be read only once")
        written = _whole_floats(from_json(pydantic_core.to_json(value, by_alias=False, bytes_mode="base64")))
        if type(value) not in PLAIN_SCALARS and any(isinstance(node, set | frozenset) for _, node in nodes(value)):
            written = _in_any_order(written)  # the order of a set is another in each process
        text = _CANONICAL.encode(written)
    except Exception as error:
        raise SerializationError(
            f"{subject} has no JSON form that would tell it from others: {type(error).__name__}: {error}"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _in_any_order(value: Any) -> Any:
    if isinstance(value, list):
        return sorted(map(_in_any_order, cast("list[object]", value)), key=_CANONICAL.encode)
    if isinstance(value, dict):
        return {key: _in_any_order(each) for key, each in cast("dict[str, object]", value).items()}
    return value


def same_plain(one: bytes, other: bytes) -> bool:
    """Whether two JSON texts stand for equal plain values: key order and spacing do not matter, and `1.0` is `1`."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(raw: bytes) -> str:
    return _CANONICAL.encode(_whole_floats(plain(raw)))


def plain(raw: bytes) -> Any:
    """The plain JSON value of `raw`; `SerializationError` if it is not JSON."""
    return _parsed(raw, "the stored value")


def to_json(value: object) -> bytes:
    """Plain JSON to bytes, for memable's own records and messages: no check of types, but integers of any size.

    Lone surrogates become question marks: the text of some exception must not keep a failure from being recorded.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return _stdlib_dumps(value).encode(errors="replace")


def from_json(raw: bytes) -> Any:
    """Bytes to plain JSON; `ValueError` if they are none. Unlike orjson, it does not round large integers."""
    try:
        return pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError:  # also raised for nesting that an envelope made one level deeper than pydantic reads
        value = json.loads(raw, parse_constant=_refuse_constant)
        _stdlib_dumps(value).encode()  # raises for lone surrogates, which the standard library reads
        return value


def _flawed(subject: str, path: str, flaw: str) -> SerializationError:
    return SerializationError(f"{subject} cannot be stored{at(path)}: it has {flaw}")


def _refuse(flaw_of: Callable[[object], str | None], value: object, subject: str) -> None:
    for path, node in nodes(value):
        if flaw := flaw_of(node):
            raise _flawed(subject, path, flaw)


def _stdlib_dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _adapter(tp: Any) -> TypeAdapter[Any]:
    adapter: TypeAdapter[Any]
    try:
        adapter = TypeAdapter(tp, config=_CONFIG)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":  # models and their like have a config of their own
            raise
        adapter = TypeAdapter(tp)
    if not adapter.pydantic_complete:  # defer_build=True
        adapter.rebuild(raise_errors=True)
    return adapter


def _is_plain(values: Collection[object], depth: int) -> bool:
    """Whether all of `values` are of exact plain types; keys are left to orjson, which takes exact str only."""
    if PLAIN_SCALARS.issuperset(map(type, values)):
        return True
    if not depth:
        return False
    for value in values:
        kind = type(value)
        if kind in PLAIN_SCALARS:
            continue
        if kind is dict:
            children: Collection[object] = cast("dict[object, object]", value).values()
        elif kind is list:
            children = cast("list[object]", value)
        else:
            return False
        if not _is_plain(children, depth - 1):
            return False
    return True


def _parsed(raw: bytes, subject: str) -> Any:
    try:
        return from_json(raw)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"{subject} is not valid JSON, the bytes are damaged: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole_floats(value: Any) -> Any:
    """`value` with floats that are whole numbers made integers, as far as both are exact."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, list):
        return [_whole_floats(each) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _whole_floats(each) for key, each in cast("dict[str, object]", value).items()}
    return value
