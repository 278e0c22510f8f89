"""Loads the Lua scripts. Each is one state transition; listing this folder lists the state machine.

A script's header is read, not only by people: its names become the locals that the script works with, so that it
cannot drift.

```lua
-- record: write a step's record once, if this run still holds the instance.
-- MOVES  running -> suspended | queued         from which status to which, if it moves one
-- USES  time, points                          snippets of lib/, in order
-- KEYS  instance  hash  lease, recoveries     one line a key: name, type, what of it is touched
-- ARGV  lease, key, record, withdrawn...      names of arguments; the last may take the rest
-- RETURNS  DONE written | LEASE_LOST …        answers, by their names in `Answer`
-- RETRY  how a call repeated after a lost reply is recognised, and what it gets
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from hashlib import sha1
from importlib.resources import files
from itertools import product
from typing import Any, cast

from memable.keys import BEREFT, DEADLINE_KEY, DELAY_KEY, ENTRY_FIELD, GROUP, NEWS, OVER
from memable.lua.snippets import needed, words_of
from memable.state import Status


class Answer(IntEnum):
    """What a script answers first."""

    DONE = 1
    ALREADY = 0
    SATISFIED = 2
    LEASE_LOST = -1
    STALE = -2
    UNKNOWN = -3
    CONFLICT = -4
    TERMINAL = -5
    SUPERSEDED = -6
    NOT_REACHED = -7
    MISMATCH = -8
    FORGOTTEN = -9
    BUSY = -10
    NO_RECORD = -11


Argument = bytes | str | int | float


@dataclass(frozen=True, eq=False)
class Script:
    """One script of this folder."""

    name: str
    promise: str
    moves: frozenset[tuple[str, str]]
    """From which status to which it may move an instance: its own, and by further lines a parent or children.

    `new` is before the first status, `gone` after the last.
    """
    keys: tuple[str, ...]
    """Names of its keys; the last may end with `...`."""
    arguments: tuple[str, ...]
    """Names of its arguments; the last may end with `...`."""
    returns: str
    retry: str
    source: str
    sha: str
    bind: Callable[..., list[Argument]]
    """Named keys and arguments, brought into the order that the script takes."""
    key_count: int
    """How many keys come first; a script that takes any number of them is called with its own count."""


def _header(text: str) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith("-- "):
            break
        word, _, rest = line[3:].partition(" ")
        lines.setdefault(word, []).append(rest.strip())
    return lines


def _moves(line: str) -> Iterable[tuple[str, str]]:
    sources, _, rest = line.partition(" -> ")
    targets, _, _ = rest.partition("  ")
    for each in (sources, targets):
        if not set(each.split(" | ")) <= _PLACES:
            raise ValueError(f"{line!r} names something else than statuses")
    return product(sources.split(" | "), targets.split(" | "))


_PLACES = {"new", *Status, "gone"}


def _locals(table: str, names: Sequence[str]) -> Iterable[str]:
    for at, name in enumerate(names, 1):
        if not name.endswith("..."):
            yield f"local {name} = {table}[{at}]"
        elif at < len(names):
            raise ValueError(f"{name} takes the rest, and is not the last")
        else:
            yield f"local {name[:-3]} = {{}} for i = {at}, #{table} do {name[:-3]}[i - {at - 1}] = {table}[i] end"


def _binder(name: str, names: Sequence[str]) -> Callable[..., list[Argument]]:
    parameters = ", ".join(each.removesuffix("...") for each in names)
    values = ", ".join(f"*{each[:-3]}" if each.endswith("...") else each for each in names)
    # compiled, as a dataclass's __init__ is: a dict of what was given costs three times as much to make and take apart
    bind: Callable[..., list[Argument]] = eval(f"lambda *, {parameters}: [{values}]")  # noqa: S307 - names are checked
    bind.__qualname__ = f"script {name}"  # for the TypeError
    return bind


_NAMES = {
    "GROUP": GROUP,
    "ENTRY_FIELD": ENTRY_FIELD,
    "NEWS": NEWS,
    "OVER": OVER,
    "DELAY_KEY": DELAY_KEY,
    "DEADLINE_KEY": DEADLINE_KEY,
    "BEREFT": BEREFT,
}
"""What scripts know by the names that it has in keys.py."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.\.\.)?")


@cache
def _text(path: str) -> str:
    return files("memable.lua").joinpath(path).read_text("utf-8")


@cache
def load(name: str) -> Script:
    """The script `name`, its snippets and its header's locals in front; `ValueError` for a header not in order."""
    return assemble(name, _text(f"{name}.lua"))


class _Later:
    """Stands for a script until it is used for the first time, and is that script from then on."""

    def __init__(self, name: str) -> None:
        self._of = name

    def __getattr__(self, attribute: str) -> Any:
        script = load(self._of)
        vars(self).update(vars(script))
        # without it each attribute of each call would first ask whether this method has to be
        self.__class__ = Script  # type: ignore[assignment]
        return getattr(script, attribute)


def later(name: str) -> Script:
    """The script `name`, read when it is first used: an import must not pay for scripts that are never run."""
    return cast("Script", _Later(name))


def assemble(name: str, body: str) -> Script:
    """The script whose file has the text `body`."""
    header = _header(body)
    try:
        (promise,), (returns,), (retry,) = header[f"{name}:"], header["RETURNS"], header["RETRY"]
    except (KeyError, ValueError):
        raise ValueError(f"{name}.lua needs one line each of '-- {name}:', '-- RETURNS' and '-- RETRY'") from None
    keys = tuple(line.split()[0] for line in header.get("KEYS", []))
    arguments = tuple(word.strip() for line in header.get("ARGV", []) for word in line.split(","))
    named = [each.removesuffix("...") for each in (*keys, *arguments)]
    if len(set(named)) < len(named) or not all(_NAME.fullmatch(each) for each in (*keys, *arguments)):
        raise ValueError(f"{name}.lua names a key or an argument twice, or wrongly")
    snippets = [word.strip() for line in header.get("USES", []) for word in line.split(",")]
    defined, words = needed([_text(f"lib/{each}.lua") for each in snippets], words_of(body))
    constants = [f"local {each.name} = {each.value}" for each in Answer if each.name in words]
    constants += [f"local {each} = '{value}'" for each, value in _NAMES.items() if each in words]
    # the names of keys and arguments come after the snippets, which must not see them
    arguments_as_locals = " ".join([*_locals("KEYS", keys), *_locals("ARGV", arguments)])
    source = "\n".join([" ".join(constants), *defined, arguments_as_locals, body])
    return Script(
        name=name,
        promise=promise,
        moves=frozenset(move for line in header.get("MOVES", []) for move in _moves(line)),
        keys=keys,
        arguments=arguments,
        returns=returns,
        retry=retry,
        source=source,
        sha=sha1(source.encode(), usedforsecurity=False).hexdigest(),
        bind=_binder(name, (*keys, *arguments)),
        key_count=len(keys),
    )


def names() -> list[str]:
    """The names of all scripts."""
    return sorted(each.name[:-4] for each in files("memable.lua").iterdir() if each.name.endswith(".lua"))
