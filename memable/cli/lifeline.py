"""How a worker process notices that whoever started it is gone, by whatever death.

The parent holds the write end of a pipe, which it never uses, and each child reads the other end: end of file means
that the parent is gone. (A parent-death signal is for Linux only, and comes when the parent's *thread* ends.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class Lifeline:
    """The parent's side; children that hold on to it are told to stop when it is closed, or its process ends."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write_end)
        os.close(self._read_end)

    def start_worker(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        output: IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `memable worker …` in a process group of its own: Ctrl-C at a terminal is for the parent to pass on."""
        return subprocess.Popen(
            [sys.executable, "-m", "memable", "worker", *arguments, "--lifeline", str(self._read_end)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
            pass_fds=(self._read_end,),
            process_group=0,
        )


def hold_on(read_end: int) -> None:
    """The child's side: from now on, stop this process as SIGTERM does when the parent is gone."""
    # what a step may start must not hold on in its turn
    os.set_inheritable(read_end, False)
    threading.Thread(target=_watch, args=(read_end,), name="memable-lifeline", daemon=True).start()


def _watch(read_end: int) -> None:
    while os.read(read_end, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
