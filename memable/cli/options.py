"""What the everyday commands share: which Redis, which namespace, and for whom the output is."""

from __future__ import annotations

import asyncio
import difflib
import functools
import json
import math
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, overload

import click

from memable.cli.root import in_words_of_the_shell
from memable.client import Client, connect
from memable.codec import from_json
from memable.errors import StorageError, WorkflowNotFound
from memable.fleet import workflow_names
from memable.missing import MISSING


@dataclass(frozen=True, slots=True)
class Target:
    """What `--url`, `--namespace` and `--json` say."""

    url: str | None
    namespace: str | None
    as_json: bool

    def run(self, act: Callable[[Client], Awaitable[int]]) -> int:
        """Connect, `act`, and disconnect: the exit code."""

        async def connected() -> int:
            async with connect(self.url, namespace=self.namespace) as client:
                try:
                    return await act(client)
                except WorkflowNotFound as error:
                    raise click.ClickException(await _with_known(error, client)) from error

        try:
            return asyncio.run(connected())
        except StorageError as error:
            if self.url is not None or os.environ.get("MEMABLE_REDIS_URL"):
                raise
            # `memable dev` has its own: who has not exported its URL asks a server that is not there, or another
            raise click.ClickException(f"{error}; MEMABLE_REDIS_URL is not set") from error


async def _with_known(error: WorkflowNotFound, client: Client) -> str:
    """What the error says, and what there is instead."""
    said, names = in_words_of_the_shell(error), await workflow_names(client._online().store)
    if not names:
        return said
    near = difflib.get_close_matches(error.workflow, names, _SUGGESTED) or names[:_SUGGESTED]
    return f"{said}; known is {', '.join(near)}" + (" …" if len(near) < len(names) else "")


_SUGGESTED: Final = 5


def finite(context: click.Context, parameter: click.Parameter, value: float) -> float:  # noqa: ARG001
    """The number, unless it is none or has no end: no range refuses `nan`."""
    if not math.isfinite(value):
        raise click.BadParameter("a number of seconds is wanted")
    return value


LIMIT_OPTION = click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="How many at most."
)


URL_OPTION = click.option("--url", metavar="URL", help="Where Redis is. [default: MEMABLE_REDIS_URL, or localhost]")
NAMESPACE_OPTION = click.option(
    "--namespace", metavar="NAME", help="What every key begins with. [default: MEMABLE_NAMESPACE, or memable]"
)


@overload
def takes_target(command: Callable[..., int], /) -> Callable[..., int]: ...
@overload
def takes_target(*, stream: bool) -> Callable[[Callable[..., int]], Callable[..., int]]: ...
def takes_target(command: Callable[..., int] | None = None, *, stream: bool = False) -> Any:
    """Give a command the common options, as its first argument; what a `stream` prints has no end."""
    said = "Print JSON lines, for scripts." if stream else "Print one JSON document, for scripts."

    def given(command: Callable[..., int]) -> Callable[..., int]:
        @URL_OPTION
        @NAMESPACE_OPTION
        @click.option("--json", "as_json", is_flag=True, help=said)
        @functools.wraps(command)
        def with_target(*, url: str | None, namespace: str | None, as_json: bool, **rest: Any) -> int:
            return command(Target(url, namespace, as_json), **rest)

        return with_target

    return given if command is None else given(command)


def json_value(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
    """The callback of an argument that is JSON, or `-` for stdin: its value; `MISSING` without one."""
    if value is None:
        return MISSING
    text = sys.stdin.read() if value == "-" else value
    try:
        return from_json(text.encode())
    except ValueError:
        example = json.dumps(text if text.isprintable() and len(text) <= 20 else "text")
        shown = repr(text) if len(text) <= 60 else f"{text[:60]!r}…"
        raise click.BadParameter(f"{shown} is no JSON (a text is written with its quotes: '{example}')") from None


_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def delay_value(_ctx: click.Context, _param: click.Parameter, value: str | None) -> timedelta | datetime | None:
    """The callback of an option that says when: `90`, `15m`, `2h`, `1d`, or a time with its zone."""
    if value is None:
        return None
    try:
        if number := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value):
            return timedelta(**{_UNITS[number[2]]: float(number[1])})
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is neither a delay, as 90 (seconds), 15m, 2h or 1d, nor a time") from None
    if moment.utcoffset() is None:
        raise click.BadParameter(f"{value!r} is a time without its zone: {value}Z is in UTC")
    return moment


def label_values(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The callback of an option that is given once a label."""
    labels = dict[str, str]()
    for value in values:
        name, is_one, rest = value.partition("=")
        if not is_one or name in labels:
            raise click.BadParameter(f"{value!r} is no NAME=VALUE" if not is_one else f"{name!r} is given twice")
        labels[name] = rest
    return labels
