"""Does what docs/quick-start.md says, in a shell: `python -m tests.quick_start WHEEL` as a new user would, with pip.

What the page shows below a command must come, in that order; `…` stands for anything, spaces for any number of them,
and further lines may stand between.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from memable.embedded import stop_server
from tests.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "quick-start.md"
_PROMPT = "$ "
_MARK = "-- that was it --"


@dataclass(frozen=True)
class Command:
    """A line behind a prompt, and what is shown below it."""

    text: str
    shown: list[str]


def commands(page: Path = PAGE) -> Iterator[Command]:
    """What the page has its reader type, in order."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            text, *shown = part.splitlines()
            yield Command(text, shown)


def write_files(directory: Path, page: Path = PAGE) -> None:
    """The files that the page shows, under the names in their first lines."""
    for code in blocks(page, "python"):
        name, _, _ = code.partition("\n")
        (directory / name.removeprefix("# ")).write_text(code, "utf-8")


def is_shown(shown: Sequence[str], printed: str) -> bool:
    """Whether the lines that are shown have come."""
    patterns = (r"\s+".join(".*".join(map(re.escape, word.split("…"))) for word in line.split()) for line in shown)
    return re.search(r"[^\n]*\n(?:.*\n)*?.*".join(patterns), printed) is not None


class Shell:
    """A bash with job control, in a directory."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "-m"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        with self._process:
            # whatever runs in the background still
            self._process.stdin.write(b"kill -9 $(jobs -p) 2>/dev/null\nexit\n")

    def type(self, command: Command, *, timeout_s: float = 100) -> str:
        """What is printed until the command ends; of one in the background, until what is shown has come."""
        is_background = command.text.endswith("&")
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{command.text}\n{'' if is_background else f'echo; echo {_MARK}'}\n".encode())
        deadline_s, printed = time.monotonic() + timeout_s, ""
        while not (is_shown(command.shown, printed) if is_background else f"\n{_MARK}\n" in printed):
            if not select.select([self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise AssertionError(f"{command.text}: nothing but {printed!r} in {timeout_s:g} s")
            chunk = self._process.stdout.read(65536)
            assert chunk, printed
            printed += chunk.decode(errors="replace")
        assert is_shown(command.shown, printed), f"{command.text}: {command.shown} is shown, and this came:\n{printed}"
        return printed


def play(directory: Path, commands: Sequence[Command], **environment: str) -> None:
    """Type them one after the other, where the page's files are; AssertionError for what is not as it is shown."""
    write_files(directory)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MEMABLE_", "PYTHON"))}
    try:
        with Shell(directory, kept | environment) as shell:
            for command in commands:
                shell.type(command)
    finally:
        # it outlives whoever started it
        stop_server(directory / ".memable")


def is_installation(command: Command) -> bool:
    """Whether it makes the environment."""
    return command.text.startswith(("python3 -m venv", ". .venv/", "pip install"))


def main(wheel: Path) -> None:
    """As a new user, with the wheel instead of what an index would have."""
    typed = [Command(each.text.replace("'memable[", f"'{wheel.resolve()}["), each.shown) for each in commands()]
    with tempfile.TemporaryDirectory() as directory:
        began_s = time.monotonic()
        play(Path(directory), typed)
    sys.stdout.write(f"docs/quick-start.md: all as it says, in {time.monotonic() - began_s:.0f} s\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
