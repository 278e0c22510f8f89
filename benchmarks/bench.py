"""What all measures share: a private server, worker processes, clients, CPU clocks, MONITOR, and the lines they tell.

A measure is a module with `async def measure(bench)`, `GOALS`, `WHOLE_RUNS` (in how many runs it is measured) and, if
its server is not the usual one, `CONFIGURATION`; `main` makes a program of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha1
from pathlib import Path
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

import redis
import uvloop

import memable
from benchmarks.app import APP
from memable import Client, Status, lua
from memable.embedded import TemporaryServer
from memable.settings import PREFIX

ROOT = Path(__file__).parent.parent
REDIS_CONF = ROOT / "deploy" / "redis.conf"
MEMABLE, FLOOR = "memable", "floor"
TOO_LONG_S = 300.0
_UNREST = (Status.QUEUED, Status.RUNNING)


# ── what is told ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Line:
    """One value, measured once."""

    what: str
    who: str
    """memable, floor, or a queue."""
    run: int
    value: float
    samples: tuple[float, ...] = ()
    """Of a distribution whose median is `value`: quantiles, enough to draw it."""


@dataclass(frozen=True)
class Goal:
    """What is to be reached: at least or at most so much; with `of`, so many times what that one reaches."""

    what: str
    at_least: float | None = None
    at_most: float | None = None
    of: str | None = None
    """`floor`: in the same run. `queues`: the best of them."""


Tell = Callable[[Line], None]


# ── Redis ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def private_server(configuration: Path | None = None) -> Iterator[tuple[str, int]]:
    """URL and pid of a server with AOF everysec, reached over TCP as a deployed one is; or set by a file."""
    with TemporaryServer(appendonly=True) as private, redis.Redis.from_url(private.url) as admin:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # a rewrite of the AOF would fall into one measure or another
        settings = {"appendfsync": "everysec", "auto-aof-rewrite-percentage": "0", "port": str(port)}
        if configuration is not None:
            lines = (shlex.split(line, comments=True) for line in configuration.read_text("utf-8").splitlines())
            settings.update(dict(filter(None, lines)))
        for name, value in settings.items():
            admin.config_set(name, value)
        yield f"redis://127.0.0.1:{port}", private.pid


@dataclass(frozen=True)
class Command:
    """What a client sent."""

    address: str
    shown: tuple[str, ...]
    """Its words as MONITOR shows them."""

    @property
    def name(self) -> str:
        """The name of the script that it calls, or its own."""
        name = self.shown[0].upper()
        if name not in ("EVAL", "EVALSHA"):
            return name
        return _script_names().get(self.words()[1].decode(), name)

    def words(self) -> list[bytes]:
        """As they were sent; a script by its digest, also on its first use."""
        words = [word.encode("latin-1").decode("unicode_escape").encode("latin-1") for word in self.shown]
        if words[0].upper() == b"EVAL":
            words[:2] = [b"EVALSHA", sha1(words[1], usedforsecurity=False).hexdigest().encode()]
        return words


@cache
def _script_names() -> dict[str, str]:
    return {lua.load(name).sha: name for name in lua.names()}


_SHOWN = re.compile(rb"\+[0-9.]+ \[\d+ ([^\]]*)\] (.*)", re.DOTALL)
_LONGEST_LINE = 1 << 24
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Monitor:
    """Every command that clients send, from `open` to `close`; what scripts call is left out."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._end = os.urandom(8).hex().encode()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._address.scheme == "unix":
            return await asyncio.open_unix_connection(self._address.path, limit=_LONGEST_LINE)
        return await asyncio.open_connection(self._address.hostname, self._address.port, limit=_LONGEST_LINE)

    async def open(self) -> None:
        self._reader, self._writer = await self._connect()
        self._writer.write(b"MONITOR\r\n")
        assert await self._reader.readline() == b"+OK\r\n"
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> list[Command]:
        seen: list[Command] = []
        while self._end not in (line := await self._reader.readline()):
            found = _SHOWN.match(line)
            assert found is not None, line
            if found[1] != b"lua":
                words = tuple(word.decode("latin-1") for word in _WORD.findall(found[2]))
                seen.append(Command(found[1].decode(), words))
        return seen

    async def close(self) -> list[Command]:
        """What was seen until now."""
        _, writer = await self._connect()
        writer.write(b"ECHO %s\r\n" % self._end)
        seen = await self._reading
        for each in (writer, self._writer):
            each.close()
        return seen


# ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _keep_on(pid: int, cores: set[int]) -> None:
    """All threads of a process."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def cpu_s(pid: int) -> float:
    """The CPU time of another process, to the nanosecond: Linux has a clock for each (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


class Bench:
    """One run of a measure: a server, and the processes that use it."""

    def __init__(self, url: str, server_pid: int, admin: redis.Redis, run: int, scale: float, tell: Tell) -> None:
        self.url, self.server_pid, self.admin, self.run = url, server_pid, admin, run
        self._scale, self._tell = scale, tell

    def size(self, of_a_whole_run: int, *, least: int = 4) -> int:
        """How many of something: as given, or few for a run that only shows that all works."""
        return max(least, round(of_a_whole_run * self._scale))

    @property
    def is_whole(self) -> bool:
        return self._scale >= 1

    def tell(self, what: str, who: str, value: float, samples: list[float] | None = None) -> None:
        self._tell(Line(what, who, self.run, float(f"{value:.4g}"), tuple(round(each, 3) for each in samples or ())))

    def tell_percentiles(self, what: str, who: str, samples: list[float]) -> None:
        cuts = quantiles(samples, n=200, method="inclusive")
        self.tell(f"{what}, p50", who, cuts[99], cuts)
        self.tell(f"{what}, p99", who, cuts[197])

    def empty(self) -> None:
        self.admin.flushall()
        self.admin.script_flush()

    def monitor(self) -> Monitor:
        return Monitor(self.url)

    @contextmanager
    def server_cpu(self) -> Iterator[list[float]]:
        """What the server spends on what is done inside: seconds, afterwards."""
        begin_s, used_s = cpu_s(self.server_pid), list[float]()
        yield used_s
        used_s.append(cpu_s(self.server_pid) - begin_s)

    @contextmanager
    def apart(self, pid: int) -> Iterator[None]:
        """Keep a process and the server on a core each, if there are two."""
        cores = os.sched_getaffinity(0)
        if len(cores) < 2:
            yield
            return
        one, other, *_ = sorted(cores)
        try:
            _keep_on(pid, {one})
            _keep_on(self.server_pid, {other})
            yield
        finally:
            _keep_on(pid, cores)
            _keep_on(self.server_pid, cores)

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def program(self, *words: object, python: str = sys.executable) -> Any:
        """What a program told as its last line, as JSON; run from the root, to its end."""
        process = await asyncio.create_subprocess_exec(
            python, *map(str, words), cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, error = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{shlex.join(map(str, words))} ended with {process.returncode}:\n{error.decode()}")
        return json.loads(out.splitlines()[-1]) if out.strip() else None

    @asynccontextmanager
    async def workers(self, workflow: str, count: int = 1, *, concurrency: int = 100) -> AsyncIterator[list[int]]:
        """So many arq worker processes with that workflow (or several, by commas), ready: their pids."""
        with tempfile.TemporaryFile() as log:
            processes = [
                subprocess.Popen(  # noqa: ASYNC220 - nothing is measured meanwhile
                    [sys.executable, "-m", "arq", "benchmarks.app.WorkerSettings"],
                    cwd=ROOT,
                    env=worker_environment(self.url, workflow, concurrency),
                    stderr=log,
                )
                for _ in range(count)
            ]
            try:
                while int(str(self.admin.zcard(f"{MEMABLE}:workers"))) < count:
                    if any(process.poll() is not None for process in processes):
                        raise RuntimeError("a worker did not start")
                    await asyncio.sleep(0.01)
                yield [process.pid for process in processes]
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))
                raise
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    await asyncio.to_thread(process.wait)

    # ── clients ──────────────────────────────────────────────────────────────────────────────────────────────────

    def client(self) -> memable.client.Connecting:
        return memable.connect(self.url, app=APP, settings=memable.Settings(redis_url=self.url))

    async def rest(self, client: Client, workflow: str) -> None:
        """Return when no instance is queued or running."""
        async with asyncio.timeout(TOO_LONG_S):
            # twice: an instance that is claimed while it is listed is in neither list
            at_rest = 0
            while at_rest < 2:
                unrest = (client.list_instances(workflow, status=each, limit=1) for each in _UNREST)
                is_any = any(page.items or page.cursor for page in await asyncio.gather(*unrest))
                at_rest = 0 if is_any else at_rest + 1
                await asyncio.sleep(0.02)

    async def between_claim_and_end_s(self, client: Client, workflow: str, ids: list[str]) -> float:
        """From the first claim to the last end, by Redis's clock."""
        found = await asyncio.gather(*(client.get_metadata(workflow, each) for each in ids))
        started = [each.started_at for each in found if each is not None and each.started_at is not None]
        completed = [each.completed_at for each in found if each is not None and each.completed_at is not None]
        assert len(started) == len(completed) == len(ids)
        return (max(completed) - min(started)).total_seconds()


def _environment(**more: str) -> dict[str, str]:
    """No setting of whoever runs this."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}, **more}


def worker_environment(url: str, workflow: str, concurrency: int = 100) -> dict[str, str]:
    return _environment(MEMABLE_REDIS_URL=url, MEMABLE_CONCURRENCY=str(concurrency), BENCH_WORKFLOW=workflow)


# ── running measures ─────────────────────────────────────────────────────────────────────────────────────────────────


def run_once(measure: Any, run: int, scale: float, tell: Tell) -> None:
    """On a server of its own."""
    configuration = getattr(measure, "CONFIGURATION", None)
    with private_server(configuration) as (url, pid), redis.Redis.from_url(url) as admin:
        uvloop.run(measure.measure(Bench(url, pid, admin, run, scale, tell)))


def print_line(line: Line) -> None:
    print(json.dumps(asdict(line), ensure_ascii=False), flush=True)


def main() -> None:
    """Run the measure whose module is the program, alone."""
    measure = sys.modules["__main__"]
    parser = argparse.ArgumentParser(description=(measure.__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="how often (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of everything (default: %(default)s)")
    given = parser.parse_args()
    for run in range(given.runs):
        run_once(measure, run, given.scale, print_line)
