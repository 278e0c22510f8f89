"""Why a value has no exact JSON form, and where: the slow walks that word the codec's refusals.

Nothing here runs for a value that encodes and comes back equal.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import typing
from collections.abc import Awaitable, Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from memable.annotations import type_tag

# orjson writes 254 levels and pydantic reads 201: what is accepted must fit both, with room for an envelope around it
MAX_DEPTH: Final = 190

PLAIN_SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None)})
"""The exact types that are plain JSON and hold nothing else."""

_PLAIN_INPUT: Final = (str, int, float, type(None))


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A dict's key, among the nodes of a value."""

    key: object


class TooDeep:
    """Stands for what is nested too deeply, or contains itself."""


def nodes(value: object) -> Iterator[tuple[str, object]]:
    """Every part of `value` with its path, outermost first; it ends at what is nested too deeply."""
    stack: list[tuple[str, object, int]] = [("", value, 0)]
    while stack:
        path, node, depth = stack.pop()
        children = _children(node)
        if depth >= MAX_DEPTH and (children or isinstance(node, dict | list)):
            yield path if len(path) < 80 else f"{path[:80]}…", TooDeep()
            return
        yield path, node
        if isinstance(node, dict):
            for key in typing.cast("dict[object, object]", node):
                yield path, Key(key)
        stack.extend((path + step, child, depth + 1) for step, child in reversed(children))


def _children(node: Any) -> list[tuple[str, Any]]:
    """The parts of a container with their steps of a path; none of an object that is not understood."""
    if isinstance(node, dict):
        items = typing.cast("dict[object, object]", node).items()
        return [(step(key), child) for key, child in items]
    if isinstance(node, BaseModel | tuple) or dataclasses.is_dataclass(node):
        fields = _fields(node)
        if fields is not None:
            return [(step(name), child) for name, child in fields.items()]
    if isinstance(node, list | tuple):
        return [(f"[{i}]", child) for i, child in enumerate(typing.cast("list[object]", node))]
    if isinstance(node, set | frozenset | collections.deque):
        return [("[…]", child) for child in typing.cast("set[object]", node)]
    return []


def _fields(node: Any) -> dict[str, Any] | None:
    """The named parts of a model, dataclass, named tuple or object without an equality of its own; else `None`."""
    if isinstance(node, BaseModel):
        declared = {name: node.__dict__[name] for name in type(node).model_fields if name in node.__dict__}
        return declared | (node.__pydantic_extra__ or {}) | (node.__pydantic_private__ or {})
    if isinstance(node, type):
        return None
    if dataclasses.is_dataclass(node):
        return {field.name: getattr(node, field.name, None) for field in dataclasses.fields(node)}
    if isinstance(node, tuple):
        return node._asdict() if hasattr(node, "_asdict") else None  # pyright: ignore[reportAttributeAccessIssue]
    has_no_equality = getattr(type(node), "__eq__", None) is getattr(object, "__eq__", None)
    return dict(vars(node)) if has_no_equality and hasattr(node, "__dict__") else None


def step(key: object) -> str:
    """One step of a path: `.name`, or `['another key']`."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_shown(key)}]"


def _shown(key: object) -> str:
    try:
        text = repr(key)
    except Exception:
        return f"a {type_name(key)}"
    return text if len(text) < 60 else f"{text[:60]}…"


def at(path: str) -> str:
    """` at .items[3]`, or nothing for the value itself."""
    return f" at {path}" if path else ""


def type_name(value: object) -> str:
    """The short name of a value's type."""
    return type_tag(type(value))


def never_json(node: object) -> str | None:
    """What is wrong with `node`, if it has no JSON form whatever its type is declared to be."""
    if isinstance(node, Key):
        node = node.key
    if isinstance(node, float) and not math.isfinite(node):
        return f"{node} (JSON has neither NaN nor infinities: use None, or a string)"
    if isinstance(node, Decimal) and not node.is_finite():
        return f"Decimal {node} (neither NaN nor infinities are stored: use None, or a string)"
    if isinstance(node, str):
        try:
            node.encode()
        except UnicodeEncodeError:
            return "a string with a lone surrogate (decode it with errors='replace', or keep it as bytes with a type)"
    if isinstance(node, Awaitable):
        return f"a {type_name(node)} (is an 'await' missing?)"
    if isinstance(node, TooDeep):
        return f"something that contains itself, or is nested more than {MAX_DEPTH} levels deep (flatten it)"
    return None


def masked(node: object) -> str | None:
    """What is wrong with `node`, if it hides its value when it is written."""
    from pydantic import SecretBytes, SecretStr  # not at the top: pydantic's own types take a tenth of all imports

    if isinstance(node, SecretStr | SecretBytes):
        return f"a {type_name(node)}, which is masked when it is written (hand back a reference to it instead)"
    return None


