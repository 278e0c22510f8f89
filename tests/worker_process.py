"""A real arq worker process, and predicates to wait for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent
TOO_LONG_S = 60.0
"""Far more than anything takes on a machine that is ten times slower: what has not come by then, never comes."""


async def until(predicate: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Return when `predicate` is true; an error that says `what` did not happen if that takes far too long."""
    deadline_s = time.monotonic() + TOO_LONG_S
    while True:
        answer = predicate()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert time.monotonic() < deadline_s, f"{what}: not within {TOO_LONG_S:g} s"
        await asyncio.sleep(0.01)


class WorkerProcess:
    """`arq tests.apps.hosted.WorkerSettings`, or what `command` says, with its log in a file."""

    def __init__(self, directory: Path, url: str, *command: str, **environment: str) -> None:
        self.log_file = directory / f"worker-{time.monotonic_ns()}.log"
        self._command = command or ("-m", "arq", "tests.apps.hosted.WorkerSettings")
        self._environment: dict[str, str] = {
            # no setting of whoever runs the tests
            **{name: value for name, value in os.environ.items() if not name.startswith(("MEMABLE_", "WORKER_"))},
            "MEMABLE_REDIS_URL": url,
            "HOSTED_DIR": str(directory),
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        try:
            await self.logged("INFO memable.runtime: worker")
        except BaseException as error:
            # else it would outlive the test
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if error is not None:
            sys.stderr.write(f"{self.log_file.name}:\n{self.log}\n")

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    async def logged(self, text: str, times: int = 1) -> None:
        """Return when `text` is in the log `times` times."""
        await until(lambda: self.log.count(text) >= times or not self.is_alive, f"{text!r} in the log")
        assert self.log.count(text) >= times, self.log

    async def ended(self) -> int:
        """The exit code, when the process has ended by itself."""
        await until(lambda: not self.is_alive, "the end of the worker process")
        return self.process.wait()

    async def terminate(self) -> int:
        """The exit code after a SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same command with `arguments` added, run to its end."""
        return subprocess.run(
            [sys.executable, *self._command, *arguments],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TOO_LONG_S,
            check=False,
        )


Started = Callable[..., WorkerProcess]
