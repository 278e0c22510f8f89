"""How a command line names an instance: `order/42`, as memable prints it, or `order 42`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from memable.cli.completion import complete_id, complete_instance

F = TypeVar("F", bound=Callable[..., Any])

_HOW = "an instance is named WORKFLOW/ID, such as order/42"


class InstanceCommand(click.Command):
    """A command whose first argument is an instance, or may be one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's, with `order/42` taken apart."""
        return super().parse_args(ctx, self._in_two(args))

    def _in_two(self, args: list[str]) -> list[str]:
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag and not option.count
            for name in option.opts
        }
        is_value = False
        for at, word in enumerate(args):
            if is_value or word == "--":
                is_value = False
            elif word.startswith("-") and word != "-":
                is_value = word in with_value
            else:
                workflow, slash, id = word.partition("/")
                return [*args[:at], workflow, id, *args[at + 1 :]] if slash else args
        return args


class _Id(click.Argument):
    """What stands behind the workflow's name, mostly in one word with it: no usage line shows it."""

    def make_metavar(self, *_: Any, **__: Any) -> str:
        """Nothing."""
        return ""


def _required(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    if value is None:
        raise click.UsageError(_HOW)
    return value


def names_instance(command: F) -> F:
    """Give `command` an instance as its first arguments, `workflow` and `id`."""
    # not required for click, which knows no other name for what is missing
    id = click.argument("id", cls=_Id, required=False, callback=_required, shell_complete=complete_id)
    workflow = click.argument("workflow", metavar="WORKFLOW/ID", shell_complete=complete_instance)
    return workflow(id(command))


def may_name_instance(command: F) -> F:
    """Give `command` arguments `workflow` and `id`, either of which may be left out."""
    id = click.argument("id", cls=_Id, required=False, shell_complete=complete_id)
    workflow = click.argument("workflow", metavar="[WORKFLOW[/ID]]", required=False, shell_complete=complete_instance)
    return workflow(id(command))