def not_plain(node: object) -> str | None:
    """What is wrong with `node`, if it is not plain JSON."""
    if isinstance(node, Key):
        return None if type(node.key) is str else f"the key {_shown(node.key)} ({type_name(node.key)}, not str)"
    kind = type(node)
    if kind in PLAIN_SCALARS or kind in (dict, list, TooDeep):
        return None
    for base in (bool, int, str, float, dict, list, tuple):
        if isinstance(node, base):
            return "a tuple" if kind is tuple else f"a {kind.__name__} (a subclass of {base.__name__})"
    return f"a {kind.__name__}"


def difference(given: Any, back: Any, path: str = "", *, exact: bool = False) -> str | None:
    """Where and how `back` is not `given`, or `None`. Unless `exact`, a dict may have become a model."""
    kind, back_kind = type(given), type(back)
    changed = f"{at(path).strip()}{' ' if path else ''}a {type_name(given)} comes back "
    if kind is back_kind:
        if given == back or (isinstance(given, datetime) and _same_instant(given, back)):
            return None
        parts = _pairs(given, back)
        if parts is None:
            return f"{changed}with another value"
        return _first(difference(a, b, path + name, exact=exact) for name, a, b in parts)
    changed += f"as a {type_name(back)}"
    if exact or bool in (kind, back_kind):
        return changed
    if isinstance(given, dict) and not isinstance(back, dict):
        return _first(_lost(a, b, path + name) for name, a, b in _input_pairs(given, back))
    related = issubclass(kind, back_kind) or issubclass(back_kind, kind) or (kind is int and back_kind is float)
    return None if related and given == back else changed


def _lost(given: Any, back: Any, path: str) -> str | None:
    """Where and how something in the input of a model was misread on its way through JSON, or `None`.

    Validators may make anything of what is JSON already; what is not (a datetime, bytes) must have arrived as it was.
    """
    if isinstance(given, _PLAIN_INPUT):
        return None
    if isinstance(given, dict | list | tuple):
        return _first(_lost(a, b, path + name) for name, a, b in _input_pairs(given, back))
    return difference(given, back, path)


def _input_pairs(given: Any, back: Any) -> list[tuple[str, Any, Any]]:
    """The parts of some input beside what became of them, as far as that can be told."""
    if isinstance(given, dict):
        items = typing.cast("dict[object, Any]", given).items()
        if isinstance(back, dict):
            return [(step(key), part, back[key]) for key, part in items if key in back]
        return [
            (step(key), part, getattr(back, key)) for key, part in items if isinstance(key, str) and hasattr(back, key)
        ]
    if isinstance(back, list | tuple) and len(given) == len(back):
        return _pairs(list(given), list(back)) or []
    return []


def _pairs(given: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """The parts of two values of one type, side by side with their step; `None` if they cannot be matched."""
    fields = given if isinstance(given, dict) else _fields(given)
    if fields is not None:
        others = back if isinstance(back, dict) else _fields(back)
        if others is None or fields.keys() != others.keys():
            return None
        return [(step(name), part, others[name]) for name, part in fields.items()]
    if isinstance(given, list | tuple) and len(given) == len(back):
        return [(f"[{i}]", ours, theirs) for i, (ours, theirs) in enumerate(zip(given, back, strict=True))]
    return None


def _first(found: Iterable[str | None]) -> str | None:
    return next(filter(None, found), None)


def _same_instant(one: datetime, other: datetime) -> bool:
    """Whether two datetimes are the same moment; `==` says no for two zones where the clock is put back."""
    offset = one.utcoffset()
    if offset is None or offset != other.utcoffset():
        return False
    return one.replace(tzinfo=None, fold=0) == other.replace(tzinfo=None, fold=0)


def same_model(value: Any, back: Any) -> bool:
    """Whether two models are equal: like their `==`, which takes twice as long, but never one of another class."""
    return (
        type(value) is type(back)
        and value.__dict__ == back.__dict__
        and value.__pydantic_private__ == back.__pydantic_private__
        and value.__pydantic_extra__ == back.__pydantic_extra__
    )


def complaint(error: ValidationError, value: Any) -> str:
    """The first thing that pydantic complains of in `value`: its text, what is there, and the path."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = ""
    for part in first["loc"]:  # the names of union members and validators are among them: keep what can be followed
        if isinstance(value, dict) and part in value:
            value = typing.cast("dict[object, object]", value)[part]
        elif isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            value = typing.cast("list[object]", value)[part]
        elif isinstance(part, str) and not isinstance(value, dict | list | tuple | str) and hasattr(value, part):
            value = getattr(value, part)
        else:
            continue
        path += f"[{part}]" if isinstance(part, int) else step(part)
    if first["type"] == "missing" and first["loc"]:
        return f"{first['msg']}: {first['loc'][-1]!r}{at(path)}"
    return f"{first['msg']}, got {type_name(value)}{at(path)}"
