"""Worker processes of the shop on a server of their own, and the commands that are run there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import memable
from memable import Client, Status
from memable.cli.root import run
from memable.embedded import TemporaryServer
from memable.fleet import fleet
from memable.schedule import scheduled

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
_ROOT = PAGE.parent.parent
_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
_MEANWHILE = "  # meanwhile: "
_SOON_S = 600.0
NAMESPACE = "memable"
SHOWN_URL = "redis://localhost:6379"
_WORKER = (
    "import socket, sys; socket.gethostname = lambda: {host!r}; "
    "sys.argv = ['memable', 'worker', 'pages.command_line.shop:app', '--concurrency', {slots!r}]; "
    "from memable.cli import main; main()"
)


@dataclass
class Story:
    """What the commands are run before."""

    url: str
    client: Client

    async def is_quiet(self) -> bool:
        """Whether nothing happens until somebody acts, or some time comes."""
        # twice: what goes from a child to its parent between two commands of a look is in neither
        return await self._looks_quiet() and await self._looks_quiet()

    async def _looks_quiet(self) -> bool:
        store = self.client._online().store
        seen, due = await fleet(store), await scheduled(store, 1)
        is_busy = any(load.waiting or load.running or load.counts[Status.RUNNING] for load in seen.loads)
        return not is_busy and all(each.in_s > _SOON_S for each in due.items)

    async def has_workers(self, number: int) -> bool:
        """Whether so many have said who they are, and one leads."""
        seen = await fleet(self.client._online().store)
        return len([each for each in seen.workers if each.presence]) == number and None not in seen.leaders

    async def command(self, line: str) -> str:
        """What `memable …` prints, on both of its outputs, and its exit code unless that is 0."""
        words, _, meanwhile = line.partition(_MEANWHILE)
        if meanwhile:
            return self._shown(*await self._beside(words, meanwhile))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = await asyncio.to_thread(run, self._arguments(words))
        return self._shown(code, printed.getvalue())

    async def _beside(self, words: str, meanwhile: str) -> tuple[int, str]:
        """A command that goes on until another has been carried out."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "memable", *self._arguments(words)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            await until(self.is_heard)
            with contextlib.redirect_stdout(io.StringIO()):
                await asyncio.to_thread(run, self._arguments(meanwhile))
            async with asyncio.timeout(60):
                printed, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return process.returncode, printed.decode()

    def _arguments(self, words: str) -> list[str]:
        return [*shlex.split(words)[1:], "--url", self.url, "--namespace", NAMESPACE]

    def _shown(self, code: int, printed: str) -> str:
        return printed.replace(self.url, SHOWN_URL) + (f"(exit code {code})\n" if code else "")

    async def is_heard(self) -> bool:
        """Whether somebody listens to all instances of a workflow."""
        return bool(await self.client._online().connection.command("PUBSUB", "NUMPAT"))


async def until(predicate: Callable[[], Awaitable[bool]]) -> None:
    """Return when it is so; an error if that takes far too long."""
    async with asyncio.timeout(60):
        while not await predicate():  # noqa: ASYNC110 - Redis tells nobody
            await asyncio.sleep(0.02)


@asynccontextmanager
async def told(*hosts: str, slots: int = 100) -> AsyncIterator[Story]:
    """A server, and a worker process on each of these hosts, for all that anybody can see."""
    with TemporaryServer() as server, contextlib.ExitStack() as workers:
        for host in hosts:
            process = _worker(server.url, host, slots)
            workers.callback(process.wait)
            workers.callback(process.kill)
        async with memable.connect(server.url, namespace=NAMESPACE) as client:
            story = Story(server.url, client)
            await until(lambda: story.has_workers(len(hosts)))
            yield story


def _worker(url: str, host: str, slots: int) -> subprocess.Popen[bytes]:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("MEMABLE_")}
    return subprocess.Popen(
        [sys.executable, "-c", _WORKER.format(host=host, slots=str(slots))],
        cwd=_ROOT,
        env={**settings, "MEMABLE_REDIS_URL": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def blocks(text: str) -> list[str]:
    """The parts of the page that show commands."""
    return _BLOCK.findall(text)


async def played(text: str) -> str:
    """The page as the commands that it shows make it."""
    parts, at = list[str](), 0
    async with told("box-1") as story:
        for block in _BLOCK.finditer(text):
            shown = list[str]()
            for line in re.findall(r"^\$ (.*)$", block[0], re.MULTILINE):
                await until(story.is_quiet)
                shown.append(f"$ {line}\n{await story.command(line)}")
            parts += [text[at : block.start()], *shown]
            at = block.end()
    return "".join([*parts, text[at:]])


_VARIES = (
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b|\b\d\d:\d\d:\d\d(\.\d+)?\b", "T"),
    (r"\bbox-\d-\d+-\w{6}\b", "WORKER"),
    (r"(?<=WORKER\sbox-1\s)\d+", "PID"),
    (r"\b[A-Za-z0-9]{16}\b", "TOKEN"),
    (r"--cursor \S+", "--cursor C"),
    (r"(Valkey|Redis) [\d.]+", "SERVER"),
    (r"\d+ clients", "N clients"),
    (r"(\d[\d.]* ?(ms|s|min|h|d|B|kB|MB)\b ?)+", "N "),
    (r"[━┄]+", ""),
    (r"^runs \d+$", "runs N"),
    (r"\b(queued|running)$", "under way"),
)
"""What is another in every run."""


def normal(text: str) -> str:
    """What is the same in every run."""
    text = re.sub(r"[ \t]+", " ", text)
    for pattern, stands_for in _VARIES:
        text = re.sub(pattern, stands_for, text, flags=re.MULTILINE)
    return re.sub(r" +$", "", re.sub(r" +", " ", text), flags=re.MULTILINE)
