"""The command group, and the one place where an error becomes a line on stderr and an exit code.

0: fine. 1: the instance failed or was cancelled, or the doctor found something wrong. 2: wrong usage, not
found, or any `MemableError`. 130: Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

import click

from memable.errors import BUFFERED, InvalidCursor, MemableError, RecordNotFound, SignalRejected, WorkflowNotFound

FINE: Final = 0
INSTANCE_FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130

_COMMANDS: Final = {
    "cancel": "memable.cli.acting:cancel",
    "completion": "memable.cli.completion:completion",
    "delete": "memable.cli.acting:delete",
    "demo": "memable.cli.demo:demo",
    "dev": "memable.cli.worker:dev",
    "doctor": "memable.cli.doctor:doctor",
    "events": "memable.cli.events:events",
    "fork": "memable.cli.acting:fork",
    "invoke": "memable.cli.acting:invoke",
    "list": "memable.cli.looking:list_",
    "resume": "memable.cli.acting:resume",
    "schedules": "memable.cli.overview:schedules",
    "send": "memable.cli.acting:send",
    "show": "memable.cli.looking:show",
    "signal": "memable.cli.acting:signal",
    "stats": "memable.cli.overview:stats",
    "watch": "memable.cli.watch:watch",
    "worker": "memable.cli.worker:worker",
    "workers": "memable.cli.overview:workers",
}


class _Commands(click.Group):
    """Loads a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """As click's, which takes it for a failure that `head`, say, has seen enough of the output."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # for the flush at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FINE
        return code


def _show_version(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(f"memable {version('memable')}")
        ctx.exit()


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Say which one this is."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Durable execution for Python on Redis.

    Where Redis is, and all else that a deployment sets, is read from MEMABLE_… in the environment.

    Exit codes: 0 fine, 1 the instance failed or was cancelled, or the doctor found something wrong, 2 wrong usage, not
    found, or any other error, 130 Ctrl-C.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(WRONG)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default this process's; its exit code."""
    if sys.stdout is None:
        # closed by whoever started this (`>&-`): nobody wants to read it
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        # a value that the terminal's encoding lacks is no reason to end with a traceback
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # not every replacement has it
    try:
        code: Any = cli.main(arguments, prog_name="memable", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.UsageError as error:
        hint = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
        return _complain(f"{error.format_message().rstrip('.')}{hint}")
    except click.ClickException as error:
        return _complain(error.format_message())
    except OSError as error:  # a full disk, say: what Redis's connections throw is an error of memable by now
        return _complain(f"what there is to say cannot be written, or what it needs read: {error}")
    except MemableError as error:
        return _complain(in_words_of_the_shell(error))
    return code if isinstance(code, int) else FINE


def in_words_of_the_shell(error: MemableError) -> str:
    """What the error says, with advice for who has no Python before them."""
    match error:
        case WorkflowNotFound():
            return f"{error.fact}; start one that has it: memable worker MODULE:APP"
        case RecordNotFound():
            return f"{error.fact}; its keys: memable show {error.workflow}/{error.instance_id}"
        case InvalidCursor():
            return f"{error.fact}: give what the page before has said, or leave --cursor out for the first page"
        case SignalRejected():
            return str(error).replace(BUFFERED, "with --buffer")
        case _:
            return str(error)


def _complain(text: str) -> int:
    # one line, whatever the text of an exception from elsewhere is like
    click.echo(f"memable: {' '.join(text.split())}", err=True)
    return WRONG
