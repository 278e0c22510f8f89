"""`MODULE:APP` on a command line: the `App` that it names, or one line that says what is wrong with it."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from memable.workflow import App


def app_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """The callback of an argument `MODULE:APP`: checks its form only, what it names is loaded by `load_app`."""
    module, colon, attribute = value.partition(":")
    if not colon or not all(part.isidentifier() for dotted in (module, attribute) for part in dotted.split(".")):
        raise click.BadParameter(f"{value!r} is not MODULE:APP, such as shop.workflows:app")
    return value


def load_app(place: str) -> App:
    """The `App` at `MODULE:APP`; `click.ClickException`, one line, if there is none."""
    name, _, attribute = place.partition(":")
    see_working_directory()
    found: Any = _load_module(name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise click.ClickException(f"module {name!r} has no attribute {attribute!r}{_suggestion(name)}") from None
    if not isinstance(found, App):
        raise click.ClickException(f"{place} is {_described(found)} and not a memable.App{_suggestion(name)}")
    return found


def see_working_directory() -> None:
    """Have the working directory's modules found, after all others: as arq does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _load_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise anything, SystemExit too
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise click.ClickException(
                f"there is no module {error.name!r} (looked in {Path.cwd()} and where Python looks)"
            ) from None
        said = " ".join(str(error).split())
        text = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise click.ClickException(f"module {name!r} cannot be imported: {text}{_where(error)}") from None


def _where(error: BaseException) -> str:
    """The line that failed: there is no traceback to find it in."""
    if isinstance(error, SyntaxError):
        return ""  # its text says so
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f" ({os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else ""


def _suggestion(module: str) -> str:
    apps = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, App)]
    return f"; it has {', '.join(f'{module}:{name}' for name in apps)}" if apps else ""


def _described(value: object) -> str:
    return f"the class {value.__name__!r}" if isinstance(value, type) else f"of type {type(value).__name__!r}"
