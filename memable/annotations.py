"""What annotations say: the name of a type, what a function returns, which JSON types a schema allows."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import typing
from typing import Any, Final

ALL_JSON_TYPES: Final = frozenset({"null", "boolean", "number", "string", "array", "object"})

UNTYPED: Final = inspect.Signature.empty
"""No annotation: the codec of it takes plain JSON only."""


def type_tag(tp: object) -> str:
    """A short readable name of a type: `int`, `Order`, `list[Order]`, `Order | None`.

    >>> type_tag(dict[str, list[int] | None])
    'dict[str, list[int] | None]'
    """
    if tp is None or tp is type(None):
        return "None"
    if tp is Ellipsis:
        return "..."
    origin, arguments = typing.get_origin(tp), typing.get_args(tp)
    if origin is None:
        name = getattr(tp, "__name__", None)
        return name if isinstance(name, str) else str(tp)
    if origin is typing.Annotated:
        return type_tag(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_tag, arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    flat = [f"[{', '.join(map(type_tag, each))}]" if isinstance(each, list) else type_tag(each) for each in arguments]
    return f"{type_tag(origin)}[{', '.join(flat)}]"


def underlying(fn: Any) -> Any:
    """The function (or class) that holds the annotations of the callable `fn`."""
    while True:
        if isinstance(fn, types.MethodType):
            fn = fn.__func__
        elif isinstance(fn, types.FunctionType):
            return fn
        elif isinstance(fn, functools.partial):
            fn = typing.cast("functools.partial[object]", fn).func
        elif isinstance(fn, staticmethod):
            fn = typing.cast("staticmethod[..., object]", fn).__func__
        else:
            break
    if isinstance(fn, type | types.BuiltinFunctionType) or hasattr(fn, "__wrapped__"):
        return fn
    return underlying(call) if isinstance(call := type(fn).__call__, types.FunctionType) else fn


def return_annotation(function: Any) -> object:
    """The resolved annotation of what a call of `function` comes to, `UNTYPED` without one.

    Raises what resolving it raises: a `NameError`, mostly.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        annotations = annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    else:
        annotations = getattr(function, "__annotations__", None) or {}
    if "return" not in annotations:
        return UNTYPED
    # only the return annotation is resolved: a parameter's may be importable for a type checker alone
    source = inspect.unwrap(function)
    holder = types.SimpleNamespace(__annotations__={"return": annotations["return"]})
    resolved = typing.get_type_hints(
        holder, globalns=getattr(source, "__globals__", {}), localns=_enclosing_names(source), include_extras=True
    )["return"]
    origin = typing.get_origin(resolved) or resolved
    is_awaitable = isinstance(origin, type) and issubclass(origin, collections.abc.Awaitable)
    if is_awaitable and not inspect.iscoroutinefunction(source):
        return (typing.get_args(resolved) or (UNTYPED,))[-1]
    return resolved


def _enclosing_names(source: Any) -> dict[str, Any]:
    """What a string annotation may name besides globals: type parameters, and what the function closes over."""
    names: dict[str, Any] = {parameter.__name__: parameter for parameter in getattr(source, "__type_params__", ())}
    free = getattr(getattr(source, "__code__", None), "co_freevars", ())
    for name, cell in zip(free, getattr(source, "__closure__", None) or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def schema_types(schema: Any, definitions: dict[str, Any], seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """The JSON types that a JSON schema allows, an integer as `number`; all of them where it does not say."""
    if not isinstance(schema, dict):
        return ALL_JSON_TYPES
    node = typing.cast("dict[str, Any]", schema)
    if reference := node.get("$ref"):
        name = str(reference).rpartition("/")[2]
        if name in seen or name not in definitions:
            return ALL_JSON_TYPES
        return schema_types(definitions[name], definitions, seen | {name})
    for word in ("anyOf", "oneOf"):
        if word in node:
            return frozenset[str]().union(*(schema_types(each, definitions, seen) for each in node[word]))
    if "const" in node:
        return frozenset({plain_type(node["const"])})
    if "enum" in node:
        return frozenset(map(plain_type, node["enum"]))
    if "type" in node:
        names: list[str] = [node["type"]] if isinstance(node["type"], str) else node["type"]
        return frozenset("number" if name == "integer" else name for name in names)
    return ALL_JSON_TYPES


def plain_type(value: object) -> str:
    """The JSON type of a plain value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
